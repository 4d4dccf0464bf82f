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


# The device is kept busy while the host launches the call: this long at first, longer if that was too short.
_LEAD_SECONDS = 1e-3
_MOST_LEAD_SECONDS = 4e-3
# At least the clock rate of any GPU.
_CYCLES_PER_SECOND = 2e9


def stopwatch(device: torch.device, *, is_alone: bool = True) -> Callable[[Callable[[], object]], float]:
    """A function that makes a call and returns the seconds that the device took for it, without those of launching it.

    Not `is_alone`: other ranks take part in the call, which then includes the launch. Devices that are kept busy end
    that at different times, and would wait for each other.
    """
    if device.type != "cuda":
        return _on_host
    return _OnStream().seconds if is_alone else _on_idle_stream


def _on_host(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class _OnStream:
    """Times calls on a stream that is busy when they are launched.

    On an idle stream the first event is reached at once, and the time of the launch is counted: 5 to 25 us of a kernel
    that may take 60.
    """

    def __init__(self) -> None:
        self._lead_seconds = _LEAD_SECONDS

    def seconds(self, call: Callable[[], object]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(self._lead_seconds * _CYCLES_PER_SECOND))
        begin.record()
        call()
        end.record()
        if begin.query():
            # The device was idle before the launch ended. The next call gets a longer lead.
            self._lead_seconds = min(2 * self._lead_seconds, _MOST_LEAD_SECONDS)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def _on_idle_stream(call: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
