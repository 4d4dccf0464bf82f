"""A replication for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from hpcai500.methodology.equivalence import Spread
from hpcai500.results.columns import aligned
from hpcai500.results.replication.comparison import Replication, Row
from hpcai500.results.replication.side import Side
from hpcai500.results.report.words import UNKNOWN, quantity, share, short

_HEAD = ("", "original", "repetition", "ratio", "verdict")
_DIFFERENCES = ("", "difference", "95 % interval", "allowed")
_WIDTH = 100
_INDENT = " " * 12
_LONGEST_NOTE = 300


def replication_lines(replication: Replication) -> Iterator[str]:
    """Both sides, what differs, the table, the verdict."""
    yield from _side_lines("original", replication.one)
    yield from _side_lines("repetition", replication.other)
    yield f"system      {'the same' if replication.same_system else 'another one: quality decides, speed is told'}"
    for note in replication.notes:
        yield from _wrapped("note", note)
    yield ""
    yield from aligned([_HEAD, *map(_cells, replication.rows)], right={1, 2, 3})
    yield ""
    yield from aligned([_DIFFERENCES, *map(_difference, replication.rows)], right={1, 2, 3})
    yield ""
    yield "(variation: standard deviation / mean of all runs; verdicts in brackets do not decide)"
    yield ""
    yield f"verdict     {replication.verdict}"
    for reason in replication.reasons:
        yield from _wrapped("", reason)


def _wrapped(name: str, text: str) -> list[str]:
    line, first = short(text, _LONGEST_NOTE), f"{name:12}"
    return wrap(
        line, _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )


def _side_lines(name: str, side: Side) -> list[str]:
    who = f"{side.manifest.organisation}, {side.manifest.system}" if side.manifest else "a campaign on disk"
    runs = f"{len(side.results)} of {len(side.campaign.trials)} runs, {len(side.campaign.attempts)} attempts"
    level = "unknown" if side.no_level else (side.level or "none") + ("" if side.verification else " by its recipe")
    return _wrapped(name, f"{side.path}: {who}; {runs}; level {level}")


def _cells(row: Row) -> tuple[str, ...]:
    found, unit = row.found, row.metric.unit
    return (
        row.metric.name,
        _spread(found.one, unit),
        _spread(found.other, unit),
        UNKNOWN if found.ratio is None else f"{found.ratio:.4f}",
        found.verdict if row.decides else f"({found.verdict})",
    )


def _spread(spread: Spread, unit: str) -> str:
    varies = "" if spread.variation is None else f" ±{spread.variation:.2%}".replace("%", " %")
    return f"{_number(spread.mean, unit)}{varies}"


def _difference(row: Row) -> tuple[str, ...]:
    found, unit = row.found.difference, row.metric.unit
    allowed = f"±{_number(row.found.limit, unit)}"
    if found is None:
        return row.metric.name, UNKNOWN, "fewer than two runs", allowed
    interval = f"[{_number(found.low, unit)}, {_number(found.high, unit)}]"
    return row.metric.name, _number(found.mean, unit), interval, allowed


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.6g} s"
    if unit == "fraction":
        return share(value)
    return quantity(value, unit) if unit else f"{value:.4f}"
