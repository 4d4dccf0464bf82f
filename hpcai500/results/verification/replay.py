"""Checkpoints of trials, evaluated again, must reproduce the qualities that the trials tell, and be trained weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations, product
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np

from hpcai500.errors import WrongAnswerError
from hpcai500.methodology.passes import first_reaching
from hpcai500.record import Record
from hpcai500.results.verification.checks.checkpoints import earlier_at_target, last_checkpoint, path_of
from hpcai500.results.verification.context import Check, Context
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped, warning
from hpcai500.results.verification.software import is_of_our_version

Replay = Callable[[Path, Path, Path | None], Mapping[str, Any]]
"""`replay(recipe file, last checkpoint, that with which the target was reached where it is another one)`: what
`hpcai500.engine.replay_command` writes; a checkpoint that is refused is a WrongAnswerError."""

Draw = Callable[[Sequence[str], int], Sequence[str]]
"""So many of the names of trials."""

_QUALITY, _DATA, _FLOPS, _CHECKPOINT = "replay-quality", "replay-dataset", "replay-flops", "replay-checkpoint"
_MISSING, _TARGET, _TWINS, _TRAINING = "replay-missing", "replay-target", "replay-twins", "replay-training"
_HELD_BACK, _NOT_SHOWN = "replay-held-back", "replay-not-shown"
# What another device may change, which flips answers that were nearly ties: docs/verification.md has the measurements.
# In fp32, and in any other precision: of top1, and at least two images; of mAP, over the root of the number of images.
_TOP1, _TOP1_IMAGES = (0.0005, 0.002), 2
_MAP50 = (0.02, 0.08)
# Of trainings of their own it is within 0.1.
_MOST_COSINE = 0.5
# Of first filters, which all nets for one kind of image have some of alike, so that it is only a warning.
_MOST_MATCH = 0.95
# Of 16,000 honest comparisons one differs by more.
_STANDARD_ERRORS = 4
_SYSTEM = SystemRandom()
_ASK = "ask for one that `hpcai500 submit` made without --no-checkpoints"


def replay_check(replay: Replay, most: int | None = None, draw: Draw = _SYSTEM.sample) -> Check:
    """A check that replays checkpoints of done trials.

    Args:
        replay: evaluates those of one trial.
        most: of so many trials, drawn at random; None replays all.
        draw: draws them; nobody may foresee it.
    """

    def check_replay(context: Context) -> Iterator[Finding]:
        """What each trial's checkpoints are; what was asked for and cannot be made refuses."""
        names = list(context.done)
        if len(names) < (most or 1):
            yield fail(_MISSING, f"{most or 'all'} trials were asked for, {len(names)} came to their end")
        drawn = set(draw(names, min(most or len(names), len(names))))
        found: dict[str, Mapping[str, Any]] = {}
        for name in filter(drawn.__contains__, names):
            try:
                document = yield from _replayed(replay, context, name)
            except WrongAnswerError as error:
                yield fail(_CHECKPOINT, f"{name}: {error}")
                continue
            if document:
                found[name] = document
                yield from compared(name, context.done[name], document)
        if found:
            yield from _raised(context, found)
            yield from _twins(context, found)
            yield _not_shown(context, found)

    return check_replay


def replay_left_out(replay: Check | None) -> list[Finding]:
    """What a refused submission is told of the replay that was asked for: strange weights are not loaded in vain."""
    return [skipped(_MISSING, "not replayed: the submission is refused anyway")] if replay else []


def _replayed(replay: Replay, context: Context, name: str) -> Generator[Finding, None, Mapping[str, Any] | None]:
    """Returns what the replay of one trial found; None where its last checkpoint is not here."""
    record, submission = context.done[name], context.submission
    last, earlier = last_checkpoint(record), earlier_at_target(record)
    if last is None or path_of(name, last) not in submission.entries:
        yield fail(_MISSING, f"{name}: its last checkpoint is not here, so its quality cannot be replayed: {_ASK}")
        return None
    if earlier and path_of(name, earlier) not in submission.entries:
        if is_of_our_version(record):
            what = f"{name}: {earlier.get('file')}, with which it reached its target, is not here"
            yield fail(_MISSING, f"{what}, so its time to quality cannot be replayed: {_ASK}")
        earlier = None
    with ExitStack() as extracted:

        def file(told: Mapping[str, Any], as_name: str) -> Path:
            path = submission.folder.parent / as_name
            extracted.callback(path.unlink, missing_ok=True)
            submission.extract(path_of(name, told), path)
            return path

        at_target = file(earlier, "target.pt") if earlier else None
        return replay(record.path / "recipe.toml", file(last, "checkpoint.pt"), at_target)


def compared(name: str, record: Record, document: Mapping[str, Any]) -> Iterator[Finding]:
    """What a replay of `record` found, with what the record tells."""
    dataset, counted = values(record, "dataset")[-1], values(record, "flops")[-1]
    yield _finding(_DATA, *_same_data(name, dataset, document))
    if document["samples"] != dataset["evaluation_samples"]:
        yield fail(
            _QUALITY, f"{name}: {document['samples']} samples here, {dataset['evaluation_samples']} in the record"
        )
    else:
        told = values(record, "eval_accuracy")[-1]
        yield _finding(_QUALITY, *_same_quality(name, told, document["value"], document))
    if "at_target" in document:
        found = document["at_target"]["value"]
        yield _finding(_TARGET, *_same_quality(name, _reaching(record), found, document))
    if document["flops_per_sample"] != counted["per_sample"]:
        yield fail(
            _FLOPS, f"{name}: {document['flops_per_sample']!r} FLOPs a sample here, {counted['per_sample']!r} there"
        )
    else:
        yield note(_FLOPS, f"{name}: {counted['per_sample']!r} FLOPs a sample, counted again")
    yield _finding(_TRAINING, *_not_less(name, "training samples, drawn here", document["training"], document))
    if "held_back" in document:
        yield _finding(_HELD_BACK, *_not_less(name, "samples held back", document["held_back"], document))


def _finding(check: str, holds: bool, evidence: str) -> Finding:
    return (note if holds else fail)(check, evidence)


def tolerance_of(metric: str, samples: int, precision: str) -> float:
    """How far two evaluations of the same weights may lie apart on different devices (unit of the metric)."""
    place = int(precision != "fp32")
    return max(_TOP1_IMAGES / samples, _TOP1[place]) if metric == "top1" else _MAP50[place] / math.sqrt(samples)


def _tolerance(document: Mapping[str, Any]) -> float:
    return tolerance_of(str(document["metric"]), int(document["samples"]), str(document["precision"]))


def _same_data(name: str, dataset: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[bool, str]:
    """The record's word of its data set, with the data here: what was trained on, no word shows."""
    if document["fingerprint"] != dataset["fingerprint"]:
        fingerprints = f"{document['fingerprint']} here, {dataset['fingerprint']} in the record"
        return False, f"{name}: another data set, or another copy of it: its fingerprint is {fingerprints}"
    here, told = document["content_fingerprint"], dataset.get("content_fingerprint")
    if here and told and here != told:
        return False, f"{name}: other content in files of the same names and sizes: {here} here, {told} in the record"
    what = "names, sizes and content" if here and told else "names and sizes; content: `hpcai500 data check`"
    return True, f"{name}: the record names the data here ({document['fingerprint']}: {what})"


def _same_quality(name: str, told: Mapping[str, Any], found: float, document: Mapping[str, Any]) -> tuple[bool, str]:
    tolerance = _tolerance(document)
    evidence = f"{name}: epoch {told['epoch']}: {document['metric']} {found!r} here, {told['value']!r} in the record"
    if abs(found - told["value"]) > tolerance:
        return False, f"{evidence}; at most {tolerance:g} may lie between them"
    return True, f"{evidence}: within {tolerance:g}"


def _not_less(name: str, what: str, other: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[bool, str]:
    """Weights that were trained on the evaluation set are better there than anywhere else."""
    less, margin = document["value"] - other["value"], _margin(document, other)
    evidence = f"{name}: {document['metric']} {document['value']:.4f} on the evaluation set"
    evidence = f"{evidence}, {other['value']:.4f} on {other['samples']} {what}"
    if less > margin:
        return False, f"{evidence}: chance explains {margin:.4f}, training on the evaluation set more"
    return True, f"{evidence}: not less by more than chance explains ({margin:.4f})"


def _margin(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Most by which chance lets two samples of one origin differ: standard errors of two pooled proportions."""
    sizes = one["samples"], other["samples"]
    pooled = (one["value"] * sizes[0] + other["value"] * sizes[1]) / sum(sizes)
    return _STANDARD_ERRORS * math.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))


def _raised(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Noise goes both ways, and a mean of many trials has less of it; who forges only raises."""
    above = {_QUALITY: list[float](), _TARGET: list[float]()}
    for name, document in found.items():
        record = context.done[name]
        above[_QUALITY].append(values(record, "eval_accuracy")[-1]["value"] - document["value"])
        if "at_target" in document:
            above[_TARGET].append(_reaching(record)["value"] - document["at_target"]["value"])
    tolerance = max(map(_tolerance, found.values()))
    for check, differences in above.items():
        runs = len(differences) or 1
        mean, most = math.fsum(differences) / runs, tolerance / math.sqrt(runs)
        if mean > most:
            what = f"{runs} trials tell {mean:.3g} more on average than is found here"
            yield fail(check, f"{what}; at most {most:.3g} may be noise, which goes both ways")


def _twins(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Trainings of their own end with weights of their own; a copy keeps its directions under noise and scaling."""
    # A plug-in's model may have one layer, and so one optimum, wherever it begins.
    tell = fail if context.asked.rules else warning
    weights = {name: [one for one in (found[name], found[name].get("at_target")) if one] for name in found}
    most = 0.0
    for (name, own), (other, others) in combinations(weights.items(), 2):
        pairs = list(product(own, others))
        closest = max(abs(cosine(one["sketch"], two["sketch"])) for one, two in pairs)
        matched = max(match_of(one["filters"], two["filters"]) for one, two in pairs)
        most = max(most, closest)
        if closest > _MOST_COSINE:
            what = f"the cosine of their weights is {closest:.4f}; trainings of their own have one near 0"
            yield tell(_TWINS, f"{name} and {other}: {what}, a copy with noise one near 1")
        elif matched > _MOST_MATCH:
            what = (
                f"half of the filters of their first convolutions have a twin, with a cosine of {matched:.4f} or more"
            )
            yield warning(_TWINS, f"{name} and {other}: {what}: one net with its channels in another order?")
    if len(weights) > 1 and most <= _MOST_COSINE:
        yield note(_TWINS, f"{len(weights)} trials: the cosine of the weights of any two is at most {most:.3f}")


def match_of(filters: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """How like the filters (n, size) of one net are to those of another, in any order, 0 to 1.

    The median over the filters of the cosine, of either sign, with the other net's that is nearest; 0 without filters.
    """
    if not filters or not others:
        return 0.0
    cosines = np.abs(np.array(filters) @ np.array(others).T)
    return float(np.median(cosines.max(axis=1)))


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the angle between two sketches, -1 to 1; 0 where one has no direction."""
    norms = math.hypot(*one) * math.hypot(*other)
    return math.fsum(left * right for left, right in zip(one, other, strict=True)) / norms if norms else 0.0


def _not_shown(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Finding:
    """What a replay leaves open, whatever it found."""
    open_questions = [
        "that these weights were trained in these runs, by this code and in that time",
        "other evaluations than the last and the first at the target",
    ]
    untold = [
        name for name, document in found.items()
        if "at_target" not in document and earlier_at_target(context.done[name])
    ]  # fmt: skip
    if untold:
        open_questions.append(f"the time to quality of {', '.join(untold)}: no checkpoint of that moment")
    if len(found) < len(context.done):
        open_questions.append(f"other trials than {', '.join(found)}, drawn here from {len(context.done)}")
    if not any("held_back" in document for document in found.values()):
        open_questions.append("quality on samples that nobody could train on (--held-back DATA)")
    return skipped(_NOT_SHOWN, f"not shown by this replay: {'; '.join(open_questions)}")


def _reaching(record: Record) -> Mapping[str, Any]:
    """The evaluation at which the target was reached."""
    reached = first_reaching(record.events, _target(record))
    assert reached is not None
    value: Mapping[str, Any] = reached["value"]
    return value


def _target(record: Record) -> float:
    return float(record.tables["problem"]["target_quality"])
