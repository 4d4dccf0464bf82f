"""Every number of a result, unscaled, by its name in `result.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.methodology.result import Result
from hpcai500.results.report.blocks import Fold, Section, Table
from hpcai500.results.report.words import UNKNOWN, short

_MOST_ITEMS = 20


def number_section(result: Result) -> Section:
    """`result.json` as a table."""
    rows = [(short(name, 80), value) for name, value in _flat(result.as_json(), "")]
    table = Table("result.json: seconds, bytes, FLOPS, watts and joules, never scaled", ("key", "value"), rows)
    return Section("All numbers", [Fold(f"{len(rows)} values as result.json has them", [table], printed=False)])


def _flat(document: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in document.items():
        if key == "reasons":
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        elif isinstance(value, list):
            more = f", and {len(value) - _MOST_ITEMS} more" if len(value) > _MOST_ITEMS else ""
            yield f"{above}{key}", short(", ".join(map(str, value[:_MOST_ITEMS])) or "none") + more
        else:
            yield f"{above}{key}", UNKNOWN if value is None else short(value)
