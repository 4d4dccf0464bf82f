"""How what runs the members of an ensemble sees them: Slurm on a cluster, processes on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from hpcai500.ensemble.journal import Ensemble

# `ended`: by itself, and the record says how; `stopped`: on request, and can be resumed.
State = Literal["waiting", "running", "ended", "stopped", "failed", "cancelled", "unknown"]


@dataclass(frozen=True)
class MemberJob:
    """A member, as its scheduler sees it.

    Attributes:
        job: the scheduler's name for it.
        hosts: that it runs on, or ran on last.
        restarts: how often the scheduler has restarted it.
        reason: why it waits or has failed, in the scheduler's words.
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
    """What says how members stand."""

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        """How all members that were ever submitted stand, from a single question to the scheduler.

        Raises:
            EnvironmentLacksError: there is no such scheduler here.
            RunError: it does not answer.
        """
