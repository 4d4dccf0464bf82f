"""A replication for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.methodology.equivalence import Spread
from hpcai500.results.columns import aligned
from hpcai500.results.replication.comparison import Replication, Row
from hpcai500.results.replication.side import Side
from hpcai500.results.report.words import UNKNOWN, quantity, share, short

_HEAD = ("", "original", "repetition", "ratio", "difference [95 % interval]", "allowed", "verdict")
_RIGHT = range(1, len(_HEAD) - 1)
_LONGEST_NOTE = 300


def replication_lines(replication: Replication) -> Iterator[str]:
    """Both sides, what differs, the table, the verdict."""
    yield _side_line("original", replication.one)
    yield _side_line("repetition", replication.other)
    yield f"system      {'the same' if replication.same_system else 'another one: quality decides, speed is told'}"
    yield from (f"note        {short(note, _LONGEST_NOTE)}" for note in replication.notes)
    yield ""
    yield from aligned([_HEAD, *map(_cells, replication.rows)], right=_RIGHT)
    yield "(variation: standard deviation / mean of all runs; verdicts in brackets do not decide)"
    yield ""
    yield f"verdict     {replication.verdict}"
    yield from (f"            {short(reason, _LONGEST_NOTE)}" for reason in replication.reasons)


def _side_line(name: str, side: Side) -> str:
    who = f"{side.manifest.organisation}, {side.manifest.system}" if side.manifest else "a campaign on disk"
    runs = f"{len(side.results)} of {len(side.campaign.trials)} runs, {len(side.campaign.attempts)} attempts"
    return f"{name:11} {side.path}: {who}; {runs}; level {side.level or 'none'}"


def _cells(row: Row) -> tuple[str, ...]:
    found, unit = row.found, row.metric.unit
    return (
        row.metric.name,
        _spread(found.one, unit),
        _spread(found.other, unit),
        UNKNOWN if found.ratio is None else f"{found.ratio:.4f}",
        _difference(row),
        f"±{_number(found.limit, unit)}",
        found.verdict if row.decides else f"({found.verdict})",
    )


def _spread(spread: Spread, unit: str) -> str:
    varies = "" if spread.variation is None else f" ±{spread.variation:.2%}".replace("%", " %")
    return f"{_number(spread.mean, unit)}{varies}"


def _difference(row: Row) -> str:
    found = row.found.difference
    if found is None:
        return f"{UNKNOWN}: fewer than two runs"
    unit = row.metric.unit
    return f"{_number(found.mean, unit)} [{_number(found.low, unit)}, {_number(found.high, unit)}]"


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.6g} s"
    if unit == "fraction":
        return share(value)
    return quantity(value, unit) if unit else f"{value:.4f}"
