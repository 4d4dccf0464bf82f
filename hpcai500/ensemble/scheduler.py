"""What runs the members of an ensemble: Slurm on a cluster, processes on one machine, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hpcai500.ensemble.journal import Ensemble

# `ended` has ended by itself, well or not: its record says which; `stopped` on request, and can be gone on with.
State = Literal["waiting", "running", "ended", "stopped", "failed", "cancelled", "unknown"]


@dataclass(frozen=True)
class MemberJob:
    """A member, as its scheduler sees it.

    Attributes:
        member: its number.
        state: as far as the scheduler knows.
        job: the scheduler's name of it.
        hosts: that it runs on, or ran on last.
        restarts: how often the scheduler has begun it again.
        reason: why it waits or has failed, in the scheduler's words.
        is_elsewhere: whether its job waits, or has waited, for another process that is at the member.
    """

    member: int
    state: State
    job: str = ""
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    reason: str = ""
    is_elsewhere: bool = False


class Scheduler(Protocol):
    """Runs members, and says how they stand."""

    name: str

    def submit(
        self, ensemble: Ensemble, members: Sequence[int], *, at_once: int | None = None, exclude: Sequence[str] = ()
    ) -> Sequence[str]:
        """Have `members` run, `at_once` at a time at most, on none of the hosts `exclude`; returns ids of their jobs.

        Raises:
            EnvironmentLacksError: there is no such scheduler here.
            RunError: it refuses.
        """

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        """How all members stand that were ever submitted: one question to the scheduler, however many they are.

        Raises:
            EnvironmentLacksError: there is no such scheduler here.
            RunError: it does not answer.
        """

    def cancel(self, ensemble: Ensemble) -> Sequence[str]:
        """End what runs or waits, members with a checkpoint; returns ids of what was ended.

        Raises:
            EnvironmentLacksError: there is no such scheduler here.
            RunError: it refuses.
        """
