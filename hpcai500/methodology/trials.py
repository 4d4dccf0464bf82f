"""Many runs of one recipe (V2.0 section 5.3.2): the highest and the lowest are dropped, the rest is averaged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.errors import UsageError


@dataclass(frozen=True)
class TrialSummary:
    """One metric over all runs; `variation` is unitless, the rest has the metric's unit."""

    runs: int
    mean: float
    dropped_lowest: float | None
    dropped_highest: float | None
    variation: float | None


# Where the edition does not say how many runs it wants: enough that dropping two leaves one.
_RUNS_WITHOUT_RULES = 3
_DROPPED = 2


def runs_to_plan(least_runs: int | None) -> int:
    """How many runs to plan where an edition wants `least_runs` valid ones (None: it does not say).

    V2.0 section 3.3 wants more trials than the least valid runs; section 5.3.2 drops two of them. Two more than the
    least are more than it, and leave as many as it in the mean.
    """
    return _RUNS_WITHOUT_RULES if least_runs is None else least_runs + _DROPPED


def summarise(values: Sequence[float]) -> TrialSummary:
    """Arithmetic mean without the highest and the lowest run, and the variation of all runs.

    Fewer than three runs leave nothing to drop: their plain mean is taken. The variation is the sample standard
    deviation over the mean of all runs (V2.0 section 2.3), None where it is not defined (one run, or a mean of 0).

    Raises:
        UsageError: there are no values, or one of them is no finite number.
    """
    if not values:
        raise UsageError("trials: expected at least one run, got none")
    odd = next((value for value in values if not math.isfinite(value)), None)
    if odd is not None:
        raise UsageError(f"trials: expected a finite number of each run, got {odd}")
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
