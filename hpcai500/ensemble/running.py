"""An ensemble on this machine: all members that are not done, side by side as far as there is room, to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.ensemble.local import LocalScheduler
from hpcai500.ensemble.reading import OUTPUT, Ensemble, parse_members, read_ensemble
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.writing import append
from hpcai500.launch.child import SignalRelay

_POLL_SECONDS = 0.2

Jobs = Mapping[int, MemberJob]


@dataclass(frozen=True)
class RunOrder:
    """What the user asked for.

    Attributes:
        folder: of the ensemble.
        members: those to run, as in `0-3,7`; None: all.
        at_once: members that run side by side; None: as many as the machine has room for.
        power: what tells the power, as --power has it.
    """

    folder: Path
    members: str | None = None
    at_once: int | None = None
    power: str = "auto"


@dataclass(frozen=True)
class RunEnd:
    """How the members stand after all that could be run has run.

    Attributes:
        ensemble: as it is now.
        jobs: those that were run, as they ended.
        stopped: whether a signal ended it early: the same command goes on.
    """

    ensemble: Ensemble
    jobs: Jobs
    stopped: bool

    @property
    def failed(self) -> list[int]:
        """Members that are not done, and would not be by another try."""
        return sorted(member for member, job in self.jobs.items() if job.state == "failed")


def run_ensemble(
    order: RunOrder,
    on_poll: Callable[[Ensemble, Jobs], None] = lambda ensemble, jobs: None,
    on_start: Callable[[Sequence[int]], None] = lambda members: None,
) -> RunEnd:
    """Run what is not done yet, and tell `on_poll` how all stand several times a second; goes on where it was.

    `on_start` is told before the first of them which members are run.

    A member that fails is tried again (`retrying`); one that runs elsewhere already fails, and says so.

    Raises:
        HpcAi500Error: there is no such ensemble, member or accelerator, or the folder cannot be written.
    """
    ensemble = read_ensemble(order.folder)
    wanted = parse_members(order.members, ensemble) if order.members else ensemble.members
    left = [member for member in wanted if not is_done(ensemble, member)]
    if not left:
        return RunEnd(ensemble, {}, stopped=False)
    with SignalRelay() as relay:
        scheduler = LocalScheduler(relay, order.power)
        jobs = scheduler.submit(ensemble, left, at_once=order.at_once)
        told = {
            "scheduler": scheduler.name,
            "jobs": list(jobs),
            "members": left,
            "at_once": order.at_once,
            "exclude": [],
        }
        ensemble = append(ensemble, "submit", told)
        on_start(left)
        try:
            states = _to_the_end(scheduler, ensemble, relay, on_poll)
        finally:
            scheduler.close()
        return RunEnd(ensemble, states, stopped=relay.heard)


def is_done(ensemble: Ensemble, member: int) -> bool:
    """Whether an attempt at the member came to its end."""
    campaign = ensemble.campaign(member)
    return campaign is not None and bool(campaign.done())


def starting_line(ensemble: Ensemble, members: Sequence[int]) -> str:
    """What is said before `members` are run: `starting 2 of 3 members of runs/e, output in …`."""
    total = ensemble.shape.members
    many = f"{len(members)} of {total}" if len(members) < total else str(total)
    return (
        f"starting {many} member{'s' * (total > 1)} of {ensemble.path}, what they print is in "
        f"{ensemble.path}/members/NNNNN/{OUTPUT}"
    )


def _to_the_end(
    scheduler: LocalScheduler, ensemble: Ensemble, relay: SignalRelay, on_poll: Callable[[Ensemble, Jobs], None]
) -> Jobs:
    while True:
        jobs = scheduler.jobs(ensemble)
        on_poll(ensemble, jobs)
        states: Sequence[str] = [job.state for job in jobs.values()]
        if "running" not in states and ("waiting" not in states or relay.heard):
            return jobs
        time.sleep(_POLL_SECONDS)
