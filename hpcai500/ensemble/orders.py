"""What was ordered for an ensemble, as its journal has it: which members, by which scheduler, and whether to cancel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcai500.ensemble.failures import Failure
from hpcai500.ensemble.reading import JOURNAL, Ensemble
from hpcai500.errors import RecordError


@dataclass(frozen=True)
class Order:
    """One `submit`: names of its jobs, and when it was given (UNIX time)."""

    jobs: frozenset[str]
    time_ms: int


@dataclass(frozen=True)
class Orders:
    """All orders together.

    Attributes:
        scheduler: that was given members last; None where none ever was.
        submitted: all members that somebody has had run.
        cancelled: whether the last word was to cancel.
        collected: members that were collected, and not submitted again since.
        last: order that each member was submitted by last.
    """

    scheduler: str | None
    submitted: frozenset[int]
    cancelled: bool
    collected: frozenset[int] = frozenset()
    last: Mapping[int, Order] = field(default_factory=dict, repr=False)

    def is_of_the_last(self, member: int, failure: Failure) -> bool:
        """Whether a member has failed since it was submitted last, and not before."""
        order = self.last.get(member)
        # Clocks of two hosts may differ: the name of the job decides, where it is known.
        return order is None or failure.job in order.jobs or failure.time_ms >= order.time_ms


def orders_of(ensemble: Ensemble) -> Orders:
    """The orders in the journal of `ensemble`.

    Raises:
        RecordError: one of them lacks something.
    """
    scheduler, cancelled = None, False
    last, collected = dict[int, Order](), set[int]()
    for event in ensemble.events:
        key, value = event["key"], event["value"]
        try:
            if key == "submit":
                scheduler, cancelled = str(value["scheduler"]), False
                members = [int(member) for member in value["members"]]
                order = Order(frozenset(map(str, value.get("jobs", ()))), int(event["time_ms"]))
                last.update(dict.fromkeys(members, order))
                collected.difference_update(members)
            elif key == "cancel":
                cancelled = True
            elif key == "collect":
                collected.update(map(int, value.get("heads", ())))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            place = f"{ensemble.path / JOURNAL}:{event['seq'] + 1}"
            raise RecordError(f"{place}: {key} lacks something: {type(error).__name__} {error}") from error
    return Orders(scheduler, frozenset(last), cancelled, frozenset(collected), last)
