"""Where a chain of parts is cut, so that all stages have about equal work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from hpcai500.errors import RecipeError
from hpcai500.measure.flops import FlopsCount
from hpcai500.workloads.models.parts import Part


def work_of(parts: Sequence[Part], count: FlopsCount) -> list[float]:
    """Floating-point operations of each part in a training step, a sample, by the count that results are told by."""
    return [
        math.fsum(
            operator.training_flops
            for operator in count.operators
            if any(f"{operator.name}.".startswith(f"{name}.") for name in part.names)
        )
        for part in parts
    ]


def cut(work: Sequence[float], stages: int) -> list[range]:
    """Cut consecutive parts with this `work` into `stages` so that the largest has as little as possible.

    Raises:
        RecipeError: there are fewer parts than stages.
    """
    if stages > len(work):
        raise RecipeError(
            f"programming.stages: this model can be cut into at most {len(work)} parts, got {stages}; take fewer"
        )
    sums = [0.0, *accumulate(work)]
    # Of the parts from each one on, in as many stages as were looked at: the largest stage, and where the first ends.
    best = [(sums[-1] - done, len(work)) for done in sums]
    ends = [best]
    for count in range(2, stages + 1):
        best = [
            min(
                (max(sums[end] - sums[start], ends[-1][end][0]), end) for end in range(start + 1, len(work) - count + 2)
            )
            if start <= len(work) - count
            else (math.inf, len(work))
            for start in range(len(work) + 1)
        ]
        ends.append(best)
    found, start = [], 0
    for best in reversed(ends):
        found.append(range(start, best[start][1]))
        start = best[start][1]
    return found
