"""Weak scaling (V2.0 section 7.4 and Fig. 12): the same work a process, more processes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpcai500.errors import UsageError


@dataclass(frozen=True)
class Scaled:
    """One number of processes, compared with the smallest that was measured."""

    speedup: float
    parallel_efficiency: float


def weak_scaling(rates: Mapping[int, float]) -> dict[int, Scaled]:
    """Speed-up and parallel efficiency for each number of processes.

    With the smallest number of processes, b, as the base, as V2.0 takes its single node of 8 GPUs:

        speed-up of n   = rate(n) / rate(b)
        efficiency of n = (rate(n) / n) / (rate(b) / b)

    Args:
        rates: images a second (or FLOPS, which is the same thing times a constant) by number of processes, where each
            process does as much in a step whatever their number.

    Raises:
        UsageError: there is nothing to compare, or a rate is no positive number.
    """
    for processes, rate in rates.items():
        if processes < 1 or not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"scaling: expected a positive rate of one process or more, got {rate} of {processes}")
    if len(rates) < 2:
        raise UsageError(f"scaling: expected two numbers of processes or more, got {len(rates)}")
    base = min(rates)
    alone = rates[base] / base
    return {n: Scaled(rates[n] / rates[base], rates[n] / n / alone) for n in sorted(rates)}
