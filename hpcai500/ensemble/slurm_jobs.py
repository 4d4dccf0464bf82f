"""Which element of which array a member is, as the ensemble's journal tells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcai500.ensemble.reading import Ensemble
from hpcai500.errors import RecordError

# Slurm numbers the elements of an array from 0 to 1000 unless a site says otherwise (MaxArraySize): more members than
# that are several arrays.
ELEMENTS = 1000


def job_names(benchmark: str, identity: str) -> tuple[str, str]:
    """Names of the jobs of an ensemble: its members', and of those that collect.

    Another cluster, or the same set up anew, gives others the numbers of our jobs: number and name together are ours.
    """
    mark = identity[:12]
    return f"hpcai500-{benchmark}-member-{mark}", f"hpcai500-{benchmark}-collect-{mark}"


@dataclass(frozen=True)
class Submitted:
    """What one `submit` put into the queue.

    Attributes:
        arrays: number of each array, by the member that its element 0 is, or would be.
        collector: number of the job that collects.
        members: numbers of those that were submitted.
        at_once: members side by side at most.
        exclude: hosts that must not be used.
        after: the collecting job that submitted it; None: a person did.
        is_cancelled: whether it was, later.
    """

    arrays: Mapping[int, str]
    collector: str
    members: tuple[int, ...]
    at_once: int | None
    exclude: tuple[str, ...]
    after: str | None
    is_cancelled: bool

    def element(self, member: int) -> tuple[str, int]:
        """Array and number of a member's element."""
        first = first_of(member)
        return self.arrays[first], member - first


def first_of(member: int) -> int:
    """The member that element 0 of a member's array is, or would be."""
    return member // ELEMENTS * ELEMENTS


def first_members(members: Iterable[int]) -> list[int]:
    """Of each array that `members` take, the member that its element 0 is, or would be."""
    return sorted({first_of(member) for member in members})


def submissions(ensemble: Ensemble) -> list[Submitted]:
    """All that was ever submitted to Slurm, in order.

    Raises:
        RecordError: the journal tells it in another way.
    """
    cancels = [event["seq"] for event in ensemble.events if event["key"] == "cancel"]
    told = [event for event in ensemble.events if event["key"] == "submit" and event["value"]["scheduler"] == "slurm"]
    try:
        return [_submitted(event["value"], event["seq"] < max(cancels, default=-1)) for event in told]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{ensemble.path}: an event submit lacks something: {error}") from error


def standing(ensemble: Ensemble) -> Submitted | None:
    """The last submission; None without one, or where it was cancelled."""
    told = submissions(ensemble)
    return told[-1] if told and not told[-1].is_cancelled else None


def _submitted(value: Mapping[str, Any], is_cancelled: bool) -> Submitted:
    *arrays, collector = map(str, value["jobs"])
    members = tuple(map(int, value["members"]))
    return Submitted(
        arrays=dict(zip(first_members(members), arrays, strict=True)),
        collector=collector,
        members=members,
        at_once=value["at_once"],
        exclude=tuple(map(str, value["exclude"])),
        after=value.get("after"),
        is_cancelled=is_cancelled,
    )
