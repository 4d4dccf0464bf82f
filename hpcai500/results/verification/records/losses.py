"""A model that learns has a loss, each epoch another one, and it falls."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from hpcai500.methodology.integrity.values import Dataset
from hpcai500.results.verification.finding import IMPLAUSIBLE, Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.run import Run, judged

_NAME = "loss"
# Cross-entropies and distances; a plug-in's may be anything.
_NOT_NEGATIVE = ("ic", "ewa")
# Sums in half precision round by so much.
_ROUNDING = 0.01
# Epochs at each end whose losses are compared, and how much more than that of a guess the first may be.
_ENDS, _LEAST_EPOCHS, _WORSE_THAN_GUESSING = 3, 10, 3.0


def check_losses(run: Run) -> Iterator[Finding]:
    """The mean loss of each epoch, a mean of thousands of numbers in full precision: never twice the same."""
    yield from judged(_NAME, _faults(run), fail)
    yield from judged(IMPLAUSIBLE, _implausible(run), warning)


def _faults(run: Run) -> Iterator[str]:
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
            yield f"epoch {epoch}: a loss of {loss:.6g}; with this label smoothing no model has less than {least:.6g}"
        before = seen.setdefault(loss, epoch)
        if before != epoch:
            yield f"epochs {before} and {epoch} have the same loss to the last digit ({loss!r})"


def _least_loss(run: Run) -> float:
    """The cross entropy of smoothed labels with themselves, which no answer goes below; 0 without smoothing."""
    if run.record.tables.get("benchmark") != "ic":
        return 0.0
    smoothing, classes = float(run.field("workload", "label_smoothing")), _classes(run)
    if smoothing == 0 or classes < 2:
        return 0.0
    other = smoothing / classes
    right = 1 - smoothing + other
    return -right * math.log(right) - (classes - 1) * other * math.log(other)


def _implausible(run: Run) -> Iterator[str]:
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
