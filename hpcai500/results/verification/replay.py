"""Replays checkpoints of trials: they must reproduce the qualities that the trials tell, and be trained weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations, product
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcai500.errors import WrongAnswerError
from hpcai500.methodology.passes import first_reaching
from hpcai500.record import Record
from hpcai500.results.verification.campaign import earlier_at_target, last_checkpoint, path_of
from hpcai500.results.verification.context import Check, Context
from hpcai500.results.verification.facts import is_of_our_version, values
from hpcai500.results.verification.finding import Finding, fail, note, skipped, warning

Replay = Callable[[Path, Path, Path | None], Mapping[str, Any]]
"""`replay(recipe file, last checkpoint, that with which the target was reached where it is another one)`: what
`hpcai500.engine.replay_command` writes; a checkpoint that is refused is a WrongAnswerError."""

Draw = Callable[[Sequence[str], int], Sequence[str]]
"""So many of the names of trials."""

_QUALITY, _DATA, _FLOPS, _CHECKPOINT = "replay-quality", "replay-dataset", "replay-flops", "replay-checkpoint"
_MISSING, _TARGET, _TWINS, _TRAINING = "replay-missing", "replay-target", "replay-twins", "replay-training"
_HELD_BACK, _NOT_SHOWN = "replay-held-back", "replay-not-shown"
# What rounding may change, as it flips answers that were nearly ties (measurements: docs/verification.md); in fp32, and
# in any other precision. Of top1, but at least two images; of mAP, divided by the root of the number of images.
_TOP1, _TOP1_IMAGES = (0.0005, 0.002), 2
_MAP50 = (0.02, 0.08)
# What another kind of device may change, as it decodes and sums differently for all images; nobody has measured it.
_OTHER_DEVICE = {"top1": 0.002, "map50": 0.01}
# Of separate trainings the cosine is within 0.05; of a copy with noise as large as its weights, 0.4.
_MOST_COSINE = 0.3
# Of first filters. All nets for one kind of image have some in common, so that it is only a warning.
_MOST_MATCH = 0.95
# Of 16,000 honest comparisons one differs by more.
_STANDARD_ERRORS = 4
_SYSTEM = SystemRandom()
_ASK = "ask for one that `hpcai500 submit` made without --no-checkpoints"


def replay_check(replay: Replay, most: int | None = None, draw: Draw = _SYSTEM.sample) -> Check:
    """Return a check that replays checkpoints of done trials.

    Args:
        replay: evaluates those of one trial.
        most: number of trials, drawn at random; None replays all.
        draw: draws them; nobody may foresee it.
    """

    def check_replay(context: Context) -> Iterator[Finding]:
        """Replay the drawn trials; a replay that was asked for and cannot be made refuses."""
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
    """Findings of a submission that is refused anyway: its untrusted weights are not loaded."""
    return [skipped(_MISSING, "not replayed: the submission is refused anyway")] if replay else []


def _replayed(replay: Replay, context: Context, name: str) -> Generator[Finding, None, Mapping[str, Any] | None]:
    """Return what the replay of one trial found; None where its last checkpoint is not here."""
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
    """Compare what a replay of `record` found with what the record tells."""
    dataset, counted = values(record, "dataset")[-1], values(record, "flops")[-1]
    yield _same_data(name, dataset, document)
    if document["samples"] != dataset["evaluation_samples"]:
        yield fail(
            _QUALITY, f"{name}: {document['samples']} samples here, {dataset['evaluation_samples']} in the record"
        )
    else:
        yield _same_quality(_QUALITY, name, values(record, "eval_accuracy")[-1], document["value"], record, document)
    if "at_target" in document:
        found = document["at_target"]["value"]
        yield _same_quality(_TARGET, name, _reaching(record), found, record, document)
    if document["flops_per_sample"] != counted["per_sample"]:
        yield fail(
            _FLOPS, f"{name}: {document['flops_per_sample']!r} FLOPs a sample here, {counted['per_sample']!r} there"
        )
    else:
        yield note(_FLOPS, f"{name}: {counted['per_sample']!r} FLOPs a sample, counted again")
    yield _not_less(_TRAINING, name, "training samples, drawn here", document["training"], document)
    if "held_back" in document:
        yield _not_less(_HELD_BACK, name, "samples held back", document["held_back"], document)


def tolerances_of(metric: str, samples: int, precision: str) -> tuple[float, float] | None:
    """Return how far two evaluations of the same weights may lie apart, on one kind of device and on two.

    In the unit of the metric. None for a plug-in's metric, whose unit and noise are not known here.
    """
    place = int(precision != "fp32")
    if metric == "top1":
        one = max(_TOP1_IMAGES / samples, _TOP1[place])
    elif metric == "map50":
        one = _MAP50[place] / math.sqrt(samples)
    else:
        return None
    return one, max(one, _OTHER_DEVICE[metric])


def _tolerances(document: Mapping[str, Any]) -> tuple[float, float] | None:
    return tolerances_of(str(document["metric"]), int(document["samples"]), str(document["precision"]))


def _other_device(record: Record, document: Mapping[str, Any]) -> str | None:
    """Name both kinds of device, where the run and this replay had different ones."""
    ran = record.tables["accelerator"]["device"]
    return None if ran == document["device"] else f"the run was on {ran}, this replay on {document['device']}"


def _same_data(name: str, dataset: Mapping[str, Any], document: Mapping[str, Any]) -> Finding:
    """Compare the data set that the record names with the one here. It cannot show what was trained on."""
    if document["fingerprint"] != dataset["fingerprint"]:
        fingerprints = f"{document['fingerprint']} here, {dataset['fingerprint']} in the record"
        return fail(_DATA, f"{name}: another data set, or another copy of it: its fingerprint is {fingerprints}")
    here, told = document["content_fingerprint"], dataset.get("content_fingerprint")
    if here and told and here != told:
        what = f"{here} here, {told} in the record"
        return fail(_DATA, f"{name}: other content in files of the same names and sizes: {what}")
    what = "names, sizes and content" if here and told else "names and sizes; content: `hpcai500 data check`"
    return note(_DATA, f"{name}: the record names the data here ({document['fingerprint']}: {what})")


def _same_quality(
    check: str, name: str, told: Mapping[str, Any], found: float, record: Record, document: Mapping[str, Any]
) -> Finding:
    metric, difference = document["metric"], abs(found - told["value"])
    evidence = f"{name}: epoch {told['epoch']}: {metric} {found!r} here, {told['value']!r} in the record"
    tolerances = _tolerances(document)
    if tolerances is None:
        if difference == 0:
            return note(check, evidence)
        return warning(check, f"{evidence}; how far apart rounding puts two values of {metric} is not known here")
    one_kind, two_kinds = tolerances
    if difference <= one_kind:
        return note(check, f"{evidence}: within {one_kind:g}")
    other = _other_device(record, document)
    if other is None:
        return fail(check, f"{evidence}; at most {one_kind:g} may lie between them")
    if difference > two_kinds:
        return fail(check, f"{evidence}; at most {two_kinds:g} may lie between them on two kinds of device")
    return warning(check, f"{evidence}, more than {one_kind:g} apart: {other}; replay it on the run's kind of device")


def _not_less(check: str, name: str, what: str, other: Mapping[str, Any], document: Mapping[str, Any]) -> Finding:
    """Weights that were trained on the evaluation set are better there than anywhere else."""
    metric, here = document["metric"], document["value"]
    evidence = f"{name}: {metric} {here:.4f} on the evaluation set, {other['value']:.4f} on {other['samples']} {what}"
    margin = _margin(document, other)
    if margin is None:
        return skipped(check, f"{evidence}: how much of {metric} chance explains is not known here")
    if here - other["value"] > margin:
        return fail(check, f"{evidence}: chance explains {margin:.4f}, training on the evaluation set more")
    return note(check, f"{evidence}: not less by more than chance explains ({margin:.4f})")


def _margin(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return by how much chance may let two samples of one origin differ: standard errors of two pooled proportions.

    None where the quality is no proportion that we know: a plug-in's may have any unit.
    """
    if _tolerances(one) is None or not all(0 <= each["value"] <= 1 for each in (one, other)):
        return None
    sizes = one["samples"], other["samples"]
    pooled = (one["value"] * sizes[0] + other["value"] * sizes[1]) / sum(sizes)
    return _STANDARD_ERRORS * math.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))


def _raised(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Noise goes both ways and averages out over many trials; whoever forges only raises."""
    above = {_QUALITY: list[float](), _TARGET: list[float]()}
    for name, document in found.items():
        record = context.done[name]
        above[_QUALITY].append(values(record, "eval_accuracy")[-1]["value"] - document["value"])
        if "at_target" in document:
            above[_TARGET].append(_reaching(record)["value"] - document["at_target"]["value"])
    tolerances = [both[0] for both in map(_tolerances, found.values()) if both]
    others = [other for name in found if (other := _other_device(context.done[name], found[name]))]
    for check, differences in above.items():
        runs = len(differences) or 1
        mean, most = math.fsum(differences) / runs, max(tolerances, default=math.inf) / math.sqrt(runs)
        if mean <= most:
            continue
        what = f"{runs} trials tell {mean:.3g} more on average than is found here"
        if others:
            # Another device decodes and sums differently for all images, so that all trials may move alike.
            yield warning(check, f"{what}, more than {most:.3g}: {others[0]}; replay them on the run's kind of device")
        else:
            yield fail(check, f"{what}; at most {most:.3g} may be noise, which goes both ways")


def _twins(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Separate trainings end with different weights; a copy is found despite noise, scaling and changes of sign."""
    # A plug-in's model may have one layer, and so one optimum, wherever training begins.
    tell = fail if context.asked.rules else warning
    weights = {
        name: [
            (np.array(one["sketch"]), np.array(one["filters"]))
            for one in (document, document.get("at_target")) if one
        ]
        for name, document in found.items()
    }  # fmt: skip
    most = 0.0
    for (name, own), (other, others) in combinations(weights.items(), 2):
        pairs = list(product(own, others))
        closest = max(abs(cosine(one, two)) for (one, _), (two, _) in pairs)
        matched = max(match_of(one, two) for (_, one), (_, two) in pairs)
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


def match_of(filters: ArrayLike, others: ArrayLike) -> float:
    """Return how alike the filters (n, size) of two nets are, in any order, 0 to 1.

    The median over the filters of the cosine, of either sign, with the other net's nearest filter; 0 without filters.
    """
    left, right = np.asarray(filters), np.asarray(others)
    if not left.size or not right.size:
        return 0.0
    return float(np.median(np.abs(left @ right.T).max(axis=1)))


def cosine(one: ArrayLike, other: ArrayLike) -> float:
    """Cosine of the angle between two sketches, -1 to 1; 0 where one has no direction."""
    left, right = np.asarray(one), np.asarray(other)
    norms = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / norms if norms else 0.0


def _not_shown(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Say what a replay leaves open, whatever it found."""
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
    reached = first_reaching(record.events, float(record.tables["problem"]["target_quality"]))
    assert reached is not None
    value: Mapping[str, Any] = reached["value"]
    return value
