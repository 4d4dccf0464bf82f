"""Results as Markdown: from the documents alone, whichever module made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# What a column's numbers are divided by, and its heading, by the end of its key.
_UNITS = {
    "analytic_flops_per_second": (1e12, "TFLOPS (analytic)"),
    "flops_per_second": (1e12, "TFLOPS"),
    "bytes_per_second": (1e9, "GB/s"),
    "per_second": (1.0, None),
}
_HIDDEN = {"met", "target"}


def part_lines(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    """One part: when and of what, its ratios, its tables."""
    yield f"### {name}"
    yield ""
    source = f"commit `{part['commit']}`" if part["commit"] else "an unknown commit"
    quick = ", **quick: tiny shapes, no measurement**" if part["quick"] else ""
    yield f"{part['date'][:10]}, {source}, {part['rounds']} rounds, {number(part['seconds'])} s{quick}."
    yield ""
    if part["error"]:
        yield f"Not measured: {part['error']}"
        yield ""
        return
    if last := part.get("last_error"):
        yield f"A later attempt failed ({last['date'][:10]}): {last['error']}"
        yield ""
    found = list(ratios(part["result"]))
    if found:
        yield from ratio_lines(found)
        yield ""
    for title, rows in tables(part["result"]):
        yield f"{title}:"
        yield ""
        yield from row_lines(rows)
        yield ""


def ratios(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every row that has a rival or a target, wherever a module put it."""
    if isinstance(document, Mapping):
        if "met" in document and "rival" in document:
            yield document
            return
        document = list(document.values())
    if isinstance(document, Sequence) and not isinstance(document, str):
        for one in document:
            yield from ratios(one)


def tables(document: Any) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Title and rows of every table of flat rows."""
    for title, rows in (document.get("tables") or {}).items() if isinstance(document, Mapping) else ():
        if rows:
            yield title, rows


def ratio_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table of ratios; above 1, ours is the faster."""
    yield "| case | ours | rival | value | least to greatest | target | |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        value = row.get("value")
        spread = "" if row.get("least") is None else f"{number(row['least'])} to {number(row['greatest'])}"
        shown = number(value) if value is not None else f"not measured: {row.get('reason') or 'no reason given'}"
        cells = (row.get("case"), row.get("ours"), row.get("rival"), shown, spread, target(row), verdict(row))
        yield _line(cells)


def row_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table with a column for each key that any row has."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in _HIDDEN]
    keys = [key for key in keys if any(row.get(key) is not None for row in rows)]
    yield _line([_heading(key) for key in keys])
    yield "|" + "---|" * len(keys)
    for row in rows:
        yield _line([_scaled(key, row.get(key)) for key in keys])


def verdict(row: Mapping[str, Any]) -> str:
    """In a word; nothing where nothing was promised."""
    if not row.get("target"):
        return ""
    unjudged = "not measured" if row.get("value") is None else "not judged"
    return {True: "met", False: "**missed**", None: unjudged}[row["met"]]


def target(row: Mapping[str, Any]) -> str:
    """The bound in words."""
    bounds = row.get("target") or {}
    words = [f"at least {number(bounds['least'])}"] if "least" in bounds else []
    words += [f"at most {number(bounds['most'])}"] if "most" in bounds else []
    return ", ".join(words)


def number(value: Any) -> str:
    """At most four digits that count; words as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int) or value.is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _unit(key: str) -> tuple[float, str]:
    factor, heading = next((unit for end, unit in _UNITS.items() if key.endswith(end)), (1.0, None))
    return factor, heading or key.replace("_per_second", "/s").replace("_", " ")


def _heading(key: str) -> str:
    return _unit(key)[1]


def _scaled(key: str, value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value / _unit(key)[0]) if is_number else number(value)


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(number(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
