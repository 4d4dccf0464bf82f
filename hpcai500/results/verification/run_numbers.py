"""Checks of the numbers of one run: losses, qualities, rates, speed compared with the ceilings, and model size."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from hpcai500.methodology.conduct import classes_left_out
from hpcai500.methodology.events import Ceilings, Dataset, Evaluation, Flops, Model, OutOfBag, ParallelEfficiency
from hpcai500.methodology.integrity import (
    MOST_OF_CEILING,
    ceiling,
    ceiling_faults,
    evaluation_rate,
    fast_epochs,
    fast_steps,
    training_rate,
)
from hpcai500.methodology.model_count import model_count
from hpcai500.methodology.passes import Better, better_of
from hpcai500.methodology.weak_scaling import MOST_EFFICIENCY
from hpcai500.results.verification.context import Run, one_finding
from hpcai500.results.verification.finding import IMPLAUSIBLE, Finding, fail, note, skipped, warning

# ----------------------------------------------------------------------------------------------------
# Loss: every epoch has another one, and it falls.


_LOSS = "loss"
# Losses of these are cross-entropies and distances; a plug-in's may be negative.
_NOT_NEGATIVE = ("ic", "ewa")
# Relative rounding of sums in half precision.
_ROUNDING = 0.01
# Epochs at each end whose losses are compared, from how many epochs on, and the largest ratio of the last to guessing.
_ENDS, _LEAST_EPOCHS, _WORSE_THAN_GUESSING = 3, 10, 3.0


def check_losses(run: Run) -> Iterator[Finding]:
    """Check the mean loss of each epoch: means of thousands of numbers in full precision are never equal."""
    yield from one_finding(_LOSS, _loss_faults(run), fail)
    yield from one_finding(IMPLAUSIBLE, _implausible_losses(run), warning)


def _loss_faults(run: Run) -> Iterator[str]:
    seen: dict[float, int] = {}
    least = _least_loss(run)
    for one in run.epochs:
        epoch, loss = one.done.epoch, one.done.loss
        if loss is None:
            yield f"epoch {epoch}: no loss"
            continue
        if loss < 0 and run.record.tables.get("benchmark") in _NOT_NEGATIVE:
            yield f"epoch {epoch}: a loss of {loss:.6g}, expected 0 or more"
        elif loss < least * (1 - _ROUNDING):
            yield f"epoch {epoch}: a loss of {loss:.6g}; with this label smoothing, the least is {least:.6g}"
        before = seen.setdefault(loss, epoch)
        if before != epoch:
            yield f"epochs {before} and {epoch} have exactly the same loss ({loss!r})"


def _least_loss(run: Run) -> float:
    """The entropy of the smoothed labels, below which no loss can be; 0 without smoothing."""
    if run.record.tables.get("benchmark") != "ic":
        return 0.0
    smoothing, classes = float(run.field("workload", "label_smoothing")), _classes(run)
    if smoothing == 0 or classes < 2:
        return 0.0
    other = smoothing / classes
    right = 1 - smoothing + other
    return -right * math.log(right) - (classes - 1) * other * math.log(other)


def _implausible_losses(run: Run) -> Iterator[str]:
    losses = [one.done.loss for one in run.epochs if one.done.loss is not None]
    if len(losses) >= _LEAST_EPOCHS:
        first, last = statistics.fmean(losses[:_ENDS]), statistics.fmean(losses[-_ENDS:])
        if last >= first:
            yield f"the loss did not fall: {first:.6g} in the first {_ENDS} epochs, {last:.6g} in the last"
    guess = math.log(max(2, _classes(run)))
    if run.record.tables.get("benchmark") == "ic" and losses and losses[-1] > _WORSE_THAN_GUESSING * guess:
        yield f"the last epoch has a loss of {losses[-1]:.6g}; guessing gives {guess:.6g}"


def _classes(run: Run) -> int:
    return run.log.values(Dataset, "dataset")[-1].classes or 0


# ----------------------------------------------------------------------------------------------------
# Quality: the number of samples allows it, and it develops as in training.


_QUALITY, _CLASSES = "quality", "classes"
# Metrics that count correct samples: each value is k / samples.
_COUNTED = ("top1",)
# Metrics from 0 to 1; a plug-in's may have any unit.
_SHARES = ("top1", "map50")
# Metrics that are the mean over classes by definition.
_OVER_CLASSES = ("map50",)
_GRID = 1e-6
_MEAN = 1e-9
# Epochs before the last, the largest gain over the best of them, and how many standard errors more.
_BEFORE, _GAIN, _ERRORS = 5, 0.03, 4.0
_MOST_NAMES = 8
# From so many samples on, two evaluations seldom have equally many right answers; from so many epochs on, the first has
# less than this share of the last quality.
FINE_GRID, _QUALITY_LEAST_EPOCHS, _EARLY = 1000, 5, 0.9
# Within this share of the epochs, no training reaches this share of the last quality, or the target.
_FIRST, _NEARLY = 0.1, 0.97


def check_quality(run: Run) -> Iterator[Finding]:
    """Check each evaluation by itself, and the last against those before it."""
    metric, better = run.field("problem", "metric"), better_of(run.record.tables["problem"])
    yield from one_finding(
        _QUALITY, (fault for one in run.log.evaluations for fault in _quality_faults(one, metric, better)), fail
    )
    yield from one_finding(_CLASSES, _class_faults(run), fail)
    evaluations = [one.evaluation for one in run.epochs if one.evaluation]
    target = run.field("problem", "target_quality")
    if better == "higher":
        yield from one_finding("quality-leap", [*_leap(evaluations), *_lost_again(evaluations, target)], warning)
    else:
        yield skipped("quality-leap", f"{metric} is a loss, whose changes by chance are unknown")
    yield from one_finding(IMPLAUSIBLE, _implausible_qualities(evaluations, run), warning)


def _quality_faults(one: Evaluation, metric: str, better: Better) -> Iterator[str]:
    name = f"epoch {one.epoch}: {one.metric} {one.value!r}"
    if one.metric != metric:
        yield f"{name}, expected {metric}"
    if better == "lower" and one.value < 0:
        yield f"{name}, expected 0 or more"
    if one.metric in _SHARES and not 0 <= one.value <= 1:
        yield f"{name}, expected 0 to 1"
        return
    of_classes = (one.per_class or {}).values()
    if one.metric in _SHARES and any(value is not None and not 0 <= value <= 1 for value in of_classes):
        yield f"{name}: the precision of a class is not within 0 to 1"
    yield from score_faults(name, one, one.value)


def score_faults(name: str, one: Evaluation | OutOfBag, value: float) -> Iterator[str]:
    """Where the quality `value` of `one` cannot be what its samples and its classes give."""
    correct = value * one.samples
    if one.metric in _COUNTED and not abs(correct - round(correct)) <= _GRID:
        yield f"{name} would be {correct:.6f} correct of {one.samples} samples"
    if one.metric not in _OVER_CLASSES or one.per_class is None:
        return
    occurring = [quality for quality in one.per_class.values() if quality is not None]
    mean = math.fsum(occurring) / max(1, len(occurring))
    if not abs(mean - value) <= _MEAN:
        yield f"{name} is not the mean over its classes, {mean:.9g}"


def _class_faults(run: Run) -> Iterator[str]:
    """Check that each evaluation has the edition's classes, and that its mean includes all classes in the data."""
    names = run.rules.get("class_names")
    if not names:
        return
    absent = run.log.values(Dataset, "dataset")[-1].classes_not_evaluated or []
    for one in run.log.evaluations:
        if one.per_class is None:
            if run.log.leaves_evidence:
                yield f"epoch {one.epoch}: {one.metric} without its classes; expected {', '.join(names)}"
            continue
        if others := sorted(set(one.per_class) ^ set(names)):
            yield f"epoch {one.epoch}: missing classes, or not the edition's: {_short(others)}"
        left_out = classes_left_out([name for name in names if name not in absent], one.per_class)
        if left_out:
            yield (
                f"epoch {one.epoch}: the mean leaves out {_short(left_out)}; the data set has samples of "
                f"{len(names) - len(absent)} classes"
            )


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES])


def _leap(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Report a last evaluation far above those before it: quality does not leap at the end of a schedule."""
    if len(evaluations) <= _BEFORE:
        return
    last = evaluations[-1]
    best = max(one.value for one in evaluations[-1 - _BEFORE : -1])
    if _is_far_above(last, best):
        yield f"the last epoch reached {last.value:.4f}, the best of the {_BEFORE} before it {best:.4f}"


def _lost_again(evaluations: Sequence[Evaluation], target: float) -> Iterator[str]:
    """Report a first evaluation at the target far above those after it."""
    first = next((place for place, one in enumerate(evaluations) if one.value >= target), len(evaluations))
    after = [one.value for one in evaluations[first + 1 : first + 1 + _BEFORE]]
    if after and _is_far_above(evaluations[first], max(after)):
        one = evaluations[first]
        yield (
            f"epoch {one.epoch} reached the target with {one.value:.4f}; the next {len(after)} have at most "
            f"{max(after):.4f}"
        )


def _implausible_qualities(evaluations: Sequence[Evaluation], run: Run) -> Iterator[str]:
    """Report qualities that no training of the edition's model on its data set has shown."""
    values = [one.value for one in evaluations]
    highest = run.rules.get("implausible_quality")
    is_editions = run.field("problem", "dataset") == run.rules.get("dataset")
    if is_editions and highest is not None and max(values, default=0.0) > highest:
        best = max(evaluations, key=lambda one: one.value)
        yield f"epoch {best.epoch}: {best.metric} {best.value:g}; no published training of this data set has {highest}"
    if len(evaluations) < _QUALITY_LEAST_EPOCHS or evaluations[0].samples < FINE_GRID:
        return
    value, times = Counter(values).most_common(1)[0]
    soon = min(_NEARLY * values[-1], float(run.field("problem", "target_quality"))) if values[-1] > 0 else math.inf
    epochs = len(evaluations)
    if times > epochs / 2:
        yield f"{times} of {epochs} evaluations gave the same quality, {value!r}"
    elif better_of(run.record.tables["problem"]) == "higher" and values[-1] > 0 and values[0] > _EARLY * values[-1]:
        yield f"the first epoch had {values[0]:.4f} already, the last {values[-1]:.4f}: little was learnt"
    elif is_editions and (early := [one for one in evaluations if one.epoch <= _FIRST * epochs and one.value >= soon]):
        first = f"epoch {early[0].epoch} of {epochs} had {early[0].value:.4f} already"
        yield f"{first}; the last has {values[-1]:.4f}, the target is {run.field('problem', 'target_quality'):g}"


def _is_far_above(one: Evaluation, best: float) -> bool:
    error = math.sqrt(max(best * (1 - best), 0.0) / one.samples)
    return one.value - best > _GAIN + _ERRORS * error


# ----------------------------------------------------------------------------------------------------
# Rates and speed: rates agree with each other, and none is above what the run's devices can reach.


_RATES_ROUNDING = 1e-9


def check_rates(run: Run) -> Iterator[Finding]:
    """Check that images are the samples of all epochs, and that rates times the time give images and FLOPs."""
    result = run.result
    if result is None:
        return
    images = sum(one.done.samples for one in run.epochs)
    names = result.samples.names
    moments = {moment.key: moment for moment in run.log.moments if moment.key == "run_stop"}
    begun = next(run.log.named("run_start"))
    pairs = {
        names: (result.images, images),
        f"{names} a second x seconds": (result.images_per_second * result.seconds, images),
        "FLOPS x seconds": (result.flops * result.seconds, images * result.flops_per_image),
    }
    if result.unit and result.units_per_second is not None:
        units = images * result.unit.per_sample
        pairs[f"{result.unit.name} a second x seconds"] = (result.units_per_second * result.seconds, units)
    if result.utilisation is not None:
        counted, most = run.log.values(Flops, "flops")[-1], ceiling(run.log.values(Ceilings, "ceilings")) or 0.0
        spent = math.fsum(one.done.seconds for one in run.epochs)
        trained = sum(one.trained for one in run.epochs) * counted.per_sample
        pairs["utilisation x matrix-product rate x seconds"] = (result.utilisation * most * spent, trained)
    if len(run.log.trained) == 1:
        pairs["seconds"] = (result.seconds, moments["run_stop"].clock_s - begun.clock_s)
    wrong = (
        f"{what} are {one:.9g} in the result, {other:.9g} by the events"
        for what, (one, other) in pairs.items()
        if not math.isclose(one, other, rel_tol=_RATES_ROUNDING)
    )
    yield from one_finding("arithmetic", wrong, fail)


_SPEED, _USUAL = "speed", "usual-speed"


def check_speed(run: Run) -> Iterator[Finding]:
    """Compare rates of all epochs and evaluations with the ceilings of the run, and with each other."""
    measured = run.log.values(Ceilings, "ceilings")
    yield from one_finding("ceilings", ceiling_faults(measured, run.field("accelerator", "precision")), fail)
    if len(measured) < len(run.log.worlds):
        what = f"ceilings were measured at {len(measured)} of {len(run.log.worlds)} starts"
        yield fail("ceilings", what) if run.log.leaves_evidence else warning("ceilings", f"{what}: an older version")
    yield from _with_ceiling(run, ceiling(measured))
    warm_ups = run.log.values(ParallelEfficiency, "parallel_efficiency")
    yield from one_finding(_USUAL, [*fast_epochs(run.epochs), *fast_steps(run.epochs, warm_ups)], warning)
    yield from one_finding(IMPLAUSIBLE, _too_efficient(warm_ups), warning)


def _too_efficient(warm_ups: Sequence[ParallelEfficiency]) -> Iterator[str]:
    """Report ranks that are faster together than one alone, which suggests that the one was slowed."""
    for number, one in enumerate(warm_ups, 1):
        median = statistics.median(one.efficiencies) if one.efficiencies else 0.0
        if median > MOST_EFFICIENCY:
            what = f"parallel efficiency {median:.3f} is above {MOST_EFFICIENCY:g}"
            yield f"start {number}: {what}: the one-rank step may have been slowed"


def _with_ceiling(run: Run, most: float | None) -> Iterator[Finding]:
    counted = run.log.values(Flops, "flops")[-1]
    rates = [(f"epoch {one.done.epoch}", training_rate(one, counted.per_sample)) for one in run.epochs]
    rates += [(f"evaluation {one.done.epoch}", evaluation_rate(one, counted.forward)) for one in run.epochs]
    if not most or not rates:
        return
    what, rate = max(rates, key=lambda pair: pair[1])
    ratio = rate / most
    evidence = f"{what}, the fastest, ran at {rate:.4g} FLOPS, {ratio:.3g} of the run's ceiling ({most:.4g})"
    if not ratio <= MOST_OF_CEILING:
        yield fail(_SPEED, f"{evidence}; no convolution exceeds {MOST_OF_CEILING}")
    elif ratio > 1:
        yield warning(_SPEED, f"{evidence}; Winograd's convolutions reach up to {MOST_OF_CEILING} in fp32")
    else:
        yield note(_SPEED, evidence)


# ----------------------------------------------------------------------------------------------------
# Model: parameters and FLOPs of a sample are those of the recipe's model.


_MODEL = "model"
_ANALYTIC = "analytic"
# Training takes the forward and two backward products; the gradient of the first layer's input is not needed.
_LEAST_OF_FORWARD, _MOST_OF_FORWARD = 1.0, 3.0
_MODEL_ROUNDING = 1e-9


def check_model(run: Run) -> Iterator[Finding]:
    """Compare the run's count with that of the recipe's model; a plug-in's model cannot be counted."""
    counted, model = run.log.values(Flops, "flops")[-1], run.log.values(Model, "model")[-1]
    yield from one_finding(_MODEL, _count_faults(counted), fail)
    dataset = run.log.values(Dataset, "dataset")[-1]
    # Fields that an older recipe lacks have the reference's values.
    workload = {**run.rules.get("reference", {}).get("workload", {}), **run.record.tables["workload"]}
    classes = len(run.rules.get("class_names", [])) or dataset.classes or run.rules.get("classes", 0)
    height, width = dataset.grid or run.rules.get("grid") or (0, 0)
    if workload.get("crop_width", 0) > width:
        yield fail(_MODEL, f"workload.crop_width is {workload['crop_width']}; the images have {width} columns")
    expected = model_count(str(run.record.tables.get("benchmark")), workload, classes, (height, width))
    if expected is None:
        yield skipped(_MODEL, f"a plug-in's model: its {counted.per_sample:.6g} FLOPs a sample were not checked")
        return
    found = {
        "FLOPs of a sample": (counted.per_sample, expected.training),
        "FLOPs of its forward pass": (counted.forward, expected.forward),
        "parameters": (model.parameters, expected.parameters),
    }
    wrong = (
        f"{name} are {recorded:.12g}; the recipe's model has {right:.12g}"
        for name, (recorded, right) in found.items()
        if not abs(recorded - right) <= _MODEL_ROUNDING * right
    )
    yield from one_finding(_MODEL, wrong, fail)


def _count_faults(counted: Flops) -> Iterator[str]:
    if counted.convention != _ANALYTIC:
        yield f"FLOPs were counted by the convention {counted.convention!r}, expected {_ANALYTIC}"
    ratio = counted.per_sample / counted.forward if counted.forward else float("inf")
    if not _LEAST_OF_FORWARD <= ratio <= _MOST_OF_FORWARD + _MODEL_ROUNDING:
        yield f"training takes {counted.per_sample:.6g} FLOPs a sample, {ratio:.4g} of forward; expected up to 3"
