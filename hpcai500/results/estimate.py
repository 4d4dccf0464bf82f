"""`hpcai500 ic --estimate`: estimates time, FLOPS and energy of a whole run before it starts; never scored.

Times and rates are spans: lowest, expected and highest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.layers import Recipe
from hpcai500.machine import Machine, ranks_of_each_node
from hpcai500.methodology.cost import Span, StepFacts
from hpcai500.recipe import benchmark_rules
from hpcai500.results.given_files import GivenFile
from hpcai500.results.prediction import (
    LARGEST_BATCH,
    MODEL_ERROR,
    communication_sentences,
    error_sentence,
    network_of,
    plan_of,
    rate_of,
)
from hpcai500.text import count, scaled

LABEL = "an estimate without a run: not a result, not scored"


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run; times in seconds.

    Attributes:
        recipe: its name, as given by the user.
        global_batch: samples of a step over all ranks.
        steps: of the whole run, as are `training_seconds` and `evaluation_seconds`.
        flops: FLOPS of all ranks in training.
        samples_per_second: rate at which input must be delivered to all ranks.
        watts: of all nodes; None if unknown.
        assumptions: a sentence each.
        sources: files with the machine's figures.
    """

    benchmark: str
    recipe: str
    machine: str
    nodes: int
    ranks: int
    precision: str
    global_batch: int
    steps: int
    step_seconds: Span
    training_seconds: Span
    evaluation_seconds: Span
    flops: Span
    samples_per_second: Span
    watts: float | None
    assumptions: tuple[str, ...]
    sources: tuple[GivenFile, ...] = ()

    @property
    def seconds(self) -> Span:
        """Training and evaluation."""
        one, other = self.training_seconds, self.evaluation_seconds
        return Span(one.low + other.low, one.expected + other.expected, one.high + other.high)

    @property
    def node_hours(self) -> Span:
        """Nodes times hours, as sites account them."""
        return self.seconds.times(self.nodes / 3600)

    @property
    def energy_joules(self) -> Span | None:
        """None if the power of a node is unknown."""
        return None if self.watts is None else self.seconds.times(self.watts)

    def lines(self) -> Iterator[str]:
        yield f"ESTIMATE of {self.recipe} ({LABEL})"
        yield f"machine     {self.machine}"
        yield from (f"signature   {file.sentence}" for file in self.sources)
        yield (
            f"size        {count(self.nodes, 'node')}, {count(self.ranks, 'rank')}, {self.precision}, "
            f"{self.global_batch} samples a step, {self.steps} steps"
        )
        yield f"step        {_between(self.step_seconds, _duration)}"
        yield f"rate        {_between(self.samples_per_second, lambda rate: f'{rate:.4g}')} samples/s"
        yield f"FLOPS       {_between(self.flops, lambda rate: scaled(rate, 'FLOPS'))}"
        evaluation = _between(self.evaluation_seconds, _duration)
        yield f"time        {_between(self.seconds, _duration)} (evaluation {evaluation} of it)"
        yield f"node-hours  {_between(self.node_hours, lambda hours: f'{hours:.3g}')}"
        energy = self.energy_joules
        if energy is None:
            yield "energy      unknown: set watts_per_node in the machine's file"
        else:
            yield f"energy      {_between(energy, lambda joules: f'{joules / 3.6e6:.3g} kWh')}"
        for sentence in self.assumptions:
            yield f"assumed     {sentence}"

    def document(self) -> dict[str, Any]:
        energy = self.energy_joules
        return {
            "kind": "estimate",
            "label": LABEL,
            "scoring": False,
            "benchmark": self.benchmark,
            "recipe": self.recipe,
            "machine": self.machine,
            "sources": [file.document() for file in self.sources],
            "nodes": self.nodes,
            "ranks": self.ranks,
            "precision": self.precision,
            "global_batch": self.global_batch,
            "steps": self.steps,
            "step_seconds": self.step_seconds.document(),
            "training_seconds": self.training_seconds.document(),
            "evaluation_seconds": self.evaluation_seconds.document(),
            "seconds": self.seconds.document(),
            "node_hours": self.node_hours.document(),
            "flops": self.flops.document(),
            "samples_per_second": self.samples_per_second.document(),
            "watts": self.watts,
            "energy_joules": energy.document() if energy else None,
            "assumptions": list(self.assumptions),
        }


def require_known_data(recipe: Recipe) -> None:
    """Raise UsageError if the size of the recipe's data set is unknown before a run."""
    dataset = benchmark_rules(recipe.edition, recipe.benchmark).get("dataset")
    if dataset is None:
        raise UsageError(
            f"{recipe.benchmark}: edition {recipe.edition} has no such benchmark, so the size of "
            f"{recipe.problem.dataset} is unknown: runs of plug-ins cannot be estimated"
        )
    if recipe.problem.dataset != dataset:
        raise UsageError(
            f"problem.dataset is {recipe.problem.dataset}, whose size is unknown before a run: leave --recipe out, or "
            f"give a recipe with the data set {dataset}"
        )


def estimate_on(machine: Machine, name: str, recipe: Recipe, facts: StepFacts) -> Estimate:
    """Estimate a run of `recipe` on its number of nodes, which are like those of `machine`.

    Raises:
        UsageError: the machine's file lacks a value, or the size of the data set is unknown.
    """
    rate, basis = rate_of(machine, recipe, facts)
    nodes = recipe.hardware.nodes
    per_node = ranks_of_each_node(recipe.world_size, nodes, name)
    model = machine.model_copy(update={"accelerators_per_node": per_node})

    def step(flops: float) -> float:
        if recipe.world_size == 1:
            return facts.flops / flops
        return plan_of(recipe, facts, model, nodes, flops).step(nodes).seconds

    seconds = Span(step(rate.high), step(rate.expected), step(rate.low))
    if nodes > 1:
        seconds = Span(seconds.low, seconds.expected, seconds.high * MODEL_ERROR[1])
    forward = Span(*(facts.forward_flops / flops for flops in (rate.high, rate.expected, rate.low)))
    communication: tuple[str, ...] = ()
    if recipe.world_size > 1:
        _, links = network_of(model, nodes)
        communication = (links, *communication_sentences(recipe, facts, model, 0.0))
    if nodes > 1:
        communication += (error_sentence(),)
    watts = machine.watts_per_node * nodes if machine.watts_per_node else None
    sentences = (basis, *communication, "evaluation runs at the same FLOPS as training")
    return _estimate(name, recipe, facts, machine.name, seconds, forward, watts, sentences)


def estimate_here(name: str, recipe: Recipe, document: Mapping[str, Any]) -> Estimate:
    """Estimate a run of `recipe` on the ranks that `hpcai500.measure.step_command` measured for `document`.

    Raises:
        UsageError: the size of the data set is unknown.
    """
    facts = StepFacts.of(document)
    timed = document["together"] or document["alone"]
    seconds = Span(timed["low"], timed["seconds"], timed["high"])
    each = document["evaluation_seconds_per_sample"]
    library = f", {document['library']}" if document["ranks"] > 1 else ""
    here = f"this machine, measured: {document['steps']} steps on {count(document['ranks'], 'rank')}{library}"
    sentences = (
        f"every step takes as long as the {document['steps']} measured ones (between their quartiles), with input "
        "already in memory",
        "not in the estimate: reading input, checkpoints, clock rates that drop when the machine gets warm",
    )
    return _estimate(name, recipe, facts, here, seconds, Span.exactly(each), None, sentences)


def _estimate(
    name: str,
    recipe: Recipe,
    facts: StepFacts,
    machine: str,
    step_seconds: Span,
    evaluation_each: Span,
    watts: float | None,
    sentences: tuple[str, ...],
) -> Estimate:
    require_known_data(recipe)
    rules = benchmark_rules(recipe.edition, recipe.benchmark)
    if recipe.global_batch > rules["training_samples"]:
        each = recipe.global_batch // recipe.world_size
        raise UsageError(
            f"{recipe.world_size} ranks x {each} samples are {recipe.global_batch} a step, more than "
            f"{rules['dataset']} has ({rules['training_samples']}): use fewer nodes or a smaller "
            "hyperparameters.batch_size"
        )
    largest = LARGEST_BATCH.get(recipe.benchmark)
    if largest is not None and recipe.global_batch > largest:
        sentences = (
            f"no published run reached its quality with more than {largest} samples a step; this one has "
            f"{recipe.global_batch}",
            *sentences,
        )
    steps = recipe.problem.epochs * _steps_per_epoch(recipe, rules["training_samples"])
    evaluated = math.ceil(rules["evaluation_samples"] / recipe.world_size) * recipe.problem.epochs
    rate = recipe.global_batch
    inverse = Span(1 / step_seconds.high, 1 / step_seconds.expected, 1 / step_seconds.low)
    return Estimate(
        benchmark=recipe.benchmark,
        recipe=name,
        machine=machine,
        nodes=recipe.hardware.nodes,
        ranks=recipe.world_size,
        precision=recipe.accelerator.precision,
        global_batch=recipe.global_batch,
        steps=steps,
        step_seconds=step_seconds,
        training_seconds=step_seconds.times(steps),
        evaluation_seconds=evaluation_each.times(evaluated),
        flops=inverse.times(rate * facts.training_flops),
        samples_per_second=inverse.times(rate),
        watts=watts,
        assumptions=(*sentences, "input keeps up: it delivers the samples/s above, from storage that all ranks share"),
    )


def _steps_per_epoch(recipe: Recipe, samples: int) -> int:
    """Steps of an epoch; `workload.tail` says whether the last batch is padded or dropped."""
    whole, rest = divmod(samples, recipe.global_batch)
    is_padded = getattr(recipe.workload, "tail", "pad") == "pad"
    return max(1, whole + (1 if rest and is_padded else 0))


def _between(span: Span, show: Any) -> str:
    if span.is_exact:
        return str(show(span.expected))
    return f"{show(span.expected)} ({show(span.low)} to {show(span.high)})"


def _duration(seconds: float) -> str:
    # At least two of a unit: 90 minutes read better than 1.5 hours.
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 0.5)):
        if seconds >= 2 * size:
            return f"{seconds / max(size, 1.0):.3g} {unit}"
    return f"{seconds * 1e3:.3g} ms"
