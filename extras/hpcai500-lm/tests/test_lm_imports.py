"""The package uses nothing of hpcai500 but the documented interface, and hpcai500 knows nothing of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "hpcai500_lm"
ROOT = Path(__file__).resolve().parents[3]


def test_it_imports_only_documented_modules() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(hpcai500\.[\w.]+)` \|", page, re.MULTILINE))
    used = {
        node.module
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "hpcai500"
    }
    assert used
    assert used <= documented


def test_hpcai500_has_learnt_nothing_of_language_models() -> None:
    words = re.compile(r"\b(hpcai500.lm|transformer|perplexity|language model|tokenizer)\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / "hpcai500").rglob("*.py")
        for match in words.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
