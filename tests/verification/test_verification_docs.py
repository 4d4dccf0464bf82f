"""docs/verification.md has a row for each finding that the code can make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import hpcai500

FOLDER = Path(hpcai500.__file__).parent / "results/verification"
DOCS = Path(__file__).parents[2] / "docs/verification.md"
MAKERS = {"fail", "warning", "note", "skipped", "judged", "_same_quality", "_not_less", "Finding"}


def words_of(tree: ast.Module) -> dict[str, str]:
    """Names that a module gives a word to."""
    words: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else [node.targets[0]]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for target, value in zip(targets, values, strict=False):
                if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    words[target.id] = value.value
    return words


def finding_names(tree: ast.Module, shared: Mapping[str, str] | None = None) -> Iterator[str]:
    """First arguments of what makes findings: words, or names that stand for one."""
    words = {**(shared or {}), **words_of(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield str(first.value)
            elif isinstance(first, ast.Name) and first.id in words:
                yield words[first.id]


def names_in_code() -> set[str]:
    """Of all files of the verification."""
    shared = words_of(ast.parse((FOLDER / "finding.py").read_text(encoding="utf-8")))
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.rglob("*.py"))
    return {name for tree in trees for name in finding_names(tree, shared)}


def names_in_docs() -> set[str]:
    """First cells of the tables of checks."""
    tables = re.findall(r"^\| name \| compares \|\n((?:\|.*\n)+)", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for table in tables for name in re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)}


def test_every_finding_has_its_row() -> None:
    assert len(names_in_code()) > 40
    assert not names_in_code() - names_in_docs(), "add a row to docs/verification.md"


def test_no_row_is_of_a_finding_that_is_gone() -> None:
    assert not names_in_docs() - names_in_code()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('fail("a", "b")', {"a"}),
        ('_N = "n"\nwarning(_N, "b")', {"n"}),
        ('_N, _M = "n", "m"\nnote(_M, "b")', {"m"}),
        ('other("a")', set()),
    ],
)
def test_the_search_itself(source: str, names: set[str]) -> None:
    assert set(finding_names(ast.parse(source))) == names
