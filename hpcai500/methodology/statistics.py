"""Statistics of few runs: quartiles and medians, confidence intervals, limits, equivalence, and spread.

Intervals have a confidence of 95 % unless stated otherwise.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from hpcai500.errors import UsageError
from hpcai500.methodology.trials import summarise

# ----------------------------------------------------------------------------------------------------
# Quartiles, and medians with their intervals, whatever the distribution.


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile of `values`, by linear interpolation; a single value is both."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


CONFIDENCE = 0.95
# The range of n values contains the median with probability 1 - 2^(1-n): 94 % of five, 97 % of six.
LEAST_VALUES = 6


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The confidence interval of the median of `values` by order statistics, for any distribution.

    From the value of rank floor(n/2 - z sqrt(n)/2) to that of rank ceil(1 + n/2 + z sqrt(n)/2), the first being rank 1;
    z is the normal distribution's quantile, 1.96 for 95 % (Hoefler and Belli, "Scientific benchmarking of parallel
    computing systems", SC15, section 3.1.3). For few values it is their whole range, which for fewer than six has less
    than 95 % confidence.
    """
    ordered = sorted(values)
    half = statistics.NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - half) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return ordered[low], ordered[high]


# ----------------------------------------------------------------------------------------------------
# An unbiased sample of a stream of unknown length, in bounded space.


T = TypeVar("T")


class Reservoir(Generic[T]):
    """Keeps `capacity` items of a stream, each with the same probability (Vitter 1985, algorithm R).

    All of them are kept as long as they fit. The choice is the same in every run.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen = 0
        self.kept: list[T] = []
        self._random = random.Random(0).random  # noqa: S311 - a sample, not a secret

    def add(self, item: T) -> None:
        """Take the next item of the stream."""
        self.seen += 1
        if len(self.kept) < self.capacity:
            self.kept.append(item)
            return
        place = int(self._random() * self.seen)
        if place < self.capacity:
            self.kept[place] = item

    def __iter__(self) -> Iterator[T]:
        return iter(self.kept)


def weighted_quantile(values: Iterable[tuple[float, float]], share: float) -> float:
    """The smallest value at which `share` of the weight is reached; `values` (value, weight) must not be empty."""
    ordered = sorted(values)
    limit = share * sum(weight for _, weight in ordered)
    reached = 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= limit:
            return value
    return ordered[-1][0]


# ----------------------------------------------------------------------------------------------------
# Confidence intervals of a mean, and of the difference of two means.
#
# Runs are taken as draws from a normal distribution of unknown variance. For a mean this gives Student's interval, for
# a difference of two means, whose variances may differ, Welch's (B. L. Welch, Biometrika 34, 1947).


@dataclass(frozen=True)
class Interval:
    """An interval that contains the true value with probability `confidence`; the rest has the values' unit."""

    mean: float
    low: float
    high: float
    confidence: float

    def contains(self, value: float) -> bool:
        """Whether `value` lies in the interval, its ends included."""
        return self.low <= value <= self.high

    def within(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Student's interval of the mean of `values`: mean -/+ t s / sqrt(n) with n - 1 degrees of freedom.

    None for fewer than two values, which do not show how they vary.

    Raises:
        UsageError: `confidence` is not between 0 and 1.
    """
    _require_probability(confidence)
    if len(values) < 2:
        return None
    squared_error = statistics.variance(values) / len(values)
    return _interval(statistics.fmean(values), squared_error, len(values) - 1, confidence)


def difference_interval(
    one: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Welch's interval of mean(other) - mean(one); None if either has fewer than two values.

    Raises:
        UsageError: `confidence` is not between 0 and 1.
    """
    _require_probability(confidence)
    if min(len(one), len(other)) < 2:
        return None
    first = statistics.variance(one) / len(one)
    second = statistics.variance(other) / len(other)
    difference = statistics.fmean(other) - statistics.fmean(one)
    degrees = _welch_degrees(first, len(one), second, len(other))
    return _interval(difference, first + second, degrees, confidence)


def student_t_quantile(p: float, degrees: float) -> float:
    """The value that a variable with Student's t distribution stays below with probability `p`.

    Raises:
        UsageError: `p` is not between 0 and 1, or the degrees of freedom are not positive.
    """
    _require_probability(p)
    if not (degrees > 0 and math.isfinite(degrees)):
        raise UsageError(f"Student's t: expected more than 0 degrees of freedom, got {degrees}")
    from scipy.special import stdtrit  # here, because most commands start without it

    return float(stdtrit(degrees, p))


def _require_probability(p: float) -> None:
    if not 0 < p < 1:
        raise UsageError(f"expected a probability between 0 and 1, got {p}")


def _interval(mean: float, squared_error: float, degrees: float, confidence: float) -> Interval:
    reach = student_t_quantile((1 + confidence) / 2, degrees) * math.sqrt(squared_error) if squared_error else 0.0
    return Interval(mean, mean - reach, mean + reach, confidence)


def _welch_degrees(first: float, first_count: int, second: float, second_count: int) -> float:
    """Degrees of freedom of the sum of two squared errors (Welch and Satterthwaite)."""
    if first + second == 0:
        return float(first_count + second_count - 2)
    # Shares of the sum, because squares of small variances would underflow.
    share = first / (first + second)
    return 1 / (share**2 / (first_count - 1) + (1 - share) ** 2 / (second_count - 1))


# ----------------------------------------------------------------------------------------------------
# Contracted values with a tolerance, and the margin of a measured value (docs/acceptance.md).


Statistic = Literal["every", "mean", "median"]
# Rounding of a sum, or of 0.95 in binary, is not a breach of a contract.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Limits:
    """A contracted value and how far a measured one may lie from it, both ends included.

    Attributes:
        reference: the contracted value, above 0.
        lower: fraction of it (0 or below) by which a value may be lower; None for no limit.
        upper: fraction of it (0 or above) by which a value may be higher; None for no limit.
    """

    reference: float
    lower: float | None
    upper: float | None

    @property
    def lowest(self) -> float | None:
        return None if self.lower is None else self.reference * (1 + self.lower)

    @property
    def highest(self) -> float | None:
        return None if self.upper is None else self.reference * (1 + self.upper)

    def margin(self, measured: float) -> float:
        """Distance of `measured` from the nearest limit, as a fraction of the reference; negative outside.

        It does not depend on the unit.
        """
        share = measured / self.reference
        room = []
        if self.lower is not None:
            room.append(share - (1 + self.lower))
        if self.upper is not None:
            room.append(1 + self.upper - share)
        least = min(room)
        return 0.0 if abs(least) <= ROUNDING else least

    def holds(self, measured: float) -> bool:
        """Whether `measured` is accepted: its margin is 0 or more."""
        return self.margin(measured) >= 0

    def within(self, low: float, high: float) -> bool:
        """Whether a limit lies strictly between `low` and `high`."""
        return any(limit is not None and low < limit < high for limit in (self.lowest, self.highest))


def compared_value(values: Sequence[float], statistic: Statistic, limits: Limits) -> float:
    """The one number of `values` that is compared with `limits`.

    `every` takes the value with the least margin, `median` the median, and `mean` the arithmetic mean without the
    highest and the lowest of three values or more (V2.0 section 5.3.2).
    """
    if statistic == "every":
        return min(values, key=lambda value: (limits.margin(value), value))
    return statistics.median(values) if statistic == "median" else summarise(values).mean


# The t of three degrees of freedom or fewer is so large that the interval says nothing.
LEAST_OF_INTERVAL = 5


def least_of_interval(statistic: Statistic, confidence: float = CONFIDENCE) -> int:
    """How many values an interval of the statistic needs: six for a median at 95 %, as their range must contain it."""
    if statistic == "median":
        return max(LEAST_OF_INTERVAL, math.ceil(1 - math.log2(1 - confidence)))
    return LEAST_OF_INTERVAL


def compared_interval(
    values: Sequence[float], statistic: Statistic, confidence: float = CONFIDENCE, *, positive: bool = True
) -> tuple[float, float] | None:
    """The confidence interval of the mean of all `values`, or of their median; None if there is none.

    A mean's is Student's, a median's is by order statistics; there is none of too few values (`least_of_interval`).
    Under `every`, nothing is estimated. Rates and times, which are `positive`, have it on a logarithmic scale: the
    interval of the geometric mean, which the unit does not change and which never reaches 0 (J. M. Bland and D. G.
    Altman, BMJ 312, 1996, p. 1079). A share's or a quality's is on its own scale, and not below 0.
    """
    if statistic == "every" or len(values) < least_of_interval(statistic, confidence):
        return None
    if statistic == "median":
        return median_interval(values, confidence)
    if positive:
        if min(values) <= 0:
            return None
        # Relative to the largest, so that logarithms are small, and no unit is better than another.
        scale = max(values)
        interval = mean_interval([math.log(value / scale) for value in values], confidence)
        return (scale * math.exp(interval.low), scale * math.exp(interval.high)) if interval else None
    interval = mean_interval(values, confidence)
    return (max(0.0, interval.low), interval.high) if interval else None


def least_mean_time(seconds: float, confidence: float = CONFIDENCE) -> float:
    """The lower bound of the mean time between failures after `seconds` without one: seconds / -ln(1 - confidence).

    Of the exponential model, in which failures come at a constant rate: with a shorter mean time, `seconds` without a
    failure would have a probability below 1 - confidence (NIST/SEMATECH e-Handbook of Statistical Methods, 8.4.5.1).
    """
    _require_probability(confidence)
    return seconds / -math.log1p(-confidence)


# ----------------------------------------------------------------------------------------------------
# Whether a repetition gives the same result (V2.0 section 3.3): equivalence, not just the absence of a difference.
#
# Two means are equivalent if the whole confidence interval of their difference lies within a tolerance: two
# one-sided tests (D. J. Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987). It is not enough that the
# interval contains 0: that of few runs nearly always does.


Verdict = Literal["replicated", "not replicated", "inconclusive"]
REPLICATED: Verdict = "replicated"
NOT_REPLICATED: Verdict = "not replicated"
INCONCLUSIVE: Verdict = "inconclusive"


@dataclass(frozen=True)
class Spread:
    """One metric over all runs of one side; `variation` is unitless, and None for one run or a mean of 0."""

    runs: int
    mean: float
    variation: float | None


@dataclass(frozen=True)
class Equivalence:
    """One metric of two sides.

    Attributes:
        ratio: mean(other) / mean(one); None if that is 0.
        difference: mean(other) - mean(one), with its interval; None if a side has fewer than two runs.
        limit: the largest difference that counts as none, in the metric's unit.
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
        UsageError: there are no values.
    """
    if not values:
        raise UsageError("expected at least one run, got none")
    mean = statistics.fmean(values)
    defined = len(values) > 1 and mean != 0
    return Spread(len(values), mean, statistics.stdev(values) / abs(mean) if defined else None)


def equivalence(
    one: Sequence[float], other: Sequence[float], tolerance: float, confidence: float = CONFIDENCE
) -> Equivalence:
    """Whether the means of both sides are equal within `tolerance` x |mean(one)|.

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


# ----------------------------------------------------------------------------------------------------
# Two sides compared: their ratio, and whether they differ by more than the spread of runs of one system.


# Two runs may agree by chance; three begin to show a spread.
LEAST_RUNS = 3


@dataclass(frozen=True)
class Side:
    """One metric over the runs of one side.

    Attributes:
        mean: without the highest and the lowest of three runs or more (V2.0 section 5.3.2).
        deviation: sample standard deviation of all runs; None for one.
        runs: number of runs.
    """

    mean: float
    deviation: float | None
    runs: int


@dataclass(frozen=True)
class Compared:
    """One metric on two sides; unknown is None.

    Attributes:
        ratio: B / A; None if A is 0 or one is unknown.
        exceeds_spread: whether the means are further apart than the sum of both standard deviations; None if a side
            has fewer than three runs.
    """

    a: Side | None
    b: Side | None
    ratio: float | None
    exceeds_spread: bool | None


def side(values: Sequence[float | None]) -> Side | None:
    """The metric over `values`; None if it is unknown for a run."""
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
