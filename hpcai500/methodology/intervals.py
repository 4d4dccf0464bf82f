"""Where the mean of few runs lies: confidence intervals of a mean, and of the difference of two means.

Runs are taken as draws from a normal distribution of unknown variance. For a mean this gives Student's interval, for a
difference of two means, whose variances may differ, Welch's (B. L. Welch, Biometrika 34, 1947).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.errors import UsageError

CONFIDENCE = 0.95
# Least magnitude in the continued fraction: a denominator of 0 would end it.
_TINY = 1e-300
_EPSILON = 2.0**-52


@dataclass(frozen=True)
class Interval:
    """An interval that holds the true value with the probability `confidence`; the rest is in the values' unit."""

    mean: float
    low: float
    high: float
    confidence: float

    def contains(self, value: float) -> bool:
        """Whether `value` lies in it, its ends included."""
        return self.low <= value <= self.high

    def within(self, low: float, high: float) -> bool:
        """Whether all of it lies from `low` to `high`."""
        return low <= self.low and self.high <= high


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Student's interval of the mean of `values`: mean -/+ t s / sqrt(n) with n - 1 degrees of freedom.

    None below two values: one says nothing of how they vary.

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
    """Welch's interval of mean(other) - mean(one); None where either has fewer than two values.

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

    Found by bisection of the upper tail, I_x(v / 2, 1 / 2) / 2 with x = v / (v + t^2) (M. Abramowitz and I. A. Stegun,
    Handbook of Mathematical Functions, 26.5.27 and 26.7.1).

    Raises:
        UsageError: `p` is not between 0 and 1, or there are no degrees of freedom.
    """
    _require_probability(p)
    if not (degrees > 0 and math.isfinite(degrees)):
        raise UsageError(f"Student's t: expected more than 0 degrees of freedom, got {degrees}")
    if p < 0.5:
        return -_bisected(p, degrees)
    return _bisected(1 - p, degrees) if p > 0.5 else 0.0


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), 0 <= x <= 1.

    By the continued fraction of the NIST Digital Library of Mathematical Functions, 8.17.22, which converges fast below
    the mean (a + 1) / (a + b + 2); above it by I_x(a, b) = 1 - I_(1-x)(b, a) (8.17.4).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_fraction(1 - x, x, b, a)
    return _beta_fraction(x, 1 - x, a, b)


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
    # As shares of the sum: squares of small variances would vanish.
    share = first / (first + second)
    return 1 / (share**2 / (first_count - 1) + (1 - share) ** 2 / (second_count - 1))


def _bisected(tail: float, degrees: float) -> float:
    """The t >= 0 above which lies `tail` of the distribution."""
    low, high = 0.0, 1.0
    while _upper_tail(high, degrees) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if _upper_tail(middle, degrees) > tail:
            low = middle
        else:
            high = middle
    return high


def _upper_tail(t: float, degrees: float) -> float:
    """The probability of a value above t >= 0."""
    square = t * t
    if square < degrees:
        # Near the middle, x would be rounded to 1.
        return (1 - incomplete_beta(square / (degrees + square), 0.5, degrees / 2)) / 2
    return incomplete_beta(degrees / (degrees + square), degrees / 2, 0.5) / 2


def _beta_fraction(x: float, rest: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction; `rest` is 1 - x, so that none of its digits are lost."""
    factor = math.exp(a * math.log(x) + b * math.log(rest) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    # Numerators c over denominators d of successive fractions: their quotients, after W. J. Lentz, never overflow.
    d = 1 / _off_zero(1 - (a + b) * x / (a + 1))
    c, fraction, m = 1.0, d, 1
    while True:
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            change *= c * d
        fraction *= change
        if abs(change - 1) <= 2 * _EPSILON:
            return factor * fraction / a
        m += 1


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
