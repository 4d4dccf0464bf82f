"""How fast training is on a machine that is known by its ceilings alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpcai500.methodology.arithmetic import arithmetic_of

# Lowest and highest share of an accelerator's peak that published trainings of these two workloads reached; analytic
# count of operations (24.3 and 1070 GFLOP a sample). docs/cost-model.md has each.
ACHIEVED = {"fp32": (0.41, 0.57), "tf32": (0.146, 0.233), "mixed": (0.139, 0.233)}


@dataclass(frozen=True)
class Span:
    """A number that is not known exactly: its ends, and a guess between them."""

    low: float
    expected: float
    high: float

    def __post_init__(self) -> None:
        assert self.low <= self.expected <= self.high

    @classmethod
    def exactly(cls, value: float) -> Span:
        """Known."""
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high

    def times(self, factor: float) -> Span:
        """All three, times a positive factor."""
        return Span(self.low * factor, self.expected * factor, self.high * factor)

    def document(self) -> dict[str, float]:
        """As plain JSON."""
        return {"low": self.low, "expected": self.expected, "high": self.high}


def names_of(precision: str) -> tuple[str, ...]:
    """By which a machine's file may call the precision of a recipe, the closest first."""
    name = arithmetic_of(precision)
    return (name, "mixed") if name in ("bf16", "fp16") else (name,)


def ceiling_of(ceilings: Mapping[str, float], precision: str) -> tuple[str, float] | None:
    """The highest of `ceilings` that is for `precision`, with its name: `fp32`, `GEMM mixed`, `conv bf16`."""
    for name in names_of(precision):
        fits = {key: value for key, value in ceilings.items() if key.split()[-1] == name}
        if fits:
            return max(fits.items(), key=lambda item: item[1])
    return None


def achieved_span(ceiling: float, precision: str) -> Span:
    """FLOPS that training may reach under `ceiling`; the guess is the geometric mean of `ACHIEVED`."""
    low, high = ACHIEVED[names_of(precision)[-1]]
    return Span(low * ceiling, math.sqrt(low * high) * ceiling, high * ceiling)
