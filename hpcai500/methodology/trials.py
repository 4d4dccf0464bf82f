"""Valid FLOPS of a run (V2.0 section 4.4.1), and the average of many runs of one recipe (section 5.3.2)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.errors import UsageError

# ----------------------------------------------------------------------------------------------------
# Valid FLOPS and its parts.


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise UsageError(what)


def flops_rate(samples: int, flops_per_sample: float, seconds: float) -> float:
    """FLOPS = samples x FLOPs per sample / seconds (V2.0 section 7.2).

    Args:
        samples: number of training samples, each counted once an epoch; padding is not counted.
        flops_per_sample: floating-point operations of one training sample, forward and backward.
        seconds: from the first batch read to the end of the target epochs (V2.0 section 5.3.2).
    """
    _require(samples >= 0, f"samples: expected 0 or more, got {samples}")
    _require(flops_per_sample >= 0, f"flops_per_sample: expected 0 or more, got {flops_per_sample}")
    _require(seconds > 0 and math.isfinite(seconds), f"seconds: expected more than 0, got {seconds}")
    return samples * flops_per_sample / seconds


def penalty_coefficient(achieved_quality: float, target_quality: float, exponent: int) -> float:
    """(achieved quality / target quality)^n (V2.0, equation 2): below 1 for a missed target, above for a passed one."""
    _require(0 <= achieved_quality <= 1, f"achieved_quality: expected 0 to 1, got {achieved_quality}")
    _require(0 < target_quality <= 1, f"target_quality: expected more than 0, at most 1, got {target_quality}")
    _require(exponent >= 1, f"exponent: expected a positive integer, got {exponent}")
    return float((achieved_quality / target_quality) ** exponent)


def valid_flops(flops: float, coefficient: float) -> float:
    """VFLOPS = FLOPS x penalty coefficient (V2.0, equation 1)."""
    _require(
        flops >= 0 and coefficient >= 0, f"expected FLOPS and coefficient of 0 or more, got {flops}, {coefficient}"
    )
    return flops * coefficient


def per_watt(valid_flops_rate: float, mean_watts: float) -> float:
    """VFLOPS per watt = VFLOPS / mean watts of the run (V2.0 section 4.4.1)."""
    _require(mean_watts > 0, f"mean_watts: expected more than 0, got {mean_watts}")
    return valid_flops_rate / mean_watts


# ----------------------------------------------------------------------------------------------------
# Many runs: the highest and the lowest are dropped, the rest is averaged.


@dataclass(frozen=True)
class TrialSummary:
    """One metric over all runs; `variation` is unitless, the rest has the metric's unit."""

    runs: int
    mean: float
    dropped_lowest: float | None
    dropped_highest: float | None
    variation: float | None


# Where the edition does not say how many runs it requires: enough that dropping two leaves one.
_RUNS_WITHOUT_RULES = 3
_DROPPED = 2


def runs_to_plan(least_runs: int | None) -> int:
    """How many runs to plan where an edition requires `least_runs` valid ones (None: it does not say).

    V2.0 section 3.3 asks for more trials than the least number of valid runs, and section 5.3.2 drops two runs. Two
    more than the least number satisfy both, and leave that number in the mean.
    """
    return _RUNS_WITHOUT_RULES if least_runs is None else least_runs + _DROPPED


def summarise(values: Sequence[float]) -> TrialSummary:
    """Arithmetic mean without the highest and the lowest run, and the variation of all runs.

    With fewer than three runs, all are averaged. The variation is the sample standard deviation over the mean of all
    runs (V2.0 section 3.3), None if it is not defined (one run, or a mean of 0).

    Raises:
        UsageError: there are no values, or one is not finite.
    """
    if not values:
        raise UsageError("trials: expected at least one run, got none")
    odd = next((value for value in values if not math.isfinite(value)), None)
    if odd is not None:
        raise UsageError(f"trials: expected a finite number for each run, got {odd}")
    ordered = sorted(values)
    kept = ordered[1:-1] if len(ordered) >= 3 else ordered
    dropped = len(kept) < len(ordered)
    mean_of_all = statistics.fmean(ordered)
    defined = len(ordered) > 1 and mean_of_all != 0
    return TrialSummary(
        runs=len(ordered),
        mean=statistics.fmean(kept),
        dropped_lowest=ordered[0] if dropped else None,
        dropped_highest=ordered[-1] if dropped else None,
        variation=statistics.stdev(ordered) / abs(mean_of_all) if defined else None,
    )
