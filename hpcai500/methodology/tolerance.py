"""Contracted values with a tolerance, and how far from its limit a measured value lies (docs/acceptance.md)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcai500.methodology.intervals import mean_interval
from hpcai500.methodology.median_interval import LEAST_VALUES, median_interval
from hpcai500.methodology.trials import summarise

Statistic = Literal["every", "mean", "median"]
# The last digits of a sum, or of 0.95 written in binary, are no breach of a contract.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Limits:
    """A contracted value and how far a measured one may lie from it, both ends included.

    Attributes:
        reference: the contracted value, above 0.
        lower: fraction of it (0 or below) by which a value may be lower; None for any.
        upper: fraction of it (0 or above) by which a value may be higher; None for any.
    """

    reference: float
    lower: float | None
    upper: float | None

    @property
    def lowest(self) -> float | None:
        """The least value that is accepted."""
        return None if self.lower is None else self.reference * (1 + self.lower)

    @property
    def highest(self) -> float | None:
        """The largest value that is accepted."""
        return None if self.upper is None else self.reference * (1 + self.upper)

    def margin(self, measured: float) -> float:
        """Distance of `measured` from the limit that is nearest, as a fraction of the reference; below 0 outside.

        It does not depend on the unit: reference and measured value may be scaled alike.
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


def judged_value(values: Sequence[float], statistic: Statistic, limits: Limits) -> float:
    """The one number of `values` that is held against `limits`.

    `every` takes the value with the least margin, `median` the median, and `mean` the arithmetic mean without the
    highest and the lowest of three values or more (V2.0 section 5.3.2).
    """
    if statistic == "every":
        return min(values, key=lambda value: (limits.margin(value), value))
    return statistics.median(values) if statistic == "median" else summarise(values).mean


def judged_interval(values: Sequence[float], statistic: Statistic) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean of all `values`, or of their median; None where there is none.

    A mean's is Student's, of two values or more; a median's is by order statistics, of six or more. Where every value
    is judged by itself, nothing is estimated.
    """
    if statistic == "mean":
        interval = mean_interval(values)
        return (interval.low, interval.high) if interval else None
    return median_interval(values) if statistic == "median" and len(values) >= LEAST_VALUES else None
