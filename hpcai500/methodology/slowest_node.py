"""Which node of a system is the slowest, over all of its runs."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcai500.methodology.stragglers import median_without, stragglers


@dataclass(frozen=True)
class SlowestNode:
    """The node that needs the most time of its own for a step.

    Attributes:
        name: its host name, or what a rank is called where one node ran.
        slowdown: how much more time than the median of the others, as a fraction of it: median over the runs.
        slowest_in: runs in which no other needed as much.
        straggler_in: runs in which it was a straggler (methodology/stragglers.py).
        runs: runs in which it was compared with others.
        nodes: how many were compared.
    """

    name: str
    slowdown: float
    slowest_in: int
    straggler_in: int
    runs: int
    nodes: int


def slowest_node(runs: Sequence[Mapping[str, float]]) -> SlowestNode | None:
    """The slowest of the nodes in `runs`, each of which has the seconds that a node needed for itself in a step.

    Waiting for others is not in them. Runs of fewer than two nodes tell nothing; None where no other is left.
    """
    compared = [dict(run) for run in runs if len(run) > 1 and min(run.values()) > 0]
    if not compared:
        return None
    slowdowns: dict[str, list[float]] = defaultdict(list)
    slowest: dict[str, int] = defaultdict(int)
    straggling: dict[str, int] = defaultdict(int)
    for run in compared:
        ordered = sorted(run.values())
        for name, seconds in run.items():
            others = median_without(ordered, bisect_left(ordered, seconds))
            slowdowns[name].append(seconds / others - 1)
        slowest[max(run, key=lambda name: run[name])] += 1
        names = list(run)
        for position in stragglers(list(run.values())):
            straggling[names[position]] += 1
    worst = max(slowdowns, key=lambda name: statistics.median(slowdowns[name]))
    return SlowestNode(
        name=worst,
        slowdown=statistics.median(slowdowns[worst]),
        slowest_in=slowest[worst],
        straggler_in=straggling[worst],
        runs=len(slowdowns[worst]),
        nodes=len(slowdowns),
    )
