"""`hpcai500 scale --predict`: a weak scaling that nobody has run, from the cost model (docs/cost-model.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcai500.editions import benchmark_rules
from hpcai500.layers import Recipe
from hpcai500.machine import Machine
from hpcai500.methodology.cost.curve import CurvePoint, Limits, Plan, Wall, predicted_curve, walls
from hpcai500.methodology.cost.facts import StepFacts
from hpcai500.methodology.cost.gradients import USUAL_BUCKET_BYTES
from hpcai500.methodology.cost.rates import Span
from hpcai500.results.given_files import GivenFile
from hpcai500.results.prediction_machine import Known, network_of, rate_of
from hpcai500.results.prediction_records import MeasuredPoint
from hpcai500.results.show import scaled

# The largest batch with which published recipes reach IC's target quality (docs/large-batch.md); none is known for EWA.
LARGEST_BATCH = {"ic": 65536}
# Published steps on several nodes over what `predict_scaling` says of them: docs/cost-model.md, and a test computes it.
MODEL_ERROR = (1.02, 1.36)
LABEL = "predicted by a model: not measured, no result, not to be scored"


@dataclass(frozen=True)
class Between:
    """Lowest and highest of a point's numbers."""

    parallel_efficiency: tuple[float, float]
    flops: tuple[float, float]
    step_seconds: tuple[float, float]


@dataclass(frozen=True)
class Prediction:
    """A curve, with the ends of what it rests on.

    Attributes:
        benchmark: `ic` or `ewa`.
        machine: its name.
        precision: of the recipe.
        batch_size: of a rank, in a step.
        ranks_per_node: all nodes alike.
        points: for the expected speed of computing.
        slow: the same for the lowest, and
        fast: for the highest; both as `points` where the speed is known.
        walls: the nearest first.
        assumptions: in words.
        measured: records that are drawn beside it, and never mixed with it.
        sources: files that the machine's figures were given in.
    """

    benchmark: str
    machine: str
    precision: str
    batch_size: int
    ranks_per_node: int
    points: tuple[CurvePoint, ...]
    slow: tuple[CurvePoint, ...]
    fast: tuple[CurvePoint, ...]
    walls: tuple[Wall, ...]
    assumptions: tuple[str, ...]
    measured: tuple[MeasuredPoint, ...] = ()
    sources: tuple[GivenFile, ...] = ()

    def between(self) -> Iterator[Between]:
        """Of each point, what its numbers may be: by the speed of computing, and by the error of the model."""
        for slow, fast in zip(self.slow, self.fast, strict=True):
            late = MODEL_ERROR[1] if slow.nodes > 1 else 1.0
            # Faster computing leaves less to hide communication under.
            efficiency = (fast.parallel_efficiency / late, slow.parallel_efficiency)
            yield Between(efficiency, (slow.flops / late, fast.flops), (fast.step.seconds, slow.step.seconds * late))

    @property
    def wall(self) -> Wall | None:
        """The nearest one."""
        return self.walls[0] if self.walls else None

    def lines(self) -> Iterator[str]:
        """The table for people."""
        yield f"PREDICTED weak scaling of {self.benchmark} on {self.machine}"
        yield f"({LABEL}; efficiency against one node of {self.ranks_per_node} rank(s))"
        yield from (f"signature   {file.sentence}" for file in self.sources)
        yield (
            f"{'nodes':>7} {'ranks':>8} {'samples/s':>11} {'FLOPS':>12} {'efficiency':>10} {'between':>12} {'step':>9} "
            f"{'between':>15} {'exposed':>9}"
        )
        for point, span in zip(self.points, self.between(), strict=True):
            efficiency = "{:.2f}-{:.2f}".format(*span.parallel_efficiency)
            seconds = "{:.3g}-{:.3g} s".format(*span.step_seconds)
            behind = "  behind the wall" if self.wall and point.nodes >= self.wall.nodes else ""
            yield (
                f"{point.nodes:>7} {point.ranks:>8} {point.samples_per_second:>11.4g} "
                f"{scaled(point.flops, 'FLOPS'):>12} {point.parallel_efficiency:>10.2f} {efficiency:>12} "
                f"{point.step.seconds:>7.3g} s {seconds:>15} {point.step.exposed_seconds:>7.3g} s{behind}"
            )
        for one in self.measured:
            yield f"measured    {one.ranks} rank(s): {scaled(one.flops, 'FLOPS')} ({one.record})"
        for number, wall in enumerate(self.walls):
            yield f"{'THE WALL' if number == 0 else 'then':<11} {wall.sentence}"
        if not self.walls:
            yield "THE WALL    none within a million nodes"
        for sentence in self.assumptions:
            yield f"assumed     {sentence}"

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "kind": "prediction",
            "label": LABEL,
            "scoring": False,
            "benchmark": self.benchmark,
            "machine": self.machine,
            "sources": [file.document() for file in self.sources],
            "precision": self.precision,
            "batch_size": self.batch_size,
            "points": [
                {
                    **_plain(point),
                    "parallel_efficiency_between": list(span.parallel_efficiency),
                    "flops_between": list(span.flops),
                    "step_seconds_between": list(span.step_seconds),
                    "behind_the_wall": self.wall is not None and point.nodes >= self.wall.nodes,
                }
                for point, span in zip(self.points, self.between(), strict=True)
            ],
            "wall": asdict(self.wall) if self.wall else None,
            "walls": [asdict(wall) for wall in self.walls],
            "assumptions": list(self.assumptions),
            "measured": [asdict(one) for one in self.measured],
        }


def predict_scaling(
    recipe: Recipe,
    facts: StepFacts,
    machine: Machine,
    most_nodes: int,
    measured: Sequence[MeasuredPoint] = (),
    jitter: float = 0.0,
) -> Prediction:
    """The weak scaling of `recipe` on 1, 2, 4, … `most_nodes` nodes like those of `machine`.

    Args:
        recipe: its size does not matter.
        facts: a step of it.
        machine: whose links and speed; of the speed, the step of the first of `measured` says more.
        most_nodes: last point.
        measured: records of the same work, drawn as such.
        jitter: standard deviation of a rank's step from one to the next, as a share of it.

    Raises:
        UsageError: the machine's file lacks what is needed.
    """
    rate = _rate(machine, recipe, facts, measured)
    network = network_of(machine)
    plans = {
        name: plan_of(recipe, facts, machine, flops, jitter)
        for name, flops in (("slow", rate.value.low), ("expected", rate.value.expected), ("fast", rate.value.high))
    }
    # As the records that it is drawn beside, whose images may have another size.
    each = measured[0].flops_per_sample if measured else facts.training_flops
    curves = {name: tuple(predicted_curve(plan, each, facts.samples, most_nodes)) for name, plan in plans.items()}
    rules = benchmark_rules(recipe.edition, recipe.benchmark)
    known = recipe.problem.dataset == rules.get("dataset")
    limits = Limits(
        facts.samples,
        rules["training_samples"] if known else None,
        LARGEST_BATCH.get(recipe.benchmark) if known else None,
    )
    return Prediction(
        recipe.benchmark,
        machine.name,
        recipe.accelerator.precision,
        facts.samples,
        machine.accelerators_per_node,
        curves["expected"],
        curves["slow"],
        curves["fast"],
        tuple(walls(plans["expected"], limits)),
        (
            rate.sentence,
            network.sentence,
            *communication_sentences(recipe, facts, machine, jitter),
            *([error_sentence()] if most_nodes > 1 else []),
        ),
        tuple(measured),
    )


def plan_of(recipe: Recipe, facts: StepFacts, machine: Machine, flops: float, jitter: float = 0.0) -> Plan:
    """The step of a rank that reaches `flops` on its own, and how its gradients travel on `machine`.

    Raises:
        UsageError: nothing tells how fast the nodes talk.
    """
    way = recipe.communication
    memory = machine.node.bandwidths.get("memory") if machine.node else None
    seconds = facts.flops / flops
    return Plan(
        work=facts.work(seconds, way.bucket_bytes or USUAL_BUCKET_BYTES, jitter * seconds),
        network=network_of(machine).value,
        per_node=machine.accelerators_per_node,
        topology=way.topology,
        algorithm=_algorithm(recipe),
        columns=way.torus_columns,
        compression=way.compression,
        packing_bytes_per_second=memory,
        overhead_seconds=machine.negotiation_seconds.get(recipe.benchmark, 0.0),
    )


def error_sentence() -> str:
    """How far the model was from what was published."""
    return (
        f"published steps on 2 to 8 nodes took {MODEL_ERROR[0]:g} to {MODEL_ERROR[1]:g} times what this model says of "
        "them, and so may these"
    )


def communication_sentences(recipe: Recipe, facts: StepFacts, machine: Machine, jitter: float) -> Iterator[str]:
    """How gradients are taken to travel."""
    way = recipe.communication
    size = way.bucket_bytes or USUAL_BUCKET_BYTES
    total = sum(one.size_bytes for one in facts.gradients)
    yield (
        f"{scaled(total, 'B')} of fp32 gradients in {len(facts.buckets(size))} bucket(s) of at most "
        f"{scaled(size, 'B')}, compression {way.compression}, topology {way.topology}, algorithm {_algorithm(recipe)}; "
        "each leaves when the backward pass has computed it, one after the other"
    )
    if negotiation := machine.negotiation_seconds.get(recipe.benchmark):
        yield f"on several nodes ranks take {negotiation:.4g} s a step to agree on what they sum (negotiation)"
    if jitter:
        yield f"a rank's step varies by {jitter:.1%} (standard deviation), each for itself; all wait for the slowest"
    left_out = (
        "reading input, " + ("" if jitter else "jitter between ranks, ") + "congestion and other jobs, memory limits"
    )
    yield f"not in the model: {left_out}"


def _algorithm(recipe: Recipe) -> str:
    """Gloo has a ring only; NCCL chooses."""
    way = recipe.communication
    return "ring" if way.algorithm == "default" and recipe.accelerator.device == "cpu" else way.algorithm


def _rate(machine: Machine, recipe: Recipe, facts: StepFacts, measured: Sequence[MeasuredPoint]) -> Known[Span]:
    if not measured:
        return rate_of(machine, recipe, facts)
    first = measured[0]
    words = f"a step without communication takes {first.step_seconds_alone:.4g} s, as measured ({first.record})"
    return Known(Span.exactly(facts.flops / first.step_seconds_alone), words)


def _plain(point: CurvePoint) -> dict[str, Any]:
    step = point.step
    return {
        "nodes": point.nodes,
        "ranks": point.ranks,
        "samples_per_second": point.samples_per_second,
        "flops": point.flops,
        "parallel_efficiency": point.parallel_efficiency,
        "step_seconds": step.seconds,
        "compute_seconds": step.alone_seconds,
        "communication_seconds": step.communication_seconds,
        "exposed_seconds": step.exposed_seconds,
    }
