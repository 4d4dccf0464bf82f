"""Predictions of an ensemble's member for each sample, its vote (V3.0 section 3.1), written after training.

If the process is killed here, only these files are missing in the record. A resumed run makes them from the last
checkpoint, which holds exactly the weights of the last evaluation; nothing is trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest
from typing import Any

import numpy as np
from torch import nn

from hpcai500.comm.liveness import EVALUATING, WRITING
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.reporting import Journal
from hpcai500.engine.signals import StopRequest
from hpcai500.errors import RecordError, RunError, StoppedError, WrongAnswerError
from hpcai500.layers import Recipe
from hpcai500.methodology.ensemble import EVALUATION, OUT_OF_BAG, expected_kinds, vouched
from hpcai500.methodology.passes import last_pass
from hpcai500.methodology.sampling import SampleIds, unseen_probe
from hpcai500.plugins import find_plugin
from hpcai500.record import Record, read_record
from hpcai500.workloads.base import Evaluation, Workload
from hpcai500.workloads.voting import Predictions, voter, write_arrays

EvaluationMode = Callable[[], AbstractContextManager[nn.Module]]


@dataclass(frozen=True)
class Member:
    """A trained member of an ensemble; `evaluation_mode` gives its model as evaluations call it."""

    recipe: Recipe
    workload: Workload
    evaluation_mode: EvaluationMode
    ranks: Ranks
    journal: Journal
    stop: StopRequest


def missing_kinds(recipe: Recipe, record: Record | None) -> tuple[str, ...]:
    """Kinds of predictions that a run still has to make (record None: a new run).

    These are predictions without an event, and those whose file does not have the hash in the event.
    """
    events = vouched(record.events) if record else {}
    return tuple(
        kind
        for kind in expected_kinds(recipe.model_dump(mode="json"))
        if record is None or kind not in events or not _is_intact(record, events[kind])
    )


def write_predictions(member: Member, kinds: Sequence[str]) -> None:
    """Make, check and write predictions of these kinds; called by all ranks.

    Raises:
        RunError: predictions are not finite, or do not give the quality of the last evaluation; the disk is full.
        StoppedError: a signal asked to stop.
    """
    facts = member.workload.dataset()
    for kind in kinds:
        _stop_together(member)
        samples = None if kind == EVALUATION else _unseen(member, facts["training_samples"])
        ids = np.arange(facts["evaluation_samples"]) if samples is None else samples
        found = _predictions(member, kind, samples, len(ids))
        if member.ranks.leads:
            member.ranks.phase(WRITING)
            _keep(member, kind, found, ids)
    member.ranks.world.barrier()


def _unseen(member: Member, training_samples: int) -> SampleIds:
    assert member.recipe.ensemble is not None
    return unseen_probe(member.workload.drawn, training_samples, member.recipe.ensemble.out_of_bag_samples)


def _predictions(member: Member, kind: str, samples: SampleIds | None, count: int) -> Predictions:
    member.ranks.phase(EVALUATING)
    with member.ranks.tracker()(count, f"predicting, {kind}", "samples") as bar, member.evaluation_mode() as model:
        done = 0

        def on_batch(now: int) -> None:
            nonlocal done
            member.ranks.progress()
            bar.advance(min(now, count) - done)
            done = min(now, count)
            # Several ranks stop together, between two files.
            if member.stop.signal and member.ranks.world.size == 1:
                raise _stopped(member, member.stop.signal.name)

        return member.workload.predictions(model, samples, on_batch)


def _keep(member: Member, kind: str, found: Predictions, ids: SampleIds) -> None:
    recipe, journal = member.recipe, member.journal
    try:
        quality = voter(recipe, ids).alone(found)
    except WrongAnswerError as error:
        raise RunError(f"this member cannot vote: its {kind} predictions: {error}") from error
    if kind == EVALUATION:
        _require_same_quality(quality, journal, recipe)
    journal.write_predictions(kind, len(ids), partial(write_arrays, arrays=found))
    if kind == OUT_OF_BAG:
        journal.event("out_of_bag", _out_of_bag_value(recipe, quality))


def _out_of_bag_value(recipe: Recipe, quality: Evaluation | None) -> dict[str, Any]:
    """The value of the event `out_of_bag`; quality is None if the member has drawn all samples of the probe."""
    value = None if quality is None else quality.value
    per_class = dict(quality.per_class) or None if quality else None
    samples = 0 if quality is None else quality.samples
    return {"metric": recipe.problem.metric, "value": value, "samples": samples, "per_class": per_class}


def _require_same_quality(found: Evaluation | None, journal: Journal, recipe: Recipe) -> None:
    expected = last_evaluation(read_record(journal.path))
    if found is None or not is_same_quality(found, expected):
        given = "nothing" if found is None else f"{found.value!r} of {found.samples} samples"
        plugin = find_plugin(recipe.benchmark)
        raise RunError(
            f"the predictions give {recipe.problem.metric} {given}, but the last evaluation gave {expected['value']!r} "
            f"of {expected['samples']}: "
            + (f"either evaluate and predictions of the {plugin.title} disagree, or " if plugin else "")
            + f"this machine or number of ranks does not reproduce it bit for bit: resume where the run was trained, "
            f"with --resume --out {journal.path}"
        )


def last_evaluation(record: Record) -> Mapping[str, Any]:
    """The value of the last `eval_accuracy` that counts.

    Raises:
        RecordError: there is none.
    """
    evaluations = last_pass(record.events, "eval_accuracy")
    if not evaluations:
        raise RecordError(f"{record.path}: the run was never evaluated")
    value: Mapping[str, Any] = evaluations[max(evaluations)]["value"]
    return value


def is_same_quality(found: Evaluation, recorded: Mapping[str, Any]) -> bool:
    """Whether a quality equals that of the event `eval_accuracy`, bit for bit."""
    is_same = (found.value, found.samples) == (recorded["value"], recorded["samples"])
    return bool(is_same) and dict(found.per_class) == (recorded.get("per_class") or {})


def _stop_together(member: Member) -> None:
    names = [name for name in member.ranks.world.gather_objects(member.stop.signal and member.stop.signal.name) if name]
    if names:
        raise _stopped(member, names[0])


def _stopped(member: Member, name: str) -> StoppedError:
    return StoppedError(
        f"stopped by {name} after training, before all predictions were written; nothing is lost: go on with "
        f"`hpcai500 {member.recipe.benchmark} --resume --out {member.journal.path}`"
    )


def _is_intact(record: Record, value: Mapping[str, Any]) -> bool:
    try:
        with (record.path / value["file"]).open("rb") as stream:
            return bool(file_digest(stream, "sha256").hexdigest() == value["sha256"])
    except OSError:
        return False
