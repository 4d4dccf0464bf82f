"""What is wrong with a contract file, each mistake once, and its criteria counted as people count."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails

from hpcai500.results.report.words import short
from hpcai500.toml_source import Source, explain

_MOST_NAME = 60


def mistakes(model: type[BaseModel], source: Source, tables: Mapping[str, Any], error: ValidationError) -> list[str]:
    """A line for each mistake in `tables`, which stand in `source` and are not those of `model`."""
    details = error.errors(include_url=False)
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    return [_line(model, source, tables, detail) for detail in details if not _is_misspelt(detail, unknown, details)]


def _is_misspelt(detail: ErrorDetails, unknown: Sequence[tuple[Any, ...]], details: Sequence[ErrorDetails]) -> bool:
    """Whether a key is missing only because it is there by a wrong name, which is told beside it."""
    if detail["type"] != "missing":
        return False
    *table, key = detail["loc"]
    here = [str(other[-1]) for other in unknown if list(other[:-1]) == table]
    missing = [str(one["loc"][-1]) for one in details if one["type"] == "missing" and list(one["loc"][:-1]) == table]
    return any(difflib.get_close_matches(name, missing, n=1) == [key] for name in here)


def _line(model: type[BaseModel], source: Source, tables: Mapping[str, Any], detail: ErrorDetails) -> str:
    one = ValidationError.from_exception_data(model.__name__, [cast("InitErrorDetails", detail)])
    (told,) = explain(model, source, one)
    for table, place in _places(detail["loc"]):
        told = told.replace(f": [{table}] {place}", f": [[{table}]] {place + 1}{_named(tables, table, place)}", 1)
    return told


def _places(location: Sequence[str | int]) -> Iterator[tuple[str, int]]:
    """The table of an array that is meant, by name and number (from 0)."""
    if len(location) > 1 and isinstance(location[0], str) and isinstance(location[1], int):
        yield location[0], location[1]


def _named(tables: Mapping[str, Any], table: str, place: int) -> str:
    """What people know it by: the metric of one of the criteria."""
    metric = tables[table][place].get("metric") if isinstance(tables[table][place], dict) else None
    return f" ({short(metric, _MOST_NAME)})" if isinstance(metric, str) and metric.isprintable() else ""
