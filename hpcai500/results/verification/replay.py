"""Replays checkpoints of trials: they must reproduce the recorded qualities, and be separately trained weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations, product
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from hpcai500.errors import WrongAnswerError
from hpcai500.methodology.conduct import is_sharded
from hpcai500.methodology.passes import first_reaching
from hpcai500.record import Record
from hpcai500.results.verification.campaign import earlier_at_target, last_checkpoint, path_of
from hpcai500.results.verification.context import Check, Context
from hpcai500.results.verification.facts import is_of_our_version, values
from hpcai500.results.verification.finding import Finding, fail, note, skipped, warning

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Replay = Callable[[Path, Path, Path | None], Mapping[str, Any]]
"""`replay(recipe file, last checkpoint, checkpoint at the target if it is another one)` returns what
`hpcai500.engine.replay_command` writes; it raises WrongAnswerError if a checkpoint is refused."""

Draw = Callable[[Sequence[str], int], Sequence[str]]
"""`draw(names of trials, number)` returns so many of them."""

_QUALITY, _DATA, _FLOPS, _CHECKPOINT = "replay-quality", "replay-dataset", "replay-flops", "replay-checkpoint"
_MISSING, _TARGET, _TWINS, _TRAINING = "replay-missing", "replay-target", "replay-twins", "replay-training"
_HELD_BACK, _NOT_SHOWN = "replay-held-back", "replay-not-shown"
# Differences that rounding may cause, as it flips answers that were nearly ties (measured: docs/verification.md), in
# fp32 and in any other precision. Of top1, but at least two images; of mAP, divided by the root of the images' number.
_TOP1, _TOP1_IMAGES = (0.0005, 0.002), 2
_MAP50 = (0.02, 0.08)
# The same for another kind of device, which decodes and sums differently for all images; not measured.
_OTHER_DEVICE = {"top1": 0.002, "map50": 0.01}
# Separate trainings have a cosine within 0.05; a copy with noise as large as its weights has 0.4.
_MOST_COSINE = 0.3
# Of first filters. All nets for one kind of image have some in common, so that more is only a warning.
_MOST_MATCH = 0.95
# One in 16,000 honest comparisons differs by more.
_STANDARD_ERRORS = 4
_SYSTEM = SystemRandom()
_ASK = "ask for one that `hpcai500 submit` made without --no-checkpoints"


def replay_check(replay: Replay, most: int | None = None, draw: Draw = _SYSTEM.sample) -> Check:
    """Return a check that replays checkpoints of done trials.

    Args:
        replay: evaluates the checkpoints of one trial.
        most: number of trials, drawn at random; None replays all.
        draw: draws them; must be unpredictable.
    """

    def check_replay(context: Context) -> Iterator[Finding]:
        """Replay the drawn trials; a trial that cannot be replayed is a failure."""
        names = list(context.done)
        if len(names) < (most or 1):
            yield fail(_MISSING, f"a replay of {most or 'all'} trials was requested; {len(names)} were finished")
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
    """Finding for a submission that is refused anyway: its untrusted weights are not loaded."""
    return [skipped(_MISSING, "not replayed: the submission is refused anyway")] if replay else []


def _replayed(replay: Replay, context: Context, name: str) -> Generator[Finding, None, Mapping[str, Any] | None]:
    """Return the result of the replay of one trial; None if its last checkpoint is missing."""
    record, submission = context.done[name], context.submission
    last, earlier = last_checkpoint(record), earlier_at_target(record)
    if is_sharded(record.tables["programming"]):
        yield fail(_MISSING, f"{name}: its model was sharded, and the checkpoints of such models cannot be replayed")
        return None
    if last is None or path_of(name, last) not in submission.entries:
        yield fail(_MISSING, f"{name}: its last checkpoint is missing, so that it cannot be replayed: {_ASK}")
        return None
    if earlier and path_of(name, earlier) not in submission.entries:
        if is_of_our_version(record):
            what = f"{name}: {earlier.get('file')}, which reached the target, is missing"
            yield fail(_MISSING, f"{what}, so that its time to quality cannot be replayed: {_ASK}")
        earlier = None
    with ExitStack() as extracted:

        def file(checkpoint: Mapping[str, Any], as_name: str) -> Path:
            path = submission.folder.parent / as_name
            extracted.callback(path.unlink, missing_ok=True)
            submission.extract(path_of(name, checkpoint), path)
            return path

        at_target = file(earlier, "target.pt") if earlier else None
        return replay(record.path / "recipe.toml", file(last, "checkpoint.pt"), at_target)


def compared(name: str, record: Record, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the result of a replay with the record."""
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
            _FLOPS, f"{name}: {document['flops_per_sample']!r} FLOPs a sample here, {counted['per_sample']!r} recorded"
        )
    else:
        yield note(_FLOPS, f"{name}: {counted['per_sample']!r} FLOPs a sample, counted again")
    yield _not_less(_TRAINING, name, "training samples, drawn here", document["training"], document)
    if "held_back" in document:
        yield _not_less(_HELD_BACK, name, "samples held back", document["held_back"], document)


def tolerances_of(metric: str, samples: int, precision: str) -> tuple[float, float] | None:
    """Return the largest difference of two evaluations of the same weights, on one kind of device and on two kinds.

    In the unit of the metric. None for a plug-in's metric, whose unit and noise are unknown.
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
    """Name both kinds of device if the run and this replay used different ones."""
    ran = record.tables["accelerator"]["device"]
    return None if ran == document["device"] else f"the run was on {ran}, this replay on {document['device']}"


def _same_data(name: str, dataset: Mapping[str, Any], document: Mapping[str, Any]) -> Finding:
    """Compare the recorded data set with the one here. This does not prove that the run trained on it."""
    if document["fingerprint"] != dataset["fingerprint"]:
        fingerprints = f"{document['fingerprint']} here, {dataset['fingerprint']} in the record"
        return fail(_DATA, f"{name}: another data set, or another copy of it: its fingerprint is {fingerprints}")
    here, recorded = document["content_fingerprint"], dataset.get("content_fingerprint")
    if here and recorded and here != recorded:
        what = f"{here} here, {recorded} in the record"
        return fail(_DATA, f"{name}: other content in files of the same names and sizes: {what}")
    what = "names, sizes and content" if here and recorded else "names and sizes; content: `hpcai500 data check`"
    return note(_DATA, f"{name}: the same data set as in the record ({document['fingerprint']}: {what})")


def _same_quality(
    check: str, name: str, recorded: Mapping[str, Any], found: float, record: Record, document: Mapping[str, Any]
) -> Finding:
    metric, difference = document["metric"], abs(found - recorded["value"])
    evidence = f"{name}: epoch {recorded['epoch']}: {metric} {found!r} here, {recorded['value']!r} in the record"
    tolerances = _tolerances(document)
    if tolerances is None:
        if difference == 0:
            return note(check, evidence)
        return warning(check, f"{evidence}; the effect of rounding on {metric} is unknown")
    one_kind, two_kinds = tolerances
    if difference <= one_kind:
        return note(check, f"{evidence}: within {one_kind:g}")
    other = _other_device(record, document)
    if other is None:
        return fail(check, f"{evidence}; they may differ by at most {one_kind:g}")
    if difference > two_kinds:
        return fail(check, f"{evidence}; they may differ by at most {two_kinds:g} on two kinds of device")
    return warning(check, f"{evidence}, more than {one_kind:g} apart: {other}; replay it on the run's kind of device")


def _not_less(check: str, name: str, what: str, other: Mapping[str, Any], document: Mapping[str, Any]) -> Finding:
    """Check that the weights are not better on the evaluation set than elsewhere: they were not trained on it."""
    metric, here = document["metric"], document["value"]
    evidence = f"{name}: {metric} {here:.4f} on the evaluation set, {other['value']:.4f} on {other['samples']} {what}"
    margin = _margin(document, other)
    if margin is None:
        return skipped(check, f"{evidence}: the effect of chance on {metric} is unknown")
    if here - other["value"] > margin:
        return fail(
            check, f"{evidence}: chance explains a difference of {margin:.4f}; was the evaluation set trained on?"
        )
    return note(check, f"{evidence}: chance explains a difference of {margin:.4f}")


def _margin(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the largest difference of two samples from one population: standard errors of two pooled proportions.

    None if the quality is not known to be a proportion: a plug-in's may have any unit.
    """
    if _tolerances(one) is None or not all(0 <= each["value"] <= 1 for each in (one, other)):
        return None
    sizes = one["samples"], other["samples"]
    pooled = (one["value"] * sizes[0] + other["value"] * sizes[1]) / sum(sizes)
    return _STANDARD_ERRORS * math.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))


def _raised(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Check that recorded qualities are not higher on average: noise averages out over trials, forgery does not."""
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
        what = f"{runs} trials: recorded qualities are on average {mean:.3g} above those found here"
        if others:
            # Another device decodes and sums differently for all images, so that all trials may differ alike.
            yield warning(check, f"{what}, more than {most:.3g}: {others[0]}; replay them on the run's kind of device")
        else:
            yield fail(check, f"{what}; noise explains at most {most:.3g}")


def _twins(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Find copied weights, despite noise, scaling and changes of sign: separate trainings end with different ones."""
    import numpy as np  # here and below, as most verifications replay nothing, and it takes long to load

    # A plug-in's model may have one layer, and so the same optimum from every start.
    make = fail if context.asked.rules else warning
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
            what = f"the cosine of their weights is {closest:.4f}; separate trainings have about 0"
            yield make(_TWINS, f"{name} and {other}: {what}, a copy with noise about 1")
        elif matched > _MOST_MATCH:
            what = f"half of the filters of their first convolutions are nearly equal (cosine at least {matched:.4f})"
            yield warning(_TWINS, f"{name} and {other}: {what}: the same net with reordered channels?")
    if len(weights) > 1 and most <= _MOST_COSINE:
        yield note(_TWINS, f"{len(weights)} trials: the cosine of the weights of any two is at most {most:.3f}")


def match_of(filters: ArrayLike, others: ArrayLike) -> float:
    """Return the similarity, 0 to 1, of the filters (n, size) of two nets in any order.

    This is the median over the filters of the absolute cosine with the other net's nearest filter; 0 without filters.
    """
    import numpy as np

    left, right = np.asarray(filters), np.asarray(others)
    if not left.size or not right.size:
        return 0.0
    return float(np.median(np.abs(left @ right.T).max(axis=1)))


def cosine(one: ArrayLike, other: ArrayLike) -> float:
    """Cosine of the angle between two sketches, -1 to 1; 0 if one is zero."""
    import numpy as np

    left, right = np.asarray(one), np.asarray(other)
    norms = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / norms if norms else 0.0


def _not_shown(context: Context, found: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Report what a replay cannot prove, whatever it found."""
    open_questions = [
        "that these weights were trained in these runs, by this code and in this time",
        "evaluations other than the last and the first at the target",
    ]
    without = [
        name for name, document in found.items()
        if "at_target" not in document and earlier_at_target(context.done[name])
    ]  # fmt: skip
    if without:
        open_questions.append(f"the time to quality of {', '.join(without)}, without a checkpoint at the target")
    if len(found) < len(context.done):
        open_questions.append(f"trials other than {', '.join(found)}, drawn from {len(context.done)}")
    if not any("held_back" in document for document in found.values()):
        open_questions.append("quality on samples that the submitter lacks (--held-back DATA)")
    return skipped(_NOT_SHOWN, f"this replay does not prove {'; '.join(open_questions)}")


def _reaching(record: Record) -> Mapping[str, Any]:
    """The evaluation at which the target was reached."""
    reached = first_reaching(record.events, record.tables["problem"])
    assert reached is not None
    value: Mapping[str, Any] = reached["value"]
    return value
