"""Blank steps that were timed on every rank, as the cost model takes them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.methodology.quartiles import quartiles


@dataclass(frozen=True)
class Phases:
    """One step on one rank, in seconds.

    Attributes:
        forward: everything up to the end of the last loss.
        backward: the last backward pass.
        wait: from there until all gradients are averages.
        update: of the optimizer.
    """

    forward: float
    backward: float
    wait: float
    update: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.forward + self.backward + self.wait + self.update


def summarised(ranks: Sequence[Sequence[Phases]]) -> dict[str, Any]:
    """Steps that all ranks began together, rank by rank, as plain JSON.

    `seconds` is the median over steps of the slowest rank's time, `low` and `high` its quartiles; `forward`,
    `backward`, `wait` and `update` are medians over steps of the ranks' mean, scaled to `seconds`; `jitter` is the
    standard deviation of a step among ranks and steps, outliers beyond the quartiles left out: 0.7413 IQR.
    """
    rounds = list(zip(*ranks, strict=True))
    slowest = [max(one.seconds for one in step) for step in rounds]
    seconds = statistics.median(slowest)
    phases = {
        name: statistics.median(statistics.fmean(getattr(one, name) for one in step) for step in rounds)
        for name in ("forward", "backward", "wait", "update")
    }
    scale = seconds / sum(phases.values())
    low, high = quartiles(slowest)
    all_low, all_high = quartiles([one.seconds for step in rounds for one in step])
    return {
        "seconds": seconds,
        "low": low,
        "high": high,
        **{name: value * scale for name, value in phases.items()},
        # Of a normal distribution, the interquartile range is 1.349 standard deviations.
        "jitter": (all_high - all_low) / 1.349,
    }
