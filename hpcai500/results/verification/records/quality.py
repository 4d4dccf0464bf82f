"""The quality is one that so many samples can give, and it came as quality comes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpcai500.methodology.integrity.values import Evaluation
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.run import Run, judged

_NAME = "quality"
# Correct samples are counted: the metric is one of k / samples.
_COUNTED = ("top1",)
_GRID = 1e-6
_MEAN = 1e-9
# Epochs before the last, what may be gained on the best of them, and how many standard errors more.
_BEFORE, _GAIN, _ERRORS = 5, 0.03, 4.0


def check_quality(run: Run) -> Iterator[Finding]:
    """Each evaluation by itself; the last with those before it."""
    metric = run.field("problem", "metric")
    yield from judged(_NAME, (fault for one in run.log.evaluations for fault in _faults(one, metric)), fail)
    told = [one.evaluation for one in run.epochs if one.evaluation]
    target = run.field("problem", "target_quality")
    yield from judged("quality-leap", [*_leap(told), *_lost_again(told, target)], warning)


def _faults(one: Evaluation, metric: str) -> Iterator[str]:
    name = f"epoch {one.epoch}: {one.metric} {one.value!r}"
    if one.metric != metric:
        yield f"{name}, expected {metric}"
    if not 0 <= one.value <= 1:
        yield f"{name}, expected 0 to 1"
        return
    correct = one.value * one.samples
    if one.metric in _COUNTED and not abs(correct - round(correct)) <= _GRID:
        yield f"{name} would be {correct:.6f} correct of {one.samples} samples"
    occurring = [value for value in (one.per_class or {}).values() if value is not None]
    if any(not 0 <= value <= 1 for value in occurring):
        yield f"{name}: a class has a precision beyond 0 to 1"
    if one.per_class is not None and not abs(math.fsum(occurring) / max(1, len(occurring)) - one.value) <= _MEAN:
        yield f"{name} is not the mean over its classes, {math.fsum(occurring) / max(1, len(occurring)):.9g}"


def _leap(told: Sequence[Evaluation]) -> Iterator[str]:
    """The last evaluation, far above the best of those before it: at the end of a schedule nothing leaps."""
    if len(told) <= _BEFORE:
        return
    last = told[-1]
    best = max(one.value for one in told[-1 - _BEFORE : -1])
    if _is_far_above(last, best):
        yield f"the last epoch reached {last.value:.4f}, the best of the {_BEFORE} before it {best:.4f}"


def _lost_again(told: Sequence[Evaluation], target: float) -> Iterator[str]:
    """The evaluation that stops the time to quality, far above those after it."""
    first = next((place for place, one in enumerate(told) if one.value >= target), len(told))
    after = [one.value for one in told[first + 1 : first + 1 + _BEFORE]]
    if after and _is_far_above(told[first], max(after)):
        one = told[first]
        yield f"epoch {one.epoch} reached the target with {one.value:.4f}, none after it more than {max(after):.4f}"


def _is_far_above(one: Evaluation, best: float) -> bool:
    error = math.sqrt(max(best * (1 - best), 0.0) / one.samples)
    return one.value - best > _GAIN + _ERRORS * error
