"""TOML files that users write: mistakes are reported by file, line and key, with the allowed values.

A file may be untrusted: its size, and what makes Python's parser slow, are limited before it is parsed.
"""

from __future__ import annotations

import codecs
import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hpcai500.errors import HpcAi500Error, UsageError
from hpcai500.streams import escaped
from hpcai500.text import mistake, short

# Each can match in one way only, as lines may be long and untrusted; blanks around a line are stripped before.
_HEADER = re.compile(r"""\[{1,2}([\w."'\s-]+)\]""")
_KEY = re.compile(r"""([\w."'\s-]+)=""")
MOST_BYTES = 256 * 2**10
"""Size limit of a file; recipes, sites, machines, contracts and campaigns have a few thousand bytes."""
MOST_DOTS = 200
"""Limit of dots in a line: Python's TOML parser takes quadratic time in the parts of a key; numbers have dots too."""

Keys = tuple[str | int, ...]


# A message names only the first of many --set options.
_MOST_NAMED = 3
_MOST_NAME = 60


@dataclass(frozen=True)
class Source:
    """A file's path and text, and the (table, key) pairs that `--set` changed, so that an error can name the place."""

    name: str
    text: str
    overrides: frozenset[tuple[str, str]] = frozenset()

    def place(self, location: Sequence[str | int]) -> str:
        """Where the user can fix `location`: a `--set`, or file and line."""
        keys = [part for part in location if isinstance(part, str)]
        if not keys and self.overrides:
            named = [f"--set {table}.{key}" for table, key in sorted(self.overrides)]
            more = f", … ({len(named)} in all)" if len(named) > _MOST_NAMED else ""
            return f"{self.name} with {', '.join(named[:_MOST_NAMED])}{more}"
        for table, key in sorted(self.overrides):
            # The location of an unknown table has no key.
            if keys[:1] == [table] and keys[1:2] in ([key], []):
                return f"--set {table}.{key}"
        line = self.line_of(location)
        return f"{self.name}:{line}" if line else self.name

    def line_of(self, location: Sequence[str | int]) -> int | None:
        """Line number (from 1) of `location` = (table, key, …), or of the nearest table above it, or None.

        A number in `location` is the index (from 0) of a table in an array, `[[points]]`.
        """
        target = tuple(location)
        best, found = 0, None
        table: Keys = ()
        counts: dict[Keys, int] = {}
        for number, line in enumerate(map(str.strip, self.text.splitlines()), 1):
            if header := _HEADER.match(line):
                table = _parts(header.group(1))
                if line.startswith("[["):
                    counts[table] = counts.get(table, -1) + 1
                    table = (*table, counts[table])
                here = table
            elif key := _KEY.match(line):
                here = (*table, *_parts(key.group(1)))
            else:
                continue
            depth = _common(here, target)
            # A table's line also stands for keys that are missing in it; a key's line only for that key and its parts.
            if depth > best and (depth == len(target) or depth == len(here)):
                best, found = depth, number
        return found


def _parts(dotted: str) -> Keys:
    """`bandwidths."10 GbE"` -> its keys."""
    return tuple(part.strip(" \"'") for part in dotted.split("."))


def _common(one: Sequence[str | int], other: Sequence[str | int]) -> int:
    """How many keys both have in common from the start."""
    return next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def read_source(path: Path, kind: type[UsageError]) -> Source:
    """The text of the TOML file `path`.

    Raises:
        UsageError: of class `kind`; it cannot be read, is larger than a TOML file may be, or is not text.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from error
    _require_bounded(content, str(path), kind)
    return source_of(content, str(path), kind)


def source_of(content: bytes, name: str, kind: type[UsageError]) -> Source:
    """The text in `content`, which was read from the file `name`: TOML, or JSON, which has no limits.

    Raises:
        UsageError: of class `kind`; it is not text.
    """
    try:
        return Source(name, _decoded(content))
    except UnicodeDecodeError as error:
        raise kind(f"{name}: {_not_text(content, error)}") from error


def _decoded(content: bytes) -> str:
    """As text; Windows editors put a byte-order mark before it."""
    return content.decode("utf-8-sig")


def _not_text(content: bytes, error: UnicodeDecodeError) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "a text file in UTF-16: save it in UTF-8"
    return f"not a text file in UTF-8 ({error.reason} at byte {error.start})"


def parse_tables(source: Source, kind: type[UsageError]) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        UsageError: of class `kind`; it is not TOML.
    """
    return parse_toml(source.text.encode("utf-8", errors="surrogatepass"), source.name, kind)


def parse_toml(content: bytes, name: str, kind: type[HpcAi500Error]) -> dict[str, Any]:
    """The tables of the TOML file `name`, which may be untrusted.

    Raises:
        HpcAi500Error: of class `kind`; it is not TOML, or larger than `MOST_BYTES`.
    """
    _require_bounded(content, name, kind)
    try:
        return deepcopy(_parsed(content))
    except UnicodeDecodeError as error:
        raise kind(f"{name}: not valid TOML: {_not_text(content, error)}") from error
    except RecursionError as error:
        raise kind(f"{name}: TOML nested too deeply") from error
    except ValueError as error:  # also of an integer of thousands of digits
        raise kind(f"{name}: not valid TOML: {error}") from error


# A campaign and its runs have the same recipe, file by file; copying takes a fifth of the time of parsing.
@lru_cache(maxsize=2)
def _parsed(content: bytes) -> dict[str, Any]:
    return tomllib.loads(_decoded(content))


def _require_bounded(content: bytes, name: str, kind: type[HpcAi500Error]) -> None:
    if len(content) > MOST_BYTES:
        raise kind(f"{name}: larger than {MOST_BYTES} bytes: too large for a settings file")
    for number, line in enumerate(content.splitlines(), 1):
        if (dots := line.count(b".")) > MOST_DOTS:
            raise kind(f"{name}:{number}: {dots} dots in a line, at most {MOST_DOTS} are allowed: split the line")


def merged(base: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` applied in order: tables are merged, other values are replaced."""
    result = dict(base)
    for change in changes:
        for key, value in change.items():
            both_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both_tables else value
    return result


def explain(
    model: type[BaseModel],
    source: Source,
    error: ValidationError,
    tables: Mapping[str, Any] | None = None,
    named_by: str = "",
) -> list[str]:
    """A line for each mistake in the tables of `source`, from the validation error of `model`.

    A table of an array is identified by its number, from 1; if `tables` are given, also by its value of the key
    `named_by`.
    """
    details = error.errors(include_url=False)
    misspelt = _misspelt(details)
    return [
        _line(model, source, detail, _named(tables or {}, detail["loc"], named_by))
        for detail in details
        if detail["type"] != "missing" or detail["loc"] not in misspelt
    ]


def _misspelt(details: Sequence[ErrorDetails]) -> set[tuple[str | int, ...]]:
    """Locations that are missing only because a key beside them is misspelt, which is reported already."""
    missing: dict[Keys, list[str]] = {}
    for one in details:
        if one["type"] == "missing":
            missing.setdefault(one["loc"][:-1], []).append(str(one["loc"][-1]))
    found: set[Keys] = set()
    for *table, key in (one["loc"] for one in details if one["type"] == "extra_forbidden"):
        near = difflib.get_close_matches(str(key), missing.get(tuple(table), ()), n=1)
        found |= {(*table, name) for name in near}
    return found


def _named(tables: Mapping[str, Any], location: Keys, named_by: str) -> str:
    """The name of a table of an array, in parentheses: ` (vflops)`."""
    match location:
        case (str(array), int(place), *_):
            table = tables[array][place] if array in tables else None
            name = table.get(named_by) if isinstance(table, dict) else None
            return f" ({short(name, _MOST_NAME)})" if isinstance(name, str) and name.isprintable() else ""
    return ""


def _line(model: type[BaseModel], source: Source, detail: ErrorDetails, named: str) -> str:
    location = detail["loc"]
    table, *keys = [str(part) for part in location] or [""]
    match location:
        case (str(array), int(place), *inner):
            name = ".".join([f"[[{array}]] {place + 1}{named}", *map(str, inner)]) + ": "
        case (_, _, *_):
            name = f"[{table}] {'.'.join(keys)}: "
        case _:
            name = f"{table}: " if table else ""
    # Keys and values may be untrusted.
    return escaped(f"{source.place(location)}: {name}{_what_is_wrong(model, table, keys, detail)}")


def _what_is_wrong(model: type[BaseModel], table: str, keys: Sequence[str], detail: ErrorDetails) -> str:
    fields = _fields(model, [table, *keys[:-1]]) if keys else list(model.model_fields)
    match detail["type"]:
        case "extra_forbidden":
            key = keys[-1] if keys else table
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            return f"unknown {'key' if keys else 'table or key'}; {hint}allowed: {', '.join(fields)}"
        case "model_type" | "model_attributes_type":
            return f"expected a table, got {detail['input']!r}"
        case _:
            return mistake(detail)


def _fields(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Keys that are allowed in the table at `path`, also in an optional one, or in an array of tables."""
    table: type[BaseModel] | None = model
    for key in path:
        if table and not key.isdigit():
            field = table.model_fields.get(key)
            table = _table_in(field.annotation) if field else None
    return list(table.model_fields) if table else []


def _table_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_table_in, get_args(annotation))), None)
