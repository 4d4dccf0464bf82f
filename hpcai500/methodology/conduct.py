"""Rules that are checked by the events of a run (V2.0 sections 5.1.1 and 5.1.4).

A recipe says what was requested. The events show what the run did: synchronous SGD, mathematically equivalent
parallelism, epochs, data and quality. A rule counts as broken unless the record shows that it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.methodology.passes import Event, last_pass

_DATASET_FACTS = ("training_samples", "evaluation_samples", "classes", "grid", "drawn", "coverage")
# Normalisations whose result depends on which samples share a batch.
_NORMS_OF_A_BATCH = ("batch", "sync-batch")
# Samplings that draw exactly as often as the training set has samples.
_AS_MANY = ("bootstrap", "all")
# The number of classes that a sentence names.
_MOST_CLASSES = 5


@dataclass(frozen=True)
class Observation:
    """One rule, and whether a run kept it.

    `problems` has a sentence for each violation, and for each fact that the record lacks; it is empty if the rule was
    kept. `section` is the paper's.
    """

    layer: int
    name: str
    problems: tuple[str, ...]
    section: str

    @property
    def holds(self) -> bool:
        return not self.problems


def conduct(recipe: Mapping[str, Any], rules: Mapping[str, Any], events: Sequence[Event]) -> tuple[Observation, ...]:
    """Every rule that is checked by the events of a complete run, from layer 9 down.

    `recipe` is resolved, as plain tables; `rules` are what the edition fixes for this benchmark.
    """
    epochs, evaluations = last_pass(events, "epoch_stop"), last_pass(events, "eval_accuracy")
    datasets = [event["value"] for event in events if event["key"] == "dataset"]
    detects = "detection_samples" in recipe["workload"]
    return (
        Observation(9, "epochs", tuple(_epochs(recipe, epochs, evaluations)), "V2.0 5.1.1"),
        Observation(9, "data set", (*_dataset(datasets, rules), *_drawn(recipe, datasets)), "V2.0 5.1.1"),
        Observation(9, "quality metric", tuple(_metric(recipe, rules, evaluations)), "V2.0 5.1.1"),
        Observation(9, "evaluation samples", tuple(_evaluation(datasets, evaluations)), "V2.0 5.1.1"),
        *([Observation(7, "operations", tuple(_regions(recipe["workload"])), "V3.0 Table 3")] if detects else []),
        Observation(6, "equivalent parallelism", tuple(_parallelism(recipe, datasets, events, epochs)), "V2.0 5.1.4"),
        Observation(6, "synchronous SGD", tuple(_synchronous(events, epochs)), "V2.0 5.1.4"),
    )


def _epochs(recipe: Mapping[str, Any], *passes: Mapping[int, Event]) -> Iterator[str]:
    target = recipe["problem"]["epochs"]
    beyond = sorted({epoch for one in passes for epoch in one if not 1 <= epoch <= target})
    if beyond:
        yield f"{_named(beyond)}: beyond the {target} epochs of the recipe"


def _dataset(datasets: Sequence[Mapping[str, Any]], rules: Mapping[str, Any]) -> Iterator[str]:
    first = datasets[0] if datasets else {}
    for key in ("fingerprint", "content_fingerprint", *_DATASET_FACTS):
        # If the content was hashed between two starts, its fingerprint appears, but the data did not change.
        values = [one.get(key) for one in datasets if key != "content_fingerprint" or one.get(key) is not None]
        if any(value != values[0] for value in values):
            yield f"the data set changed during the run: {key.replace('_', ' ')} differs between its starts"
    if not first.get("fingerprint"):
        yield "the record has no fingerprint of the data set"
    if absent := first.get("classes_not_evaluated"):
        more = f" and {len(absent) - _MOST_CLASSES} more" if len(absent) > _MOST_CLASSES else ""
        yield f"the evaluation set has no sample of {', '.join(absent[:_MOST_CLASSES])}{more}"
    known = rules.get("dataset_fingerprint")
    if known is not None and known not in (first.get("content_fingerprint"), first.get("fingerprint")):
        yield f"the data set is not {rules['dataset']}: its fingerprint is not the edition's"


def _samples_of_an_epoch(dataset: Mapping[str, Any]) -> Any:
    """How many samples an epoch trains on: the whole training set, or the draws of a member of an ensemble."""
    drawn = dataset.get("drawn")
    return dataset.get("training_samples") if drawn is None else drawn.get("draws")


def _drawn(recipe: Mapping[str, Any], datasets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The draws that a member of an ensemble reports (V3.0 section 3.1); coverage shows which samples these were."""
    asked, dataset = recipe.get("ensemble"), datasets[-1] if datasets else {}
    drawn = dataset.get("drawn")
    if asked is None:
        if drawn is not None:
            yield "samples were drawn, although the recipe has no [ensemble]"
        return
    if drawn is None:
        yield "the record does not say which samples the member drew"
        return
    if drawn.get("sampling") != asked["sampling"]:
        yield f"samples were drawn by {drawn.get('sampling')}; the recipe asks for {asked['sampling']}"
    if asked.get("strata") == "none" and drawn.get("strata"):
        yield f"samples were drawn from {len(drawn['strata'])} strata; the recipe asks for none"
    if asked["sampling"] in _AS_MANY and drawn.get("draws") != dataset.get("training_samples"):
        yield f"{drawn.get('draws')} samples were drawn; {asked['sampling']} draws {dataset.get('training_samples')}"


def _metric(recipe: Mapping[str, Any], rules: Mapping[str, Any], evaluations: Mapping[int, Event]) -> Iterator[str]:
    metric = recipe["problem"]["metric"]
    wrong = [epoch for epoch, event in sorted(evaluations.items()) if event["value"].get("metric") != metric]
    if wrong:
        found = evaluations[wrong[0]]["value"].get("metric", "no metric")
        yield f"{_named(wrong)}: evaluated by {found}; the recipe asks for {metric}"
    classes = rules.get("class_names", [])
    partial = {
        epoch: left_out
        for epoch, event in sorted(evaluations.items())
        if (left_out := classes_left_out(classes, event["value"].get("per_class")))
    }
    if partial:
        epochs = list(partial)
        yield (
            f"{_named(epochs)}: the quality leaves out {', '.join(partial[epochs[0]])}; the edition's is the mean over "
            f"all {len(classes)} classes"
        )


def classes_left_out(classes: Sequence[str], per_class: Mapping[str, Any] | None) -> list[str]:
    """Those of `classes` for which an evaluation has no value, so that its mean leaves them out."""
    values = per_class or {}
    return [name for name in classes if values.get(name) is None]


def _regions(workload: Mapping[str, Any]) -> Iterator[str]:
    """A detector's second stage cannot use more regions than the first proposes, but operations are counted for all."""
    before, after = workload["proposals_before_nms"][0], workload["proposals_after_nms"][0]
    most = min(after, before * (len(workload["depths"]) + 1))
    if workload["detection_samples"] > most:
        yield (
            f"operations are counted for {workload['detection_samples']} regions an image "
            f"(workload.detection_samples), and the first stage proposes at most {most}"
        )


def _evaluation(datasets: Sequence[Mapping[str, Any]], evaluations: Mapping[int, Event]) -> Iterator[str]:
    expected = datasets[-1].get("evaluation_samples") if datasets else None
    wrong = [epoch for epoch, event in sorted(evaluations.items()) if event["value"].get("samples") != expected]
    if wrong or expected is None:
        found = evaluations[wrong[0]]["value"].get("samples") if wrong else None
        yield f"{_named(wrong)}: evaluated on {found} samples; the evaluation set has {expected}"


def _parallelism(
    recipe: Mapping[str, Any],
    datasets: Sequence[Mapping[str, Any]],
    events: Iterable[Event],
    epochs: Mapping[int, Event],
) -> Iterator[str]:
    """The updates must be as many, and of as many samples, as those of one process with the same global batch."""
    hardware, policy = recipe["hardware"], recipe["hyperparameters"]
    ranks = ranks_of(hardware)
    started = next((event["value"]["world_size"] for event in events if event["key"] == "run_start"), None)
    if started != ranks:
        yield f"the run was started on {started} rank{'' if started == 1 else 's'}; its recipe asks for {ranks}"
    yield from _statistics(recipe)
    replicas = ranks // ranks_per_replica(recipe["programming"])
    batch = policy["batch_size"] * policy.get("accumulation_steps", 1) * replicas
    samples = _samples_of_an_epoch(datasets[-1]) if datasets else None
    if not isinstance(samples, int) or batch < 1:
        yield f"cannot compute the updates of an epoch of {samples} training samples in global batches of {batch}"
        return
    drops = recipe["workload"].get("tail") == "drop"
    steps = samples // batch if drops else -(-samples // batch)
    trained = min(samples, steps * batch)
    expected = {"steps": steps, "samples": trained, "padded_samples": steps * batch - trained}
    for key, value in expected.items():
        wrong = [epoch for epoch, event in sorted(epochs.items()) if event["value"].get(key) != value]
        if wrong:
            found = epochs[wrong[0]]["value"].get(key)
            yield (
                f"{_named(wrong)}: {found} {key.replace('_', ' ')}; {samples} samples in global batches of {batch} "
                f"make {value}"
            )


def ranks_of(hardware: Mapping[str, Any]) -> int:
    """Ranks that a recipe asks for, from its table [hardware] in a record."""
    return int(hardware.get("ranks") or hardware["nodes"] * hardware["accelerators_per_node"])


def ranks_per_replica(programming: Mapping[str, Any]) -> int:
    """Ranks that work on the same samples, from the table [programming] of a record: stages, or `tensor_ranks`."""
    return int(max(1, programming.get("stages", 1)) * max(1, programming.get("tensor_ranks", 1)))


def is_sharded(programming: Mapping[str, Any]) -> bool:
    """Whether the model was distributed over the ranks, from the table [programming] of a record."""
    return bool(programming.get("parallel_mode") == "sharded")


def _statistics(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Gradients of micro-batches add up to that of the whole batch, except through batch norm."""
    parts, norm = recipe["programming"].get("micro_batches", 1), recipe["workload"].get("norm")
    if parts == 1 or norm not in _NORMS_OF_A_BATCH:
        return
    batch = recipe["hyperparameters"]["batch_size"]
    yield (
        f"batch norm used statistics of micro-batches of {batch // max(1, parts)} samples, not of batches of {batch}: "
        "not mathematically equivalent (programming.micro_batches=1 is)"
    )


def _synchronous(events: Sequence[Event], epochs: Mapping[int, Event]) -> Iterator[str]:
    """After every epoch all ranks had the same weights, bit for bit, and had made the same number of steps."""
    replicas = last_pass(events, "replicas")
    world = _ranks_of(events, epochs)
    many = {epoch: ranks for epoch, ranks in world.items() if ranks != 1}
    unknown = [epoch for epoch in sorted(many) if epoch not in replicas]
    if unknown:
        yield f"{_named(unknown)}: the record does not show that all ranks had equal weights (no event replicas)"
    wrong = [
        epoch
        for epoch, ranks in sorted(many.items())
        if epoch in replicas
        and (replicas[epoch]["value"].get("ranks") != ranks or not replicas[epoch]["value"].get("digest"))
    ]
    if wrong:
        found = replicas[wrong[0]]["value"]
        yield (
            f"{_named(wrong)}: the event replicas does not show equal weights on all {many[wrong[0]]} ranks "
            f"(ranks {found.get('ranks')}, digest {found.get('digest')})"
        )
    rows = next((event["value"]["ranks"] for event in reversed(events) if event["key"] == "steps"), None)
    if rows is None:
        return
    made = sorted({row["steps"] for row in rows})
    if len(made) > 1:
        yield f"ranks made different numbers of steps: from {made[0]} to {made[-1]}"
    if world and len(rows) != world[max(world)]:
        yield f"{len(rows)} ranks report their steps; {world[max(world)]} trained"


def _ranks_of(events: Iterable[Event], epochs: Mapping[int, Event]) -> dict[int, int]:
    """Epoch -> number of ranks that ended it, by the run's last start before."""
    ranks, found = 0, {}
    ends = {event["seq"]: epoch for epoch, event in epochs.items()}
    for event in events:
        if event["key"] in ("run_start", "run_resume"):
            ranks = event["value"].get("world_size", ranks)
        elif event["seq"] in ends:
            found[ends[event["seq"]]] = ranks
    return found


def _named(epochs: Sequence[int]) -> str:
    """`epoch 3`, or `2 epochs from 3 to 7`."""
    if not epochs:
        return "all epochs"
    return f"epoch {epochs[0]}" if len(epochs) == 1 else f"{len(epochs)} epochs from {epochs[0]} to {epochs[-1]}"
