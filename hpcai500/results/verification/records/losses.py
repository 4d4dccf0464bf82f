"""A model that learns has a loss, each epoch another one."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail
from hpcai500.results.verification.records.run import Run, judged

_NAME = "loss"
# Cross-entropies and distances; a plug-in's may be anything.
_NOT_NEGATIVE = ("ic", "ewa")


def check_losses(run: Run) -> Iterator[Finding]:
    """The mean loss of each epoch, a mean of thousands of numbers in full precision: never twice the same."""
    yield from judged(_NAME, _faults(run), fail)


def _faults(run: Run) -> Iterator[str]:
    seen: dict[float, int] = {}
    for one in run.epochs:
        epoch, loss = one.done.epoch, one.done.loss
        if loss is None:
            yield f"epoch {epoch}: no loss"
            continue
        if loss < 0 and run.record.tables.get("benchmark") in _NOT_NEGATIVE:
            yield f"epoch {epoch}: a loss of {loss:.6g}, expected 0 or more"
        before = seen.setdefault(loss, epoch)
        if before != epoch:
            yield f"epochs {before} and {epoch} have the same loss to the last digit ({loss!r})"
