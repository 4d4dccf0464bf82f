"""What is written down of a comparison: a ratio with its rival, its spread, its target, and whether that is met.

Every part of the results is a document of `tables` (title -> flat rows of numbers and words) and `ratios` (rows made
here); the page is written from nothing else.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from options import Options


@dataclass(frozen=True)
class Target:
    """A bound that was promised; `least` for what shall be large, `most` for what shall be small."""

    least: float | None = None
    most: float | None = None

    def met_by(self, value: float) -> bool:
        """Whether `value` is within; what is no number is not."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def document(self) -> dict[str, float]:
        """As it is written down."""
        return {name: bound for name, bound in (("least", self.least), ("most", self.most)) if bound is not None}


def judged(value: float, target: Target | None, options: Options) -> bool | None:
    """Whether the target is met; None where there is none, or where tiny shapes say nothing about it."""
    return None if target is None or options.quick or options.device.type != "cuda" else target.met_by(value)


def ratio_row(
    case: str,
    seconds: Mapping[str, Sequence[float]],
    ours: str,
    options: Options,
    target: Target | None = None,
    rival: str | None = None,
) -> dict[str, Any]:
    """How many times as fast as `rival` ours is: the median of the rounds' ratios, with the least and the greatest.

    Args:
        case: what was done.
        seconds: of each contestant in each round, as `clock.turns` returns them.
        ours: which contestant.
        options: of the measurement.
        target: what the ratio shall be.
        rival: which contestant; the fastest of the others by default.
    """
    others = [name for name in seconds if name != ours]
    rival = rival or min(others, key=lambda name: statistics.median(seconds[name]))
    ratios = sorted(its / mine for its, mine in zip(seconds[rival], seconds[ours], strict=True))
    return value_row(
        case,
        statistics.median(ratios),
        options,
        target,
        ours=ours,
        rival=rival,
        interval=(ratios[0], ratios[-1]),
        rounds=len(ratios),
    )


def value_row(
    case: str,
    value: float,
    options: Options,
    target: Target | None,
    *,
    rival: str | None,
    ours: str | None = None,
    interval: tuple[float, float] | None = None,
    rounds: int | None = None,
) -> dict[str, Any]:
    """A row of `ratios`: any number that has a rival or a target."""
    return {
        "case": case,
        "ours": ours,
        "rival": rival,
        "value": value,
        "least": interval[0] if interval else None,
        "greatest": interval[1] if interval else None,
        "rounds": rounds,
        "target": target.document() if target else None,
        "met": judged(value, target, options),
    }


def without_rival(case: str, rival: str, reason: str, target: Target | None = None) -> dict[str, Any]:
    """A row of `ratios` that could not be measured, with the reason."""
    return {
        "case": case,
        "ours": None,
        "rival": rival,
        "value": None,
        "least": None,
        "greatest": None,
        "rounds": None,
        "target": target.document() if target else None,
        "met": None,
        "reason": reason,
    }


def first_line(error: BaseException) -> str:
    """What kind of error, and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
