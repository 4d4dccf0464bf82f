"""Weak scaling (V2.0 section 7.4 and Fig. 12): more processes, each with the same work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hpcai500.errors import UsageError
from hpcai500.methodology.statistics import LEAST_VALUES, median_interval

# The most that half the interval of an estimated efficiency may be, as a part of the estimate.
MOST_UNCERTAINTY = 0.1
# Parallel efficiency exceeds 1 only by the noise of the runs, a few per cent (V2.0 section 7.4). More than that usually
# means slowed base runs.
MOST_EFFICIENCY = 1.05


@dataclass(frozen=True)
class Scaled:
    """One number of processes, compared with the smallest that was measured."""

    speedup: float
    parallel_efficiency: float


@dataclass(frozen=True)
class EfficiencyEstimate:
    """Parallel efficiency from steps without and with communication on the same ranks.

    Attributes:
        value: the median over pairs of steps; None if it cannot be relied on.
        interval: the 95 % confidence interval of that median; None for too few pairs.
        note: why there is no value; None if there is one.
    """

    value: float | None
    interval: tuple[float, float] | None
    note: str | None


def estimate_efficiency(pairs: Sequence[float]) -> EfficiencyEstimate:
    """The efficiency from `pairs`: for each, the time of a step without communication over that of one with it.

    There is no value where it is too uncertain to be of use, or above 1.
    """
    if len(pairs) < LEAST_VALUES:
        return EfficiencyEstimate(None, None, f"pairs of steps timed: {len(pairs)}; {LEAST_VALUES} are needed")
    value, (low, high) = median(pairs), median_interval(pairs)
    detail = f"the median of {len(pairs)} pairs of steps is {value:.2f}, its 95 % interval {low:.2f} to {high:.2f}"
    if (high - low) / 2 > MOST_UNCERTAINTY * value:
        return EfficiencyEstimate(None, (low, high), f"too uncertain: {detail}")
    if value > 1:
        return EfficiencyEstimate(None, (low, high), f"above 1, which communication cannot cause: {detail}")
    return EfficiencyEstimate(value, (low, high), None)


def weak_scaling(rates: Mapping[int, float]) -> dict[int, Scaled]:
    """Speed-up and parallel efficiency for each number of processes.

    The base is the smallest number of processes, b; in V2.0 it is a single node of 8 GPUs:

        speed-up of n   = rate(n) / rate(b)
        efficiency of n = (rate(n) / n) / (rate(b) / b)

    `rates` are images a second, or FLOPS, by number of processes; a process does the same work in a step whatever their
    number.

    Raises:
        UsageError: there are no rates, or one is not positive and finite.
    """
    for processes, rate in rates.items():
        if processes < 1 or not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"scaling: expected a positive rate of one process or more, got {rate} for {processes}")
    if len(rates) < 2:
        raise UsageError(f"scaling: expected two numbers of processes or more, got {len(rates)}")
    base = min(rates)
    alone = rates[base] / base
    return {n: Scaled(rates[n] / rates[base], rates[n] / n / alone) for n in sorted(rates)}
