"""What a device did at each moment, from the works that ran on its streams: each moment counts once.

Where several run at once, arithmetic goes before communication, and communication before copies: a copy beside a kernel
costs nothing, and a sum over ranks is only then in the way when nothing else runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
KINDS = (COMPUTE, COMMUNICATION, COPY)


@dataclass(frozen=True)
class Stretch:
    """A time in which the device did one kind of thing; seconds."""

    start: float
    end: float
    kind: str

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.start


def timeline(works: Iterable[Stretch]) -> list[Stretch]:
    """One after the other, what `works` that may overlap did; nothing stands where the device was idle."""
    edges = sorted((moment, step, work.kind) for work in works for moment, step in ((work.start, 1), (work.end, -1)))
    running = dict.fromkeys(KINDS, 0)
    found: list[Stretch] = []
    for (moment, step, kind), following in pairwise([*edges, (float("inf"), 0, "")] if edges else []):
        running[kind] += step
        now = next((kind for kind in KINDS if running[kind]), None)
        if now and following[0] > moment:
            _append(found, Stretch(moment, following[0], now))
    return found


def gaps(stretches: Sequence[Stretch], rounding: float = 0.0) -> list[tuple[float, float]]:
    """(start, end) of each time between two of `stretches` in which the device did nothing for more than `rounding`."""
    return [(one.end, two.start) for one, two in pairwise(stretches) if two.start - one.end > rounding]


def seconds_of(stretches: Iterable[Stretch]) -> dict[str, float]:
    """By kind."""
    sums = dict.fromkeys(KINDS, 0.0)
    for one in stretches:
        sums[one.kind] += one.seconds
    return sums


def lane(stretches: Sequence[Stretch], start: float, end: float, pieces: int) -> list[list[float]]:
    """[seconds since `start`, fraction of each of `KINDS`] of `pieces` equal parts of the time up to `end`."""
    length = (end - start) / pieces
    rows = [[0.0] * len(KINDS) for _ in range(pieces)]
    for one in stretches:
        low, high = max(one.start, start) - start, min(one.end, end) - start
        place = KINDS.index(one.kind)
        for number in range(max(0, int(low / length)), min(pieces, int(high / length) + 1) if high > low else 0):
            inside = min(high, (number + 1) * length) - max(low, number * length)
            rows[number][place] += max(0.0, inside) / length
    return [[round(number * length, 9), *(round(min(1.0, part), 6) for part in row)] for number, row in enumerate(rows)]


def _append(found: list[Stretch], one: Stretch) -> None:
    if found and found[-1].kind == one.kind and found[-1].end == one.start:
        found[-1] = Stretch(found[-1].start, one.end, one.kind)
    else:
        found.append(one)
