"""The interface of what runs the members of an ensemble: Slurm on a cluster, processes on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from hpcai500.ensemble.journal import Ensemble

# `ended`: by itself, the record says how; `stopped`: on request, it can be resumed.
State = Literal["waiting", "running", "ended", "stopped", "failed", "cancelled", "unknown"]


@dataclass(frozen=True)
class MemberJob:
    """The state of a member in its scheduler.

    Attributes:
        job: the scheduler's name for it.
        hosts: that it runs on, or ran on last.
        restarts: how often the scheduler has restarted it.
        reason: why it waits or failed, in the scheduler's words.
        is_elsewhere: whether its job waits, or has waited, for another process that runs the member.
    """

    member: int
    state: State
    job: str = ""
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    reason: str = ""
    is_elsewhere: bool = False


class Scheduler(Protocol):
    """Reports the state of members."""

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        """The state of all members that were ever submitted, from one query of the scheduler.

        Raises:
            EnvironmentLacksError: there is no such scheduler here.
            RunError: it does not answer.
        """
