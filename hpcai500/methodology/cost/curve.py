"""Weak scaling from one node to very many, predicted; and the walls that it meets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hpcai500.methodology.cost.collectives import all_reduce
from hpcai500.methodology.cost.links import Hockney, Layout, Network
from hpcai500.methodology.cost.step import Exchange, StepCost, Work, predict_step

# Below this share of the ideal, half of the machine is paid for and not used.
LEAST_EFFICIENCY = 0.5
# A wall is looked for that far, whatever part of the curve is drawn.
FARTHEST_NODES = 1 << 20
_FREE = Hockney(0.0, 1e30)


@dataclass(frozen=True)
class Plan:
    """One benchmark on one kind of machine, of any size.

    Attributes:
        work: of each rank, in each step.
        network: links of the machine.
        per_node: ranks of a node.
        topology: as `collectives.all_reduce`, and so are `algorithm` and `columns`.
        compression: as `step.Exchange`, and so are `packing_bytes_per_second`, `overlap` and `overhead_seconds`, which
            steps on one node do not have.
    """

    work: Work
    network: Network
    per_node: int
    topology: str = "flat"
    algorithm: str = "default"
    columns: int = 0
    compression: str = "none"
    packing_bytes_per_second: float | None = None
    overlap: bool = True
    overhead_seconds: float = 0.0

    def step(self, nodes: int) -> StepCost:
        """One step on that many nodes."""
        layout = Layout(nodes, self.per_node)
        # A torus of the recipe's columns needs ranks that fill it; of other sizes, a row is a node.
        columns = self.columns if self.columns and layout.ranks % self.columns == 0 else 0
        summing = all_reduce(self.topology, layout, self.network, algorithm=self.algorithm, columns=columns)
        overhead = self.overhead_seconds if nodes > 1 else 0.0
        exchange = Exchange(summing, self.compression, self.packing_bytes_per_second, self.overlap, overhead)
        return predict_step(self.work, exchange, layout.ranks)

    def efficiency(self, nodes: int) -> float:
        """Against one node, as V2.0 Fig. 12 has it."""
        return min(1.0, self.step(1).seconds / self.step(nodes).seconds)


@dataclass(frozen=True)
class CurvePoint:
    """One size of the machine; efficiency is against one node."""

    nodes: int
    ranks: int
    step: StepCost
    parallel_efficiency: float
    samples_per_second: float
    flops: float


@dataclass(frozen=True)
class Limits:
    """What training itself allows.

    Attributes:
        batch: samples of a step, over all accumulation, on one rank.
        training_samples: of an epoch; None where it is not known.
        largest_batch: with which published recipes reached the target quality; None where none is known.
    """

    batch: int
    training_samples: int | None
    largest_batch: int | None


@dataclass(frozen=True)
class Wall:
    """Where growth ends.

    Attributes:
        nodes: the smallest number that is beyond it.
        binds: `network bandwidth`, `network latency`, `links in the node`, `jitter`, `overhead`, `batch size`,
            `steps per epoch`.
        sentence: the same in words.
    """

    nodes: int
    binds: str
    sentence: str


def predicted_curve(plan: Plan, flops_per_sample: float, samples: int, most_nodes: int) -> list[CurvePoint]:
    """1, 2, 4, … nodes up to `most_nodes`, which is the last point; `samples` are those of a rank's step."""
    points = []
    for nodes in doubling(most_nodes):
        step, ranks = plan.step(nodes), nodes * plan.per_node
        rate = ranks * samples / step.seconds
        points.append(CurvePoint(nodes, ranks, step, plan.efficiency(nodes), rate, rate * flops_per_sample))
    return points


def doubling(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def walls(plan: Plan, limits: Limits) -> list[Wall]:
    """All walls up to `FARTHEST_NODES`, the nearest first."""
    found = [*_efficiency_wall(plan), *_training_walls(plan, limits)]
    return sorted(found, key=lambda wall: wall.nodes)


def _efficiency_wall(plan: Plan) -> Iterator[Wall]:
    nodes = _first(lambda count: plan.efficiency(count) < LEAST_EFFICIENCY)
    if nodes is None:
        return
    binds = binding_cost(plan, nodes)
    step = plan.step(nodes)
    yield Wall(
        nodes,
        binds,
        f"at {nodes} nodes efficiency falls below {LEAST_EFFICIENCY:g}: {binds} binds (a step of "
        f"{step.seconds:.3g} s, of which {step.exposed_seconds:.3g} s are communication that nothing hides)",
    )


def binding_cost(plan: Plan, nodes: int) -> str:
    """Which cost a step on `nodes` nodes would gain most by, if it were nothing."""
    near, far, work = plan.network.within, plan.network.between, plan.work
    without = {
        "network bandwidth": replace(plan, network=Network(near, Hockney(far.latency_seconds, _FREE.bytes_per_second))),
        "network latency": replace(plan, network=Network(near, Hockney(0.0, far.bytes_per_second))),
        "links in the node": replace(plan, network=Network(_FREE, far)),
        "jitter": replace(plan, work=replace(work, jitter_seconds=0.0)),
        "overhead": replace(plan, overhead_seconds=0.0),
    }
    seconds = {name: other.step(nodes).seconds for name, other in without.items()}
    return min(seconds, key=lambda name: seconds[name])


def _training_walls(plan: Plan, limits: Limits) -> Iterator[Wall]:
    batch = limits.batch * plan.per_node
    if limits.largest_batch is not None:
        nodes = limits.largest_batch // batch + 1
        yield Wall(
            nodes,
            "batch size",
            f"at {nodes} nodes a step has {nodes * batch} samples: more than the {limits.largest_batch} of the largest "
            "batch with which published recipes reach the target quality; a smaller batch a rank shortens its step",
        )
    if limits.training_samples is not None:
        nodes = limits.training_samples // batch + 1
        yield Wall(
            nodes,
            "steps per epoch",
            f"at {nodes} nodes a step has {nodes * batch} samples, and an epoch only {limits.training_samples}: there "
            "is less than one step in it",
        )


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest number of nodes for which `holds`, which once true stays true but for steps of a tree."""
    above = next((nodes for nodes in doubling(FARTHEST_NODES) if holds(nodes)), None)
    if above is None or above == 1:
        return above
    low = above // 2
    while above - low > 1:
        middle = math.floor((low + above) / 2)
        low, above = (low, middle) if holds(middle) else (middle, above)
    return above
