"""From values to places on a drawing, linear or logarithmic, and the ticks beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.results.show import PREFIXES

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """What runs along one side.

    Attributes:
        label: with the unit.
        low: value at the start.
        high: value at the end, above `low`.
        log: logarithmic; `low` is then above 0.
        ticks: values to mark; None chooses them.
    """

    label: str
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None

    def place(self, value: float) -> float:
        """Where `value` lies: 0 at the start, 1 at the end, and no further."""
        if self.log:
            value, low, high = math.log(max(value, self.low)), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def marks(self) -> list[tuple[float, str]]:
        """Ticks and what stands beside them."""
        if self.ticks is not None:
            values = [tick for tick in self.ticks if self.low <= tick <= self.high]
        else:
            values = _decades(self.low, self.high) if self.log else round_values(self.low, self.high)
        return [(value, compact(value)) for value in values]


def spanning(label: str, values: Sequence[float], *, zero: bool = True) -> Axis:
    """A linear axis with room for all of `values`, from 0 if `zero`, that ends at round numbers."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(0.0, low) if zero else low
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = _step(low, high)
    return Axis(label, math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def spanning_decades(label: str, values: Sequence[float], *, margin: float = 1.5) -> Axis:
    """A logarithmic axis with room for all of `values`."""
    return Axis(label, min(values) / margin, max(values) * margin, log=True)


def round_values(low: float, high: float) -> list[float]:
    """Some five round values from `low` to `high`."""
    step = _step(low, high)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def compact(value: float) -> str:
    """`2500000` -> `2.5M`: for ticks, whose unit stands at the axis."""
    for factor, prefix in PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.4g}{prefix}"
    return f"{value:.3g}"


def _step(low: float, high: float) -> float:
    rough = (high - low) / 5
    decade = 10.0 ** math.floor(math.log10(rough))
    return next(step * decade for step in _STEPS if step * decade >= rough * (1 - 1e-9))


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 2:
        finer = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
        return [value for value in finer if low <= value <= high]
    stride = 1 + (last - first) // 7
    return [10.0**power for power in range(first, last + 1, stride)]
