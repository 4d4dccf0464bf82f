"""Two numbers side by side: their ratio, and whether they differ by more than runs of one system differ anyway."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.methodology.trials import summarise

# Two runs agree or not by chance; of three, a spread begins to tell.
LEAST_RUNS = 3


@dataclass(frozen=True)
class Side:
    """One metric over the runs of one side.

    Attributes:
        mean: without the highest and the lowest of three runs or more (V2.0 section 5.3.2).
        deviation: sample standard deviation of all runs; None for one.
        runs: how many.
    """

    mean: float
    deviation: float | None
    runs: int


@dataclass(frozen=True)
class Compared:
    """One metric on two sides; unknown is None.

    Attributes:
        ratio: B / A; None where A is 0 or one is unknown.
        exceeds_spread: whether the means are further apart than both standard deviations together; None where a side
            has fewer than three runs.
    """

    a: Side | None
    b: Side | None
    ratio: float | None
    exceeds_spread: bool | None


def side(values: Sequence[float | None]) -> Side | None:
    """The metric over `values`; None if a run does not know it."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return Side(summarise(known).mean, deviation, len(known))


def compare(a: Side | None, b: Side | None) -> Compared:
    """Both sides, the ratio B / A, and whether the difference exceeds the spread of the runs."""
    if a is None or b is None:
        return Compared(a, b, None, None)
    ratio = b.mean / a.mean if a.mean else None
    exceeds: bool | None = None
    if min(a.runs, b.runs) >= LEAST_RUNS and a.deviation is not None and b.deviation is not None:
        exceeds = abs(b.mean - a.mean) > a.deviation + b.deviation
    return Compared(a, b, ratio, exceeds)
