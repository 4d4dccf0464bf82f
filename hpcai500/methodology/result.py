"""The result of a run: `result.json` as a pure function of recipe, rules and events (V2.0 sections 4.4 and 5.3).

A job and a verifier call the same function on the same facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from hpcai500.errors import RecordError, UsageError
from hpcai500.methodology.communication import with_stragglers
from hpcai500.methodology.conduct import conduct, is_sharded
from hpcai500.methodology.energy import power_of_run
from hpcai500.methodology.goodput import Goodput, goodput
from hpcai500.methodology.integrity import why_not_idle
from hpcai500.methodology.passes import Better, Event, Timeline, better_of, first_reaching, goal, last_pass, reaches
from hpcai500.methodology.rules import LevelReport, find_level
from hpcai500.methodology.samples import Samples, Unit, samples_of
from hpcai500.methodology.trials import flops_rate, penalty_coefficient, valid_flops
from hpcai500.methodology.weak_scaling import estimate_efficiency

# ----------------------------------------------------------------------------------------------------
# The split of training time: waiting for data, computing, waiting for communication, and the rest.


_PARTS = ("data_wait_seconds", "compute_seconds", "communication_wait_seconds")


class StepSplit(BaseModel):
    """Shares of the time of all training steps, means over ranks; they add up to 1.

    Wherever the share of waiting for sums is shown, it is `communication`.
    """

    model_config = ConfigDict(frozen=True)

    data_wait: float
    compute: float
    communication: float
    other: float


def step_split(epochs: Iterable[Mapping[str, Any]]) -> StepSplit | None:
    """The split over `epochs`, the values of `epoch_stop`; None for a record that is older than the split."""
    found = list(epochs)
    if not found or any(part not in epoch for epoch in found for part in ("seconds", *_PARTS)):
        return None
    whole = math.fsum(epoch["seconds"] for epoch in found)
    known = [math.fsum(epoch[part] for epoch in found) for part in _PARTS]
    # Clocks are read one after the other: the parts may exceed the whole by less than a microsecond a step.
    whole = max(whole, math.fsum(known))
    if not whole:
        return None
    data_wait, compute, communication = (seconds / whole for seconds in known)
    return StepSplit(
        data_wait=data_wait,
        compute=compute,
        communication=communication,
        other=max(0.0, 1.0 - data_wait - compute - communication),
    )


def split_of_run(recipe: Mapping[str, Any], events: Iterable[Event]) -> StepSplit | None:
    """The split over all epochs that count, also of a run that has not ended.

    None for a sharded model, whose passes wait for other ranks without reporting it.
    """
    if is_sharded(recipe["programming"]):
        return None
    return step_split(epoch["value"] for epoch in last_pass(events, "epoch_stop").values())


# ----------------------------------------------------------------------------------------------------
# All numbers of a run, and the reasons why it is not rankable.


SCHEMA = "hpcai500-result-1"
# Benchmarks of plug-ins, which no edition knows, are scored like Image Classification.
DEFAULT_EXPONENT = 5

ANALYTIC, PAPER = "analytic", "paper"
MEMORY = "memory"
PAPER_CONSTANT = "paper_flops_per_sample"
# FLOPs that differ by less are those of one model; options like zero-gamma change none.
_SAME_MODEL = 0.01


class Quality(BaseModel):
    """The metric's name, its value after the last epoch, and the value that the recipe aims at.

    `per_class` is the metric of each class where it has one: a mean can reach the target with few of the classes.
    """

    model_config = ConfigDict(frozen=True)

    metric: str
    achieved: float | None
    target: float
    per_class: dict[str, float | None] | None = None
    better: Better = "higher"

    @property
    def is_reached(self) -> bool:
        """Whether the target is reached; not with an unknown value."""
        return self.achieved is not None and reaches(self.achieved, self.target, self.better)

    @property
    def goal(self) -> str:
        """The target in words: `0.763`, or `0.5 or less`."""
        return goal(self.target, self.better)

    @property
    def miss(self) -> str:
        """Where a value is that misses the target: `below the target 0.763`, or `above the target 0.5`."""
        return f"{'above' if self.better == 'lower' else 'below'} the target {self.target:g}"

    @property
    def unit(self) -> str:
        """For figures of merit: `fraction`, or 1 (a plain number) for a loss, which may be above 1."""
        return "1" if self.better == "lower" else "fraction"

    @model_serializer(mode="wrap")
    def _without_usual_direction(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `better` where higher is better: results are compared with those of older versions."""
        fields: dict[str, Any] = handler(self)
        if self.better == "higher":
            del fields["better"]
        return fields


class StepBytes(BaseModel):
    """Bytes that one rank communicates in one step, mean over ranks: its gradients, and what it sends for them."""

    model_config = ConfigDict(frozen=True)

    gradient: float | None
    sent: float | None


class Result(BaseModel):
    """All numbers of one run; unknown is None, never 0. Times in seconds, rates a second, FLOPS and bytes unscaled.

    `vflops` is None for a run with another target than the edition's, and both `vflops` and `penalty_coefficient` where
    a lower quality is better; `why_no_vflops` has the reason.
    `level` is the lowest level that the recipe qualifies for, None if no level allows one of its changes.
    `level_changes` are the fields that no lower level allows; None if the edition does not know the benchmark.
    `unit` is what a sample holds, if the workload says so; `units_per_second` is its rate over the run.
    `utilisation` is the share of the matrix-product rate of all ranks, measured in the run, that training steps reach;
    None, with a note, if it was not measured on an idle machine, or if the run went on with another number of ranks.
    `parallel_efficiency` is None, with a note, where it cannot be relied on; `parallel_efficiency_starts` has it for
    each start of the run.
    """

    model_config = ConfigDict(frozen=True)

    schema_: str = SCHEMA
    benchmark: str
    edition: str
    level: str | None = None
    level_changes: list[str] | None = None
    rankable: bool
    reasons: list[str]
    world_size: int
    nodes: int
    images: int
    padded_images: int
    seconds: float
    evaluation_seconds: float
    images_per_second: float
    unit: Unit | None = None
    units_per_second: float | None = None
    flops_per_image: float
    flops_convention: str
    flops: float
    utilisation: float | None = None
    utilisation_note: str | None = None
    quality: Quality
    penalty_coefficient: float | None
    vflops: float | None
    time_to_quality_seconds: float | None
    energy_joules: float | None = None
    watts: float | None = None
    power_source: str | None = None
    power_scope: str | None = None
    power_note: str | None = None
    flops_per_watt: float | None = None
    vflops_per_watt: float | None = None
    input: str
    data_wait_fraction: float | None
    step_split: StepSplit | None = None
    communication_fraction: float | None = None
    parallel_efficiency: float | None = None
    parallel_efficiency_interval: tuple[float, float] | None = None
    parallel_efficiency_note: str | None = None
    parallel_efficiency_starts: list[float | None] | None = None
    bytes_per_step: StepBytes | None = None
    stragglers: list[str] | None = None
    backend: str
    communication_library: str | None = None
    restarts: int
    downtime_seconds: float
    goodput: Goodput | None = None

    @property
    def why_no_vflops(self) -> str | None:
        """The reason why there are no VFLOPS; None if there are, or if none of `reasons` is about them."""
        return None if self.vflops is not None else about_vflops(self.reasons)

    @property
    def samples(self) -> Samples:
        """What its samples are called and hold."""
        return samples_of(self.benchmark, {"unit": self.unit})

    @property
    def rates(self) -> dict[str, float]:
        """Its rates of samples, by the names of metrics."""
        return self.samples.rates(self.images_per_second)

    def as_json(self) -> dict[str, Any]:
        """Without `unit` and its rate where samples have none."""
        fields = self.model_dump(mode="json", exclude={"unit", "units_per_second"} if self.unit is None else None)
        return {"schema": fields.pop("schema_"), **fields}


def derive(
    recipe: Mapping[str, Any], rules: Mapping[str, Any], events: Sequence[Event], convention: str = ANALYTIC
) -> Result:
    """The result of a complete run.

    Args:
        recipe: resolved, as plain tables.
        rules: what the edition fixes for this benchmark (`rulebook`); empty for a benchmark that it does not know.
        events: of the record, in order.
        convention: of counting operations: `analytic` as the run did, or `paper` with the edition's constant.

    Raises:
        UsageError: the edition has no constant for the convention `paper`, or the run's model is not the paper's.
        RecordError: the run has not reached its last evaluation.
    """
    start, stop = _only(events, "run_start"), _only(events, "run_stop")
    timeline = Timeline(events)
    epochs, evaluations = last_pass(events, "epoch_stop"), last_pass(events, "eval_accuracy")
    target_epochs = recipe["problem"]["epochs"]
    missing = [e for e in range(1, target_epochs + 1) if e not in epochs or e not in evaluations]
    if missing:
        raise RecordError(f"epoch {missing[0]}: not trained or not evaluated; there is no score before the last epoch")

    flops_per_image = _flops_per_image(rules, events, convention)
    seconds = timeline.between(start, stop)
    images = sum(epoch["value"]["samples"] for epoch in epochs.values())
    flops = flops_rate(images, flops_per_image, seconds)
    samples = samples_of(recipe["benchmark"], _only(events, "dataset")["value"])
    quality = quality_of(recipe["problem"], evaluations[target_epochs]["value"])
    coefficient = quality_factor(quality, rules)
    counts = coefficient if has_edition_target(recipe["problem"], rules) else None
    vflops = None if counts is None else valid_flops(flops, counts)
    first = first_reaching(events, recipe["problem"])
    step_seconds = training_seconds(events)
    data_wait_seconds = math.fsum(epoch["value"]["data_wait_seconds"] for epoch in epochs.values())
    judgement = find_level(recipe, rules) if "reference" in rules and "levels" in rules else None
    reasons = [
        *_input_reasons(recipe),
        *_rule_reasons(recipe, rules, _only(events, "dataset")["value"]),
        *_direction_reasons(recipe),
        *_level_reasons(recipe, rules, judgement),
        *_convention_reasons(recipe, rules, convention),
        *(problem for rule in conduct(recipe, rules, events) for problem in rule.problems),
        *_coverage_reasons(recipe, events, epochs),
        *_system_reasons(events),
        *_world_reasons(events),
        *timeline.doubts,
        # Last: every run of a plug-in has this reason, and would hide the others.
        *([] if rules else [f"edition {recipe['edition']} has no benchmark {recipe['benchmark']}"]),
    ]
    share_of_ceiling, why_no_share = utilisation(events)
    split, ranks = split_of_run(recipe, events), start["value"]["world_size"]
    return Result(
        benchmark=recipe["benchmark"],
        edition=recipe["edition"],
        level=judgement.level if judgement else None,
        level_changes=[change.field for change in judgement.forcing] if judgement else None,
        rankable=not reasons,
        reasons=reasons,
        world_size=ranks,
        nodes=start["value"]["nodes"],
        images=images,
        padded_images=sum(epoch["value"]["padded_samples"] for epoch in epochs.values()),
        seconds=seconds,
        evaluation_seconds=math.fsum(event["value"]["seconds"] for event in evaluations.values()),
        images_per_second=images / seconds,
        unit=samples.unit,
        units_per_second=samples.rate(images / seconds) if samples.unit else None,
        flops_per_image=flops_per_image,
        flops_convention=convention,
        flops=flops,
        utilisation=share_of_ceiling,
        utilisation_note=why_no_share,
        quality=quality,
        penalty_coefficient=coefficient,
        vflops=vflops,
        time_to_quality_seconds=timeline.between(start, first) if first else None,
        input=_input(recipe, _only(events, "dataset")["value"]),
        data_wait_fraction=data_wait_seconds / step_seconds if step_seconds else None,
        step_split=split,
        communication_fraction=split.communication if split and ranks > 1 else None,
        **power_of_run(events, seconds, flops, vflops),
        **_communication(events),
        # An older record lacks the backend that ran; the recipe has the requested one.
        backend=start["value"].get("backend") or recipe["communication"]["backend"],
        communication_library=start["value"].get("library") if ranks > 1 else None,
        restarts=sum(event["key"] == "run_resume" for event in events),
        downtime_seconds=timeline.downtime_seconds,
        goodput=goodput(events, timeline),
    )


def quality_of(problem: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> Quality:
    """The quality in the value of an event `eval_accuracy`, or None for an unknown one, of a recipe's `problem`."""
    found = evaluation or {}
    return Quality(
        metric=problem["metric"],
        achieved=found.get("value"),
        target=problem["target_quality"],
        per_class=found.get("per_class"),
        better=better_of(problem),
    )


def quality_factor(quality: Quality, rules: Mapping[str, Any]) -> float | None:
    """The papers' penalty coefficient; None for an unknown quality, and where lower is better: it would reward a miss.

    Raises:
        UsageError: the quality is not within 0 to 1.
    """
    if quality.achieved is None or quality.better == "lower":
        return None
    return penalty_coefficient(quality.achieved, quality.target, rules.get("exponent", DEFAULT_EXPONENT))


def has_edition_target(problem: Mapping[str, Any], rules: Mapping[str, Any]) -> bool:
    """Whether the recipe has the edition's target quality; with a target of one's choice, VFLOPS could be any number.

    For a plug-in's benchmark, which the edition does not know, the recipe's target counts.
    """
    return bool(problem["target_quality"] == rules.get("target_quality", problem["target_quality"]))


def about_vflops(reasons: Iterable[str]) -> str | None:
    """The one of `reasons` for which there are no VFLOPS: a target that is not the edition's, or a loss; else None."""
    return next((one for one in reasons if "problem.target_quality is " in one or "problem.better is " in one), None)


def _input(recipe: Mapping[str, Any], dataset: Mapping[str, Any]) -> str:
    """What was trained on: `real` or `synthetic` files, or `memory` where nothing was read."""
    if recipe["accelerator"].get("loader") == MEMORY:
        return MEMORY
    return "synthetic" if dataset.get("synthetic") else "real"


def training_seconds(events: Iterable[Event]) -> float:
    """Time in the training steps of all epochs: no evaluations, no checkpoints, nothing that a restart has lost."""
    return math.fsum(epoch["value"]["seconds"] for epoch in last_pass(events, "epoch_stop").values())


def utilisation(events: Sequence[Event]) -> tuple[float | None, str | None]:
    """FLOPs of training steps a second of training steps / FLOPS of matrix products in the run's precision.

    Operations are those counted of the model (`analytic`), of all samples trained on, also those that pad the last
    batch. The matrix products ran on all ranks at once, before the clock started. Of several starts, the highest rate
    counts. None, with the reason, if no start measured it on an idle machine, as a rate that is too low makes the
    share too high, or if the starts had different numbers of ranks.
    """
    measured = [event["value"] for event in events if event["key"] == "ceilings"]
    seconds = training_seconds(events)
    if not seconds or not measured or not max(one["flops"] for one in measured):
        return None, "the rate of matrix products was not measured"
    if len({one["ranks"] for one in measured}) > 1:
        return None, "the run went on with another number of ranks"
    reasons = [why_not_idle(one.get("spread"), one.get("waited")) for one in measured]
    if None not in reasons:
        return None, f"the rate of matrix products is uncertain: {reasons[-1]}"
    epochs = [epoch["value"] for epoch in last_pass(events, "epoch_stop").values()]
    trained = sum(epoch["samples"] + epoch["padded_samples"] for epoch in epochs)
    operations = trained * _only(events, "flops")["value"]["per_sample"]
    return float(operations / seconds / max(one["flops"] for one in measured)), None


def _communication(events: Sequence[Event]) -> dict[str, Any]:
    """What the job measured of its communication (docs/timeline.md); None in the record of one process."""
    measured = [event["value"] for event in events if event["key"] == "communication"]
    costs = with_stragglers(measured[-1]) if measured else {}
    sizes = costs.get("bytes_per_step")
    return {
        **_efficiency(events),
        "bytes_per_step": StepBytes(**sizes) if sizes else None,
        "stragglers": costs.get("stragglers"),
    }


def _efficiency(events: Sequence[Event]) -> dict[str, Any]:
    """The parallel efficiency from the timed pairs of steps of all starts; empty if there are none."""
    starts = [event["value"] for event in events if event["key"] == "parallel_efficiency"]
    if not starts:
        return {}
    if any("efficiencies" not in start for start in starts):
        return {"parallel_efficiency_note": "an older version timed only a few steps"}
    begins = [event["value"] for event in events if event["key"] in ("run_start", "run_resume")]
    sizes = sorted({begin["world_size"] for begin in begins if "world_size" in begin})
    if len(sizes) > 1:
        return {"parallel_efficiency_note": f"the run was started with {' and '.join(map(str, sizes))} ranks"}
    whole = estimate_efficiency([pair for start in starts for pair in start["efficiencies"]])
    return {
        "parallel_efficiency": whole.value,
        "parallel_efficiency_interval": whole.interval,
        "parallel_efficiency_note": whole.note,
        "parallel_efficiency_starts": [estimate_efficiency(start["efficiencies"]).value for start in starts],
    }


def _flops_per_image(rules: Mapping[str, Any], events: Sequence[Event], convention: str) -> float:
    counted = _only(events, "flops")["value"]
    if convention == counted["convention"]:
        return float(counted["per_sample"])
    if convention != PAPER or PAPER_CONSTANT not in rules:
        raise UsageError(
            f"FLOPs convention: expected {ANALYTIC}, or {PAPER} where the edition has it, got {convention}"
        )
    reference = rules["reference_flops_per_sample"]
    if abs(counted["per_sample"] / reference - 1) > _SAME_MODEL:
        raise UsageError(
            f"FLOPs convention: the paper's constant is that of its model ({reference:.4g} FLOPs counted), "
            f"but this run's model takes {counted['per_sample']:.4g}: use the convention {ANALYTIC}"
        )
    return float(rules[PAPER_CONSTANT])


def _only(events: Iterable[Event], key: str) -> Event:
    """The last event named `key`, since a restart repeats the initialisation; of `run_start`, the first."""
    found = [event for event in events if event["key"] == key]
    if not found:
        raise RecordError(f"no event {key}: the run has not finished, so it has no score yet")
    return found[0] if key == "run_start" else found[-1]


def _input_reasons(recipe: Mapping[str, Any]) -> list[str]:
    if recipe["accelerator"].get("loader") != MEMORY:
        return []
    return ["accelerator.loader is memory: a few batches were repeated, and no data was read"]


def _rule_reasons(recipe: Mapping[str, Any], rules: Mapping[str, Any], dataset: Mapping[str, Any]) -> list[str]:
    """Where layer 9 is not the edition's (V2.0 section 5.1.1)."""
    if not rules:
        return []
    problem = recipe["problem"]
    reasons = [
        f"problem.{key} is {problem[key]}; edition {recipe['edition']} fixes {rules[key]}"
        for key in ("dataset", "metric", "target_quality", "epochs")
        if problem[key] != rules[key]
    ]
    reasons += [
        f"the data set has {dataset.get(key)} {key.replace('_', ' ')}; {rules['dataset']} has {rules[key]}"
        for key in ("training_samples", "evaluation_samples", "classes", "grid")
        if key in rules and dataset.get(key) != rules[key]
    ]
    if dataset.get("synthetic"):
        reasons.append("the data set was made by `hpcai500 data make`")
    return reasons


def _direction_reasons(recipe: Mapping[str, Any]) -> list[str]:
    """The quality factor is above 1 for a passed target only if the quality grows (V2.0, equation 2)."""
    if better_of(recipe["problem"]) == "higher":
        return []
    return ["problem.better is lower: VFLOPS are defined for a quality that grows"]


_MOST_LETTERS = 80
# `_input_reasons` and `_rule_reasons` report these fields, with the value that the edition fixes.
_REPORTED = {"accelerator.loader", "problem.dataset", "problem.metric", "problem.target_quality", "problem.epochs"}


def _level_reasons(recipe: Mapping[str, Any], rules: Mapping[str, Any], judgement: LevelReport | None) -> list[str]:
    """Changes that no level allows (V2.0 section 3.1)."""
    if judgement is None:
        return [rules["reference_error"]] if "reference_error" in rules else []
    return [
        f"{change.field} is {_in_short(change.value)}; no level of edition {recipe['edition']} allows a change of it"
        for change in judgement.changes
        if change.level is None and change.field not in _REPORTED
    ]


def _in_short(value: Any) -> str:
    text = "not stated" if value is None else str(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def _convention_reasons(recipe: Mapping[str, Any], rules: Mapping[str, Any], convention: str) -> list[str]:
    """Operations that were counted by different conventions cannot be compared."""
    ranked = rules.get("flops_convention", convention)
    if convention == ranked:
        return []
    return [f"operations are counted by the convention {convention}; edition {recipe['edition']} ranks by {ranked}"]


def _coverage_reasons(recipe: Mapping[str, Any], events: Iterable[Event], epochs: Mapping[int, Event]) -> list[str]:
    """Epochs that did not deliver each training sample once, or not what a member drew."""
    expected = _only(events, "dataset")["value"]["coverage"]
    wrong = [number for number, event in sorted(epochs.items()) if event["value"]["coverage"] != expected]
    if not wrong:
        return []
    which = f"epoch {wrong[0]}" if len(wrong) == 1 else f"{len(wrong)} epochs from {wrong[0]} to {wrong[-1]}"
    tail = recipe["workload"].get("tail")
    whole = "the training set, once each" if recipe.get("ensemble") is None else "those that the member drew"
    return [f"{which}: the samples delivered are not {whole} (workload.tail = {tail})"]


def _system_reasons(events: Iterable[Event]) -> list[str]:
    """A run that was resumed on another system measures neither system."""
    systems = [system_identity(event["value"]) for event in events if event["key"] == "system"]
    different = sorted({key for system in systems for key in system if system[key] != systems[0].get(key)})
    return [f"the run was resumed on another system (other {', '.join(different)})"] if different else []


# What must not change when a run is resumed: a rate over several configurations belongs to none of them.
_WORLD = {"world_size": "ranks", "nodes": "nodes", "backend": "backend", "library": "communication library"}


def _world_reasons(events: Iterable[Event]) -> list[str]:
    """A run that was resumed with other ranks or another library measures neither configuration."""
    worlds = [event["value"] for event in events if event["key"] in ("run_start", "run_resume")]
    changed = [
        f"{name} {worlds[0][key]}, then {world[key]}"
        for key, name in _WORLD.items()
        for world in worlds[1:]
        if key in world and world[key] != worlds[0].get(key, world[key])
    ]
    return [f"the run was resumed in another configuration: {'; '.join(dict.fromkeys(changed))}"] if changed else []


def system_identity(system: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change within a run: processors, accelerators, software. The host itself may."""
    # Older records lack the installation; one outside of an image has no image hash.
    installation = system.get("installation") or {}
    image, package = installation.get("image") or {}, installation.get("package") or {}
    return {
        "image": image.get("content_sha256"),
        "code": [package.get(name) for name in ("code_sha256", "core_sha256")],
        "plug-in": [
            [one.get(name) for name in ("package", "version", "code_sha256")]
            for one in installation.get("plugins") or []
        ],
        "processors": [(node.get("cpu") or {}).get("Model name") for node in system["nodes"]],
        "accelerators": [[device["name"] for device in node["accelerators"]] for node in system["nodes"]],
        "software versions": [
            [node["software"].get(name) for name in ("hpcai500", "torch", "cuda", "cudnn")] for node in system["nodes"]
        ],
    }
