"""The published rules as data: one TOML file an edition, read here and nowhere else."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from hpcai500.errors import RecipeError
from hpcai500.toml_source import merged

_FOLDER = Path(__file__).parent


def editions() -> list[str]:
    """Names of all editions, oldest first."""
    return sorted(path.stem for path in _FOLDER.glob("v*.toml"))


@cache
def load_edition(name: str) -> dict[str, Any]:
    """The rules of edition `name`: those of its file, over those of the edition that it extends.

    Raises:
        RecipeError: there is no such edition.
    """
    if name not in editions():
        raise RecipeError(f"edition: expected one of {', '.join(editions())}, got {name!r}")
    rules = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return merged(load_edition(rules["extends"]), rules) if "extends" in rules else rules


def benchmark_rules(edition: str, benchmark: str) -> dict[str, Any]:
    """What `edition` fixes for `benchmark`; empty for a plug-in's benchmark, which no edition knows."""
    rules: dict[str, Any] = load_edition(edition)["benchmarks"].get(benchmark, {})
    return rules
