"""How long something takes: warmed up, then repeated until the confidence interval of its median is tight."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# 95 % of a normal distribution.
_Z = 1.96


@dataclass(frozen=True)
class Effort:
    """When to stop.

    Attributes:
        width: half the confidence interval of the median, as a share of it, that is tight enough.
        least: repetitions at least.
        seconds: no more than that, tight or not.
        warm_up: runs that are not counted.
    """

    width: float = 0.01
    least: int = 7
    seconds: float = 2.0
    warm_up: int = 2


@dataclass(frozen=True)
class Timing:
    """Seconds of each repetition, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over median: what a neighbour on the machine shows in."""
        if len(self.seconds) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (third - first) / self.median

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, in seconds (`median_interval`)."""
        return median_interval(self.seconds)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median of `values`, by order statistics: it assumes no distribution.

    Ranks n/2 -+ 1.96 sqrt(n)/2 (Hoefler and Belli, "Scientific benchmarking of parallel computing systems", SC15,
    section 3.1.3); the whole range for few values.
    """
    ordered = sorted(values)
    half = _Z * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return ordered[low], ordered[high]


def repeat(run: Callable[[], float], effort: Effort, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """Call `run`, which returns the seconds that it took, until its median is known well enough, or time is up."""
    for _ in range(effort.warm_up):
        run()
    taken: list[float] = []
    limit = clock() + effort.seconds
    while len(taken) < effort.least or (clock() < limit and not _is_tight(taken, effort.width)):
        taken.append(run())
    return Timing(tuple(taken))


def _is_tight(values: Sequence[float], width: float) -> bool:
    low, high = median_interval(values)
    return (high - low) / 2 <= width * statistics.median(values)
