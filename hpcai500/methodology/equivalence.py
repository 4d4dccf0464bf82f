"""Whether a repetition comes out the same (V2.0 section 3.3): equivalence, not the mere absence of a difference.

Two means are called the same if the whole confidence interval of their difference lies within a tolerance: two
one-sided tests (D. J. Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987). That an interval holds 0 is not
enough: that of two runs always does.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcai500.errors import UsageError
from hpcai500.methodology.intervals import CONFIDENCE, Interval, difference_interval

Verdict = Literal["replicated", "not replicated", "inconclusive"]
REPLICATED: Verdict = "replicated"
NOT_REPLICATED: Verdict = "not replicated"
INCONCLUSIVE: Verdict = "inconclusive"


@dataclass(frozen=True)
class Spread:
    """One metric over all runs of one side; `variation` is unitless: None for one run, or a mean of 0."""

    runs: int
    mean: float
    variation: float | None


@dataclass(frozen=True)
class Equivalence:
    """One metric of two sides.

    Attributes:
        one: the first side.
        other: the second.
        ratio: mean(other) / mean(one); None where that is 0.
        difference: mean(other) - mean(one), with its interval; None where a side has fewer than two runs.
        limit: the largest difference that is none, in the metric's unit.
        verdict: `replicated` if the interval lies within -limit to limit, `not replicated` if it lies outside,
            `inconclusive` if it crosses a limit: too few runs, or too different ones.
    """

    one: Spread
    other: Spread
    ratio: float | None
    difference: Interval | None
    limit: float
    verdict: Verdict


def spread(values: Sequence[float]) -> Spread:
    """Mean and variation of all of `values`.

    Raises:
        UsageError: there are none.
    """
    if not values:
        raise UsageError("expected at least one run, got none")
    mean = statistics.fmean(values)
    defined = len(values) > 1 and mean != 0
    return Spread(len(values), mean, statistics.stdev(values) / abs(mean) if defined else None)


def equivalence(
    one: Sequence[float], other: Sequence[float], tolerance: float, confidence: float = CONFIDENCE
) -> Equivalence:
    """Whether the mean of `other` is that of `one`, but for `tolerance` x |mean(one)|.

    Raises:
        UsageError: a side has no values, or the tolerance is negative.
    """
    if not tolerance >= 0:
        raise UsageError(f"tolerance: expected 0 or more, got {tolerance}")
    first, second = spread(one), spread(other)
    difference = difference_interval(one, other, confidence)
    limit = tolerance * abs(first.mean)
    ratio = second.mean / first.mean if first.mean else None
    return Equivalence(first, second, ratio, difference, limit, _verdict(difference, limit))


def quality_tolerance(tolerance: float, exponent: float) -> float:
    """The relative change of quality that changes the penalty coefficient by the share `tolerance`.

    (1 + d)^n = 1 + tolerance: 0.98 % for 5 % and n = 5, 0.49 % for n = 10.
    """
    return float((1 + tolerance) ** (1 / exponent) - 1)


def _verdict(difference: Interval | None, limit: float) -> Verdict:
    if difference is None:
        return INCONCLUSIVE
    if difference.within(-limit, limit):
        return REPLICATED
    return NOT_REPLICATED if difference.low > limit or difference.high < -limit else INCONCLUSIVE
