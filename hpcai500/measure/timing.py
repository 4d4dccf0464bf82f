"""Times a call: on the host or a device, repeated until the confidence interval of the median is tight."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from hpcai500.methodology.statistics import median_interval, quartiles

# ----------------------------------------------------------------------------------------------------
# Repetitions.


# The fewest repetitions whose median is meaningful.
_FEWEST = 3


@dataclass(frozen=True)
class Effort:
    """When to stop repeating.

    Attributes:
        width: half the confidence interval of the median, as a share of the median, that is tight enough.
        least: the fewest repetitions.
        seconds: the time after which repetitions end, tight or not.
        warm_up: runs that are not counted.
        most_seconds: where `least` repetitions would take longer than this, `least` is as many as fit, and three at
            least.
    """

    width: float = 0.01
    least: int = 7
    seconds: float = 2.0
    warm_up: int = 2
    most_seconds: float = math.inf


@dataclass(frozen=True)
class Timing:
    """Seconds of each repetition, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median: it shows other load on the machine."""
        first, third = quartiles(self.seconds)
        return (third - first) / self.median

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, in seconds (`median_interval`)."""
        return median_interval(self.seconds)


def repeat(
    run: Callable[[], float],
    effort: Effort,
    clock: Callable[[], float] = time.perf_counter,
    agree: Callable[[int], int] = lambda needed: needed,
) -> Timing:
    """Call `run`, which returns the seconds that it took, until its median is known well enough, or time is up.

    `agree` gets the number of further repetitions that this rank needs, and returns how many are made: where several
    ranks measure at once, the largest number of all, so that all of them measure until the end.
    """
    first_seconds = 0.0
    for _ in range(effort.warm_up):
        first_seconds = run()
    least = effort.least
    if first_seconds > 0 and math.isfinite(effort.most_seconds):
        least = max(_FEWEST, min(least, int(effort.most_seconds / first_seconds)))
    effort = replace(effort, least=least)
    taken: list[float] = []
    limit = clock() + effort.seconds
    while count := agree(_needed(taken, effort, limit - clock())):
        taken += [run() for _ in range(count)]
    return Timing(tuple(taken))


def _needed(taken: Sequence[float], effort: Effort, left_seconds: float) -> int:
    """The number of further repetitions: half as many again as there are, as far as time allows.

    Testing the interval after each one would stop too early by chance.
    """
    if len(taken) < effort.least:
        return effort.least - len(taken)
    if left_seconds <= 0:
        return 0
    low, high = median_interval(taken)
    if (high - low) / 2 <= effort.width * statistics.median(taken):
        return 0
    each = statistics.fmean(taken)
    affordable = int(left_seconds / each) if each > 0 else len(taken)
    return max(1, min(len(taken) // 2, affordable))


# ----------------------------------------------------------------------------------------------------
# One call on a device.


def stopwatch(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """A function that makes a call and returns the seconds that the device took for it."""
    return _on_stream if device.type == "cuda" else _on_host


def _on_host(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _on_stream(call: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
