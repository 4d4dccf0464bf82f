"""Members as a picture of letters: one for each, or for several, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hpcai500.ensemble.member_status import MemberState, MemberStatus

_MARKS: dict[MemberState, str] = {
    "waiting": ".", "done": "#", "stopped": "s", "cancelled": "c", "failed": "F", "diverged": "D", "lost": "L",
    "unread": "?",
}  # fmt: skip
STUCK = "!"
# Of several members that share a place, that with the first of these marks is shown; digits come after them.
_WORST = "LFD!sc"
_LEAST_WIDTH = 20
_WIDTH = 100

LEGEND = (
    "0-9 running (tenths done), # done, . waiting, ? not read yet,",
    "! silent, s stopped, c cancelled, F failed, D diverged, L lost",
)


def map_lines(
    rows: Sequence[MemberStatus], stuck: Collection[int], epochs: int, width: int | None, most_lines: int | None
) -> Iterator[str]:
    """The map, and what its letters mean.

    Args:
        rows: all members, in order.
        stuck: numbers of those that are silent.
        epochs: of each.
        width: columns of the terminal.
        most_lines: that the map has; where members are more than places, several share one, and the worst is shown.
            None: a place for each.
    """
    places = max(_LEAST_WIDTH, (width or _WIDTH) - len(str(len(rows))) - 2)
    room = places * most_lines if most_lines else len(rows)
    share = -(-len(rows) // room)
    marks = [_mark(row, stuck, epochs) for row in rows]
    shown = "".join(_worst(marks[first : first + share]) for first in range(0, len(marks), share))
    if share > 1:
        # A line begins with a number that people can count from.
        places -= places % 10
    digits = len(str(len(rows)))
    for first in range(0, len(shown), places):
        yield f"{first * share:>{digits}}  {shown[first : first + places].rstrip()}"
    if share > 1:
        yield f"{'':{digits}}  a letter stands for {share} members, and shows the worst of them:"
    yield from (f"{'':{digits}}  {line}" for line in LEGEND)


def _mark(row: MemberStatus, stuck: Collection[int], epochs: int) -> str:
    if row.member in stuck:
        return STUCK
    if row.state == "running":
        return str(min(9, int(10 * row.progress / epochs)))
    return _MARKS[row.state]


def _worst(marks: Sequence[str]) -> str:
    return min(marks, key=_badness)


def _badness(mark: str) -> tuple[int, str]:
    """Bad ones first, then running ones, the slowest first, then those that wait, and last those that are done."""
    if mark in _WORST:
        return 0, str(_WORST.index(mark))
    return (1, mark) if mark.isdecimal() else (2 + "?.#".index(mark), mark)
