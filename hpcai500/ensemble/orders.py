"""What was ordered for an ensemble, as its journal has it: which members, by which scheduler, and whether to cancel."""

from __future__ import annotations

from dataclasses import dataclass

from hpcai500.ensemble.reading import JOURNAL, Ensemble
from hpcai500.errors import RecordError


@dataclass(frozen=True)
class Orders:
    """All orders together.

    Attributes:
        scheduler: that was given members last; None where none ever was.
        submitted: all members that somebody has had run.
        cancelled: whether the last word was to cancel.
    """

    scheduler: str | None
    submitted: frozenset[int]
    cancelled: bool


def orders_of(ensemble: Ensemble) -> Orders:
    """The orders in the journal of `ensemble`.

    Raises:
        RecordError: one of them lacks something.
    """
    scheduler, submitted, cancelled = None, set[int](), False
    for event in ensemble.events:
        if event["key"] not in ("submit", "cancel"):
            continue
        cancelled = event["key"] == "cancel"
        if not cancelled:
            try:
                scheduler = str(event["value"]["scheduler"])
                submitted.update(map(int, event["value"]["members"]))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                place = f"{ensemble.path / JOURNAL}:{event['seq'] + 1}"
                raise RecordError(f"{place}: submit lacks something: {type(error).__name__} {error}") from error
    return Orders(scheduler, frozenset(submitted), cancelled)
