"""`hpcai500 scale --predict`: predicts a weak scaling with the cost model (docs/cost-model.md).

A prediction is not a result and is never scored. It names its assumptions, and gives a range for each number, from the
uncertain computing speed and the model's error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.drawing import figure_files
from hpcai500.errors import UsageError
from hpcai500.files import write_atomically
from hpcai500.layers import Recipe
from hpcai500.machine import Level, Link, Machine, origin_of_run, ranks_of_each_node, why_not_of
from hpcai500.methodology.cost import (
    MOST_TENSORS,
    USUAL_BUCKET_BYTES,
    CurvePoint,
    Hockney,
    Limits,
    Network,
    Plan,
    Span,
    StepFacts,
    Wall,
    achieved_span,
    ceiling_of,
    names_of,
    predicted_curve,
    walls,
)
from hpcai500.recipe import benchmark_rules
from hpcai500.record import Record, iterate
from hpcai500.results.given_files import GivenFile
from hpcai500.results.score import ScoredRun
from hpcai500.text import count, prefix_of, scaled, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------------------------------
# A machine in the cost model: its links and its training speed, each with a sentence on its source.


# Latencies in seconds if a machine's file has only bandwidths: TCP over Ethernet, and links within a node.
_NETWORK_LATENCY, _NODE_LATENCY = 30e-6, 5e-6
# Links within a node, if a machine's file does not describe them.
_FREE = Hockney(0.0, 1e30)


def network_of(machine: Machine, nodes: int) -> tuple[Network, str]:
    """The links between and within `nodes` nodes like those of `machine`, and a sentence that describes them.

    Raises:
        UsageError: there are several nodes, and the speed of the network is unknown.
    """
    between = _link(machine.network, machine.system, _NETWORK_LATENCY) if nodes > 1 else _FREE
    if between is None:
        raise UsageError(
            f"{machine.name}: the speed of its network is unknown: add a table [network] with latency_seconds and "
            "bytes_per_second to its file, or measure it on two nodes: srun -N 2 hpcai500 micro -o micro.json"
        )
    within = _link(machine.node_link, machine.node, _NODE_LATENCY)
    words = [f"a node sends {_in_words(between)}"] if nodes > 1 else []
    if machine.accelerators_per_node > 1:
        words += [f"a rank within its node {_in_words(within)}" if within else "links within a node cost nothing"]
    guessed = (nodes > 1 and machine.network is None) or (
        within and machine.node_link is None and machine.accelerators_per_node > 1
    )
    return Network(within or _FREE, between), ", ".join(words) + (" (latency assumed)" if guessed else "")


def rate_of(machine: Machine, recipe: Recipe, facts: StepFacts) -> tuple[Span, str]:
    """FLOPS that one accelerator reaches in training without communication, by the analytic count of operations.

    They come from published results of this workload on one node, else from the data sheet's peak, else from measured
    ceilings; the returned sentence says which.

    Raises:
        UsageError: the machine has no FLOPS for the recipe's precision.
    """
    precision = recipe.accelerator.precision
    return _published(machine, recipe, facts) or _from_ceilings(machine, precision)


def _published(machine: Machine, recipe: Recipe, facts: StepFacts) -> tuple[Span, str] | None:
    names = names_of(recipe.accelerator.precision)
    for point in machine.points:
        if point.model == "node" and point.benchmark == recipe.benchmark and point.precision in names:
            # The papers count operations with their own constants.
            constant = benchmark_rules(recipe.edition, recipe.benchmark)["paper_flops_per_sample"]
            samples = point.flops / constant / point.accelerators
            words = f"{samples:.4g} samples/s an accelerator, as published ({point.source})"
            return Span.exactly(samples * facts.training_flops), words
    return None


def _from_ceilings(machine: Machine, precision: str) -> tuple[Span, str]:
    level = machine.node or machine.system
    for kind, ceilings in (("peak", level.peak_flops), ("ceiling", level.ceilings)) if level else ():
        if found := ceiling_of(ceilings, precision):
            assert level
            name, flops = found
            span = achieved_span(flops / level.accelerators, precision)
            share = span.times(level.accelerators / flops)
            words = (
                f"training reaches {share.low:.0%} to {share.high:.0%} of the {kind} {name} "
                f"({scaled(flops / level.accelerators, 'FLOPS')} an accelerator), as published trainings did"
            )
            return span, words
    raise UsageError(
        f"{machine.name}: has no FLOPS for precision {precision} (node.peak_flops or node.ceilings): choose another "
        "precision with --set accelerator.precision=…, or measure it: hpcai500 micro -o micro.json"
    )


def _in_words(link: Hockney) -> str:
    return f"{scaled(link.bytes_per_second, 'B/s')} after {link.latency_seconds * 1e6:.3g} us"


def _link(link: Link | None, level: Level | None, latency: float) -> Hockney | None:
    if link:
        return Hockney(link.latency_seconds, link.bytes_per_second)
    if level and level.bound:
        return Hockney(latency, level.bandwidths[level.bound])
    return None


# ----------------------------------------------------------------------------------------------------
# Records for a prediction: measured points, and the time of a step without communication.


@dataclass(frozen=True)
class MeasuredPoint:
    """One measured record.

    Attributes:
        record: its folder.
        flops: FLOPS of its training steps, without evaluation.
        flops_per_sample: as counted in the record.
        step_seconds_alone: a step without communication: measured before the run's clock started, or, for one rank,
            the mean step.
    """

    record: str
    ranks: int
    nodes: int
    flops: float
    flops_per_sample: float
    step_seconds_alone: float


def measured_points(runs: Sequence[ScoredRun], machine: Machine) -> list[MeasuredPoint]:
    """Points of runs of one recipe on accelerators and nodes like those of `machine`, the fewest ranks first.

    Raises:
        UsageError: recipes, accelerators or nodes differ, or the time of a step without communication is unknown.
    """
    runs = sorted(runs, key=lambda run: run.result.world_size)
    for run in runs:
        _require_same_work(runs[0].record, run.record)
        # Step times of another device or node size do not apply to the machine.
        device = str(run.record.tables["accelerator"]["device"])
        per_node = ranks_of_each_node(run.result.world_size, run.result.nodes, run.path)
        if reason := why_not_of(machine, device, per_node, origin_of_run(run.record.system)):
            raise UsageError(f"{run.path}: {reason}")
    return [_point(run) for run in runs]


def classes_of(record: Record) -> int | None:
    """Number of classes in the training data of the record; None if the model is not a classifier."""
    dataset: dict[str, Any] = next((event["value"] for event in iterate(record.events, "dataset")), {})
    classes = dataset.get("classes")
    return int(classes) if classes and "grid" not in dataset else None


def _point(run: ScoredRun) -> MeasuredPoint:
    result = run.result
    timed = [event["value"] for event in iterate(run.record.events, "parallel_efficiency")]
    alone = timed[-1]["step_seconds_alone"] if timed else None
    if alone is None:
        if result.world_size > 1:
            raise UsageError(
                f"{run.path}: has no time of a step without communication (batch norm over all ranks communicates in "
                "each step): give a record of one rank"
            )
        alone = run.record.recipe().global_batch / run.images_per_second
    flops = run.images_per_second * result.flops_per_image
    return MeasuredPoint(str(run.path), result.world_size, result.nodes, flops, result.flops_per_image, alone)


def _require_same_work(first: Record, record: Record) -> None:
    for table in ("problem", "hyperparameters", "workload", "accelerator"):
        if _without_seed(record, table) != _without_seed(first, table):
            raise UsageError(f"{record.path}: its [{table}] differs from that of {first.path}: give runs of one recipe")


def _without_seed(record: Record, table: str) -> dict[str, object]:
    return {key: value for key, value in record.tables[table].items() if key != "seed"}


# ----------------------------------------------------------------------------------------------------
# The weak scaling from the cost model.


# The largest batch with which published recipes reach IC's target quality (docs/large-batch.md); none is known for EWA.
LARGEST_BATCH = {"ic": 65536}
# Published step times on several nodes / those of `predict_scaling`, lowest and highest (docs/cost-model.md; a test
# computes them).
MODEL_ERROR = (1.02, 1.36)
LABEL = "predicted by a model: not measured, not a result, not scored"


@dataclass(frozen=True)
class Between:
    """The ranges (lowest, highest) of a point's numbers."""

    parallel_efficiency: tuple[float, float]
    flops: tuple[float, float]
    step_seconds: tuple[float, float]


@dataclass(frozen=True)
class Prediction:
    """A predicted curve.

    Attributes:
        batch_size: samples of a rank in one step.
        points: for the expected computing speed; `slow` for the lowest, `fast` for the highest. All three are the same
            if the speed is known.
        walls: limits of the scaling, the nearest first.
        assumptions: a sentence each.
        measured: records that are drawn with the curve, but do not change it.
        sources: files with the machine's figures.
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
        """The ranges of each point's numbers, from the computing speed and the error of the model."""
        for slow, fast in zip(self.slow, self.fast, strict=True):
            late = MODEL_ERROR[1] if slow.nodes > 1 else 1.0
            # Faster computing leaves less time to hide communication.
            efficiency = (fast.parallel_efficiency / late, slow.parallel_efficiency)
            yield Between(efficiency, (slow.flops / late, fast.flops), (fast.step.seconds, slow.step.seconds * late))

    @property
    def wall(self) -> Wall | None:
        return self.walls[0] if self.walls else None

    def lines(self) -> Iterator[str]:
        yield f"PREDICTED weak scaling of {self.benchmark} on {self.machine}"
        yield f"({LABEL}; efficiency against one node of {count(self.ranks_per_node, 'rank')})"
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
            rate = f"{scaled(one.flops, 'FLOPS')} in training steps"
            yield f"measured    {count(one.ranks, 'rank')}: {rate} ({one.record})"
        for number, wall in enumerate(self.walls):
            yield f"{'THE WALL' if number == 0 else 'then':<11} {wall.sentence}"
        if not self.walls:
            yield "THE WALL    none within a million nodes"
        for sentence in self.assumptions:
            yield f"assumed     {sentence}"

    def document(self) -> dict[str, Any]:
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
        recipe: its own number of nodes does not matter.
        facts: one step of the recipe.
        measured: records of the same work; the step time of the first one replaces the machine's speed.
        jitter: standard deviation of a rank's step times / their mean.

    Raises:
        UsageError: the machine's file lacks a value.
    """
    if measured:
        alone = measured[0].step_seconds_alone
        rate = Span.exactly(facts.flops / alone)
        basis = f"a step without communication takes {alone:.4g} s, as measured ({measured[0].record})"
    else:
        rate, basis = rate_of(machine, recipe, facts)
    _, links = network_of(machine, most_nodes)
    plans = {
        name: plan_of(recipe, facts, machine, most_nodes, flops, jitter)
        for name, flops in (("slow", rate.low), ("expected", rate.expected), ("fast", rate.high))
    }
    # Counted as in the measured records, whose images may have another size.
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
            basis,
            links,
            *communication_sentences(recipe, facts, machine, jitter),
            *([error_sentence()] if most_nodes > 1 else []),
        ),
        tuple(measured),
    )


def plan_of(
    recipe: Recipe, facts: StepFacts, machine: Machine, most_nodes: int, flops: float, jitter: float = 0.0
) -> Plan:
    """The step of a rank that computes at `flops`, and the all-reduce of its gradients on up to `most_nodes` nodes.

    Raises:
        UsageError: as `network_of`.
    """
    options = recipe.communication
    network, _ = network_of(machine, most_nodes)
    memory = machine.node.bandwidths.get("memory") if machine.node else None
    seconds = facts.flops / flops
    bucket_bytes, most = options.bucket_bytes or USUAL_BUCKET_BYTES, MOST_TENSORS[recipe.accelerator.device]
    return Plan(
        work=facts.work(seconds, bucket_bytes, jitter * seconds, most_tensors=most),
        network=network,
        per_node=machine.accelerators_per_node,
        topology=options.topology,
        algorithm=_algorithm(recipe),
        columns=options.torus_columns,
        compression=options.compression,
        packing_bytes_per_second=memory,
        overhead_seconds=machine.negotiation_seconds.get(recipe.benchmark, 0.0),
    )


def error_sentence() -> str:
    """The error of the model, measured on published step times."""
    return (
        f"published steps on 2 to 8 nodes took {MODEL_ERROR[0]:g} to {MODEL_ERROR[1]:g} times as long as this model "
        "predicts"
    )


def communication_sentences(recipe: Recipe, facts: StepFacts, machine: Machine, jitter: float) -> Iterator[str]:
    """The assumptions about communication, and what the model leaves out."""
    options = recipe.communication
    size, most = options.bucket_bytes or USUAL_BUCKET_BYTES, MOST_TENSORS[recipe.accelerator.device]
    total = sum(one.size_bytes for one in facts.gradients)
    yield (
        f"{scaled(total, 'B')} of fp32 gradients in {count(len(facts.buckets(size, most)), 'bucket')} of at most "
        f"{scaled(size, 'B')}, compression {options.compression}, topology {options.topology}, "
        f"algorithm {_algorithm(recipe)}; buckets are sent one after the other, each as soon as the backward pass has "
        "computed it"
    )
    if negotiation := machine.negotiation_seconds.get(recipe.benchmark):
        yield f"on several nodes, negotiation (agreeing on which tensors to reduce) takes {negotiation:.4g} s a step"
    if jitter:
        yield (
            f"the step time of each rank varies independently by {jitter:.1%} (standard deviation / mean); all ranks "
            "wait for the slowest"
        )
    left_out = (
        "reading input, " + ("" if jitter else "jitter between ranks, ") + "congestion and other jobs, memory limits"
    )
    yield f"not in the model: {left_out}"


def _algorithm(recipe: Recipe) -> str:
    """The all-reduce algorithm: Gloo has a ring only; NCCL chooses."""
    algorithm = recipe.communication.algorithm
    return "ring" if algorithm == "default" and recipe.accelerator.device == "cpu" else algorithm


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


# ----------------------------------------------------------------------------------------------------
# The picture: FLOPS and efficiency over nodes, and the walls.


_PREDICTED, _MEASURED, _IDEAL, _WALL = "#d55e00", "#0072b2", "#999999", "#444444"


def draw_prediction(prediction: Prediction) -> dict[str, bytes]:
    """The picture as files: `prediction.svg` and `prediction.png`."""
    return figure_files(lambda figure: _draw(figure, prediction), "prediction", (8, 7))


def _draw(figure: Figure, prediction: Prediction) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_flops(above, prediction)
    _draw_efficiency(below, prediction)
    nodes = [point.nodes for point in prediction.points]
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.set_xscale("log", base=2)
        if prediction.wall and prediction.wall.nodes <= nodes[-1]:
            axes.axvspan(prediction.wall.nodes, nodes[-1] * 1.3, color=_WALL, alpha=0.06, linewidth=0)
    shown = [n for n in nodes if n & (n - 1) == 0]
    shown = shown[:: 1 if len(shown) < 12 else 2]
    below.set_xticks(shown, [f"{n:,}" for n in shown])
    below.minorticks_off()
    below.set_xlim(nodes[0] / 1.3, nodes[-1] * 1.3)
    below.set_xlabel(
        f"nodes of {count(prediction.ranks_per_node, 'rank')}, {count(prediction.batch_size, 'sample')} a rank and step"
    )
    figure.suptitle(
        f"PREDICTED weak scaling of {prediction.benchmark}, {prediction.precision}: a model, not a result\n"
        f"{prediction.machine}",
        fontsize=11,
    )
    if prediction.sources:
        text = "; ".join(file.sentence for file in prediction.sources)
        figure.supxlabel(short(text, 150), fontsize=7, parse_math=False)


def _draw_flops(axes: Any, prediction: Prediction) -> None:
    points = prediction.points
    nodes = [point.nodes for point in points]
    factor, prefix = prefix_of(points[-1].flops)
    base = points[0].flops / factor
    axes.plot(nodes, [base * n for n in nodes], "--", color=_IDEAL, label="ideal")
    axes.plot(nodes, [point.flops / factor for point in points], "-", color=_PREDICTED, label="predicted")
    _band(axes, prediction, [tuple(end / factor for end in span.flops) for span in prediction.between()])
    if prediction.measured:
        axes.plot(
            [one.ranks / prediction.ranks_per_node for one in prediction.measured],
            [one.flops / factor for one in prediction.measured],
            "o",
            color=_MEASURED,
            label="measured",
            zorder=3,
        )
    axes.set_yscale("log", base=10)
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set_ylabel(f"{prefix}FLOPS of the training steps")
    axes.legend(loc="upper left", frameon=False)


def _draw_efficiency(axes: Any, prediction: Prediction) -> None:
    nodes = [point.nodes for point in prediction.points]
    axes.plot(nodes, [point.parallel_efficiency for point in prediction.points], "-", color=_PREDICTED)
    _band(axes, prediction, [span.parallel_efficiency for span in prediction.between()])
    axes.axhline(0.5, color=_IDEAL, linestyle=":")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("efficiency against one node")
    inside = [wall for wall in prediction.walls if wall.nodes <= nodes[-1]]
    # Names are at the bottom, one above the other, because walls may be close together.
    for row, wall in enumerate(inside):
        axes.axvline(wall.nodes, color=_WALL, linewidth=1, linestyle="-" if row == 0 else "--")
        is_left = wall.nodes**2 < nodes[-1]
        axes.annotate(
            f"{'the wall: ' if row == 0 else ''}{wall.binds}, {wall.nodes:,} nodes",
            (wall.nodes, 0.06 + 0.11 * row),
            xytext=(4 if is_left else -4, 0),
            textcoords="offset points",
            ha="left" if is_left else "right",
            fontsize=8,
            color=_WALL,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )


def _band(axes: Any, prediction: Prediction, spans: Sequence[tuple[float, ...]]) -> None:
    low, high = zip(*spans, strict=True)
    if low != high:
        nodes = [point.nodes for point in prediction.points]
        label = "range by assumptions and model error"
        axes.fill_between(nodes, low, high, color=_PREDICTED, alpha=0.15, linewidth=0, label=label)


def write_prediction(prediction: Prediction, folder: Path) -> list[Path]:
    """Write `prediction.json`, `prediction.svg` and `prediction.png` to `folder`; returns the pictures.

    Raises:
        UsageError: it cannot be written to.
    """
    pictures = draw_prediction(prediction)
    numbers = (json.dumps(prediction.document(), indent=2) + "\n").encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {**pictures, "prediction.json": numbers}.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
    return [folder / name for name in pictures]
