"""docs/submission-format.md, written from the schema that submissions are read by: the two cannot drift apart.

python -m hpcai500.results.submission.format_page > docs/submission-format.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.results.submission import limits
from hpcai500.results.submission.format_text import AFTER, BEFORE
from hpcai500.results.submission.layout import KINDS
from hpcai500.results.submission.manifest import Manifest
from hpcai500.toml_source import MOST_DOTS

_LIMITS = (
    ("files", limits.MOST_ENTRIES, "what ZIP counts without its 64-bit form"),
    ("bytes without checkpoints", limits.MOST_EXTRACTED_BYTES, "ten records of a thousand nodes take 1 GB"),
    ("unpacked to packed bytes", limits.HIGHEST_RATIO, "descriptions of a thousand equal nodes reach 136"),
    ("characters of a path", limits.LONGEST_PATH, ""),
    ("events of a log", limits.MOST_EVENTS, "90 epochs and a hundred resumptions make fewer than 10,000"),
    ("bytes of an event", limits.LINE_BYTES, "the description of a thousand nodes"),
    ("JSON values of a file", limits.MOST_VALUES, "a thousand nodes of 1,500 values each, twice"),
    ("JSON values of all files", limits.MOST_VALUES_IN_ALL, "ten such records"),
    ("levels of JSON", limits.DEEPEST, "events have 8"),
    ("dots in a line of a recipe", MOST_DOTS, "keys have 2 parts, and numbers have dots"),
    ("samples of a power file", limits.POWER_ROWS, "a day of ten a second has 864,000"),
)


def format_page() -> str:
    """The page."""
    schema = Manifest.model_json_schema(by_alias=True)
    return "\n".join([BEFORE, *_layout(), "", "## manifest.json", "", *_tables(schema), *_limits(), "", AFTER])


def _layout() -> Iterator[str]:
    yield "| file | at most | holds |"
    yield "|---|---|---|"
    for kind in KINDS:
        yield f"| `{kind.shown}` | {_size(kind.most_bytes)} | {kind.meaning} |"


def _limits() -> Iterator[str]:
    yield "## What is refused unread"
    yield ""
    yield "| of | at most | because |"
    yield "|---|---|---|"
    for what, number, reason in _LIMITS:
        yield f"| {what} | {number:,} | {reason} |"


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size // limits.MIB} MiB" if size >= limits.MIB else f"{size // limits.KIB} KiB"


def _tables(schema: Mapping[str, Any]) -> Iterator[str]:
    """A table for the manifest, then one for each part of it, in the order in which they are met."""
    waiting, done = [("", schema)], set[str]()
    while waiting:
        name, table = waiting.pop(0)
        if name:
            yield from (f"### {name}", "", str(table.get("description", "")).replace("\n", " "), "")
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        for field, about in table["properties"].items():
            yield f"| `{field}` | {_type(about)} | {about.get('description', '')} |"
            for other in _references(about):
                if other not in done:
                    done.add(other)
                    waiting.append((other, schema["$defs"][other]))
        yield ""


def _references(about: Any) -> Iterator[str]:
    if isinstance(about, dict):
        if "$ref" in about:
            yield about["$ref"].rpartition("/")[2]
        for inner in about.values():
            yield from _references(inner)
    elif isinstance(about, list):
        for inner in about:
            yield from _references(inner)


def _type(about: Mapping[str, Any]) -> str:
    """A field's type in words."""
    if "$ref" in about:
        return str(about["$ref"].rpartition("/")[2])
    if "anyOf" in about:
        return " or ".join(_type(one) for one in about["anyOf"])
    values = about.get("enum", [about["const"]] if "const" in about else [])
    return ", ".join(f"`{value}`" for value in values) or _plain_type(about)


def _plain_type(about: Mapping[str, Any]) -> str:
    if about["type"] == "array":
        return f"list of {_type(about['items'])}"
    if about["type"] == "object":
        return f"table of {_type(about['additionalProperties'])} by name"
    is_hash = about.get("pattern", "").startswith("^[0-9a-f]{64}")
    return "SHA-256" if is_hash else f"{about['type']}{_bounds(about)}"


def _bounds(about: Mapping[str, Any]) -> str:
    if "minimum" in about:
        return f", at least {about['minimum']}"
    return f", at most {about['maxLength']} characters" if "maxLength" in about else ""


if __name__ == "__main__":
    print(format_page(), end="")  # noqa: T201
