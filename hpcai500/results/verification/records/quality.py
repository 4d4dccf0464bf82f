"""The quality is one that so many samples can give, and it came as quality comes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from hpcai500.methodology.conduct import classes_left_out
from hpcai500.methodology.integrity.values import Dataset, Evaluation
from hpcai500.results.verification.finding import IMPLAUSIBLE, Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.run import Run, judged

_NAME, _CLASSES = "quality", "classes"
# Correct samples are counted: the metric is one of k / samples.
_COUNTED = ("top1",)
# Shares; a plug-in's metric may have any unit.
_SHARES = ("top1", "map50")
_GRID = 1e-6
_MEAN = 1e-9
# Epochs before the last, what may be gained on the best of them, and how many standard errors more.
_BEFORE, _GAIN, _ERRORS = 5, 0.03, 4.0
_MOST_NAMES = 8
# Of so many samples, two evaluations seldom have as many right; and of so many epochs, the first has learnt little.
FINE_GRID, _LEAST_EPOCHS, _EARLY = 1000, 5, 0.9
# In this share of the epochs, nobody has come so near to the last quality, or to the target.
_FIRST, _NEARLY = 0.1, 0.97


def check_quality(run: Run) -> Iterator[Finding]:
    """Each evaluation by itself; the last with those before it."""
    metric = run.field("problem", "metric")
    yield from judged(_NAME, (fault for one in run.log.evaluations for fault in _faults(one, metric)), fail)
    yield from judged(_CLASSES, _class_faults(run), fail)
    told = [one.evaluation for one in run.epochs if one.evaluation]
    target = run.field("problem", "target_quality")
    yield from judged("quality-leap", [*_leap(told), *_lost_again(told, target)], warning)
    yield from judged(IMPLAUSIBLE, _implausible(told, run), warning)


def _faults(one: Evaluation, metric: str) -> Iterator[str]:
    name = f"epoch {one.epoch}: {one.metric} {one.value!r}"
    if one.metric != metric:
        yield f"{name}, expected {metric}"
    if one.metric in _SHARES and not 0 <= one.value <= 1:
        yield f"{name}, expected 0 to 1"
        return
    correct = one.value * one.samples
    if one.metric in _COUNTED and not abs(correct - round(correct)) <= _GRID:
        yield f"{name} would be {correct:.6f} correct of {one.samples} samples"
    occurring = [value for value in (one.per_class or {}).values() if value is not None]
    if one.metric in _SHARES and any(not 0 <= value <= 1 for value in occurring):
        yield f"{name}: a class has a precision beyond 0 to 1"
    if one.per_class is not None and not abs(math.fsum(occurring) / max(1, len(occurring)) - one.value) <= _MEAN:
        yield f"{name} is not the mean over its classes, {math.fsum(occurring) / max(1, len(occurring)):.9g}"


def _class_faults(run: Run) -> Iterator[str]:
    """Each evaluation tells of the edition's classes and no other; what the data have of them counts in the mean."""
    names = run.rules.get("class_names")
    if not names:
        return
    absent = run.log.values(Dataset, "dataset")[-1].classes_not_evaluated or []
    for one in run.log.evaluations:
        if one.per_class is None:
            if run.log.leaves_evidence:
                yield f"epoch {one.epoch}: {one.metric} without its classes; expected {', '.join(names)}"
            continue
        if strange := sorted(set(one.per_class) ^ set(names)):
            yield f"epoch {one.epoch}: not the edition's classes, or not told: {_short(strange)}"
        left_out = classes_left_out([name for name in names if name not in absent], one.per_class)
        if left_out:
            yield (
                f"epoch {one.epoch}: the mean leaves out {_short(left_out)}; the data set has samples of "
                f"{len(names) - len(absent)} classes"
            )


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES])


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


def _implausible(told: Sequence[Evaluation], run: Run) -> Iterator[str]:
    """Qualities that no training of the edition's model on its data set has shown."""
    values = [one.value for one in told]
    highest = run.rules.get("implausible_quality")
    is_editions = run.field("problem", "dataset") == run.rules.get("dataset")
    if is_editions and highest is not None and max(values, default=0.0) > highest:
        best = max(told, key=lambda one: one.value)
        yield f"epoch {best.epoch}: {best.metric} {best.value:g}; no published training of this data set has {highest}"
    if len(told) < _LEAST_EPOCHS or told[0].samples < FINE_GRID:
        return
    value, times = Counter(values).most_common(1)[0]
    soon = min(_NEARLY * values[-1], float(run.field("problem", "target_quality"))) if values[-1] > 0 else math.inf
    if times > len(told) / 2:
        yield f"{times} of {len(told)} evaluations gave the same quality, {value!r}"
    elif values[-1] > 0 and values[0] > _EARLY * values[-1]:
        yield f"the first epoch had {values[0]:.4f} already, the last {values[-1]:.4f}: little was learnt"
    elif is_editions and (early := [one for one in told if one.epoch <= _FIRST * len(told) and one.value >= soon]):
        first = f"epoch {early[0].epoch} of {len(told)} had {early[0].value:.4f} already"
        yield f"{first}; the last has {values[-1]:.4f}, the target is {run.field('problem', 'target_quality'):g}"


def _is_far_above(one: Evaluation, best: float) -> bool:
    error = math.sqrt(max(best * (1 - best), 0.0) / one.samples)
    return one.value - best > _GAIN + _ERRORS * error
