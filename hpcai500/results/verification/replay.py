"""The last checkpoint of a trial, evaluated again, must reproduce the quality that the trial claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcai500.errors import WrongAnswerError
from hpcai500.record import Record
from hpcai500.results.verification.checks.checkpoints import last_checkpoint, path_of
from hpcai500.results.verification.context import Check, Context
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped

Replay = Callable[[Path, Path], Mapping[str, Any]]
"""`replay(recipe file, checkpoint)`: what `hpcai500.engine.replay_command` writes; a checkpoint that is refused is a
WrongAnswerError."""

_QUALITY, _DATA, _FLOPS, _CHECKPOINT = "replay-quality", "replay-dataset", "replay-flops", "replay-checkpoint"
_MISSING = "replay-missing"
# Another device rounds otherwise, and flips answers that were nearly ties: docs/verification.md derives both.
_TOP1_SHARE, _TOP1_SAMPLES = 0.002, 2
_MAP50_TOLERANCE = 0.01
_ASK = "ask for one that `hpcai500 submit` made without --no-checkpoints"


def replay_check(replay: Replay, most: int | None = None) -> Check:
    """A check that replays the last checkpoints of done trials.

    Args:
        replay: evaluates one.
        most: of so many trials, the first ones; None replays all.
    """

    def check_replay(context: Context) -> Iterator[Finding]:
        """Data set, quality and operations of each trial; what was asked for and cannot be made refuses."""
        names = list(context.done)
        chosen = names if most is None else names[:most]
        if len(chosen) < (most or 1):
            yield fail(_MISSING, f"{most or 'all'} trials were asked for, {len(names)} came to their end")
        for name in chosen:
            record = context.done[name]
            last = last_checkpoint(record)
            path = path_of(name, last) if last else None
            if path is None or path not in context.submission.entries:
                yield fail(
                    _MISSING, f"{name}: its last checkpoint is not here, so its quality cannot be replayed: {_ASK}"
                )
                continue
            target = context.submission.folder.parent / "checkpoint.pt"
            context.submission.extract(path, target)
            try:
                document = replay(record.path / "recipe.toml", target)
            except WrongAnswerError as error:
                yield fail(_CHECKPOINT, f"{name}: {error}")
                continue
            finally:
                target.unlink(missing_ok=True)
            yield from compared(name, record, document)
        if len(chosen) < len(names):
            yield skipped(_CHECKPOINT, f"{len(chosen)} of {len(names)} trials were replayed, as asked")

    return check_replay


def replay_left_out(replay: Check | None) -> list[Finding]:
    """What a refused submission is told of the replay that was asked for: strange weights are not loaded in vain."""
    return [skipped(_MISSING, "not replayed: the submission is refused anyway")] if replay else []


def compared(name: str, record: Record, document: Mapping[str, Any]) -> Iterator[Finding]:
    """What a replay of `record` found, with what the record tells."""
    dataset, counted = values(record, "dataset")[-1], values(record, "flops")[-1]
    told = values(record, "eval_accuracy")[-1]
    if document["fingerprint"] != dataset["fingerprint"]:
        fingerprints = f"{document['fingerprint']} here, {dataset['fingerprint']} in the record"
        yield fail(_DATA, f"{name}: another data set, or another copy of it: its fingerprint is {fingerprints}")
    else:
        yield note(_DATA, f"{name}: the data here are the record's ({document['fingerprint']})")
    tolerance = tolerance_of(str(document["metric"]), int(document["samples"]))
    evidence = f"{name}: {document['metric']} {document['value']!r} here, {told['value']!r} in the record"
    if document["samples"] != dataset["evaluation_samples"]:
        yield fail(
            _QUALITY, f"{name}: {document['samples']} samples here, {dataset['evaluation_samples']} in the record"
        )
    elif abs(document["value"] - told["value"]) > tolerance:
        yield fail(_QUALITY, f"{evidence}; at most {tolerance:g} may lie between them")
    else:
        yield note(_QUALITY, f"{evidence}: within {tolerance:g}")
    if document["flops_per_sample"] != counted["per_sample"]:
        yield fail(
            _FLOPS, f"{name}: {document['flops_per_sample']!r} FLOPs a sample here, {counted['per_sample']!r} there"
        )
    else:
        yield note(_FLOPS, f"{name}: {counted['per_sample']!r} FLOPs a sample, counted again")


def tolerance_of(metric: str, samples: int) -> float:
    """How far two evaluations of the same weights may lie apart on different devices (unit of the metric)."""
    return max(_TOP1_SAMPLES / samples, _TOP1_SHARE) if metric == "top1" else _MAP50_TOLERANCE
