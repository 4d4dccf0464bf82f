"""A member of an ensemble leaves what the vote needs, of as many samples as there are; nobody else leaves any."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from hpcai500.methodology.integrity.values import Dataset, OutOfBag, Predictions
from hpcai500.methodology.member_predictions import EVALUATION, OUT_OF_BAG, expected_kinds, file_of
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail
from hpcai500.results.verification.records.drawn import draws_can_be_made
from hpcai500.results.verification.records.run import Run, judged

_NAME = "predictions"
_GRID, _MEAN = 1e-6, 1e-9
_COUNTED = ("top1",)


def check_predictions(run: Run) -> Iterator[Finding]:
    """Events that vouch for predictions, with the recipe, the data set and the draws that the recipe makes of it."""
    yield from judged(_NAME, _faults(run), fail)


def _faults(run: Run) -> Iterator[str]:
    told = {one.kind: one for one in run.log.values(Predictions, "predictions")}
    expected = expected_kinds(run.record.tables)
    if set(told) != set(expected):
        yield f"predictions of {', '.join(sorted(told)) or 'nothing'}; expected {', '.join(expected) or 'none'}"
        return
    for kind, one in told.items():
        if one.file != file_of(kind):
            yield f"{kind}: in {one.file}, expected {file_of(kind)}"
        wanted = _samples(run, kind)
        if wanted is not None and one.samples != wanted:
            yield f"{kind}: of {one.samples} samples, expected {wanted}"
    judgements = run.log.values(OutOfBag, "out_of_bag")
    if bool(judgements) != (OUT_OF_BAG in told):
        yield f"{len(judgements)} events out_of_bag; predictions of {', '.join(sorted(told)) or 'nothing'}"
    elif judgements:
        yield from _judgement_faults(judgements[-1], told[OUT_OF_BAG].samples, run.field("problem", "metric"))


def _samples(run: Run, kind: str) -> int | None:
    """How many samples predictions of this kind are of; None where that cannot be computed again."""
    dataset = run.log.values(Dataset, "dataset")[-1]
    if kind == EVALUATION:
        return dataset.evaluation_samples
    if not draws_can_be_made(run, dataset):
        return None
    strata = tuple(dataset.drawn.strata) if dataset.drawn else ()
    seed, count = int(run.field("hyperparameters", "seed")), int(run.field("ensemble", "out_of_bag_samples"))
    return _unseen(dataset.training_samples, seed, str(run.field("ensemble", "sampling")), strata, count)


def _judgement_faults(one: OutOfBag, samples: int, metric: str) -> Iterator[str]:
    name = f"out of bag: {one.metric} {one.value!r}"
    if one.metric != metric or one.samples != samples or (one.value is None) != (samples == 0):
        yield f"{name} of {one.samples} samples, expected {metric} of {samples}"
    if one.value is None:
        return
    if not 0 <= one.value <= 1:
        yield f"{name}, expected 0 to 1"
    correct = one.value * one.samples
    if one.metric in _COUNTED and not abs(correct - round(correct)) <= _GRID:
        yield f"{name} would be {correct:.6f} correct of {one.samples} samples"
    occurring = [value for value in (one.per_class or {}).values() if value is not None]
    if one.per_class is not None and not abs(math.fsum(occurring) / max(1, len(occurring)) - one.value) <= _MEAN:
        yield f"{name} is not the mean over its classes, {math.fsum(occurring) / max(1, len(occurring)):.9g}"


@lru_cache(maxsize=16)
def _unseen(samples: int, seed: int, sampling: str, strata: tuple[int, ...], count: int) -> int:
    from hpcai500.methodology.bootstrap import draws, unseen_probe  # noqa: PLC0415 - imports numpy

    return int(unseen_probe(draws(samples, seed, sampling, strata), samples, count).size)
