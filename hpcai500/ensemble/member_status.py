"""How one member stands: what its scheduler says and what its logs tell, as one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcai500.ensemble.member_memory import MemberMemory
from hpcai500.ensemble.orders import Orders
from hpcai500.ensemble.presence import Machine
from hpcai500.ensemble.reading import OUTPUT
from hpcai500.ensemble.scheduler import MemberJob, State

# `lost`: its record cannot be used, or nobody is at it and it tells no end; `unread`: not read since its job has ended.
MemberState = Literal[
    "waiting", "running", "done", "stopped", "cancelled", "failed", "diverged", "lost", "unread"
]  # fmt: skip
STATES: tuple[MemberState, ...] = (
    "waiting", "running", "done", "stopped", "cancelled", "failed", "diverged", "lost", "unread",
)  # fmt: skip
# None of these comes to its end by itself.
GIVEN_UP: tuple[MemberState, ...] = ("failed", "diverged", "lost")

# What a scheduler knows best; of what has ended it does not know how, which the record tells.
_SCHEDULED: dict[State, MemberState] = {
    "waiting": "waiting", "running": "running", "stopped": "stopped", "cancelled": "cancelled", "failed": "failed",
}  # fmt: skip
# Why Slurm has members wait that will run: https://slurm.schedmd.com/job_reason_codes.html
_USUAL_REASONS = {
    "", "None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency", "Prolog", "Cleaning",
}  # fmt: skip
# What whoever was stopped says to do is for a run that stands alone.
_ADVICE = "; nothing is lost"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member.

    Attributes:
        member: its number.
        state: how it stands.
        hosts: that it runs on, or ran on last.
        job: the scheduler's name of it.
        restarts: how often the scheduler has begun it again; None where no scheduler tells.
        attempts: records that were begun; None where nobody has looked.
        epoch: that it is at (from 1); None before the first.
        epochs_done: that were trained and evaluated.
        step: updates of this epoch that were done when it told last.
        steps: updates of an epoch.
        quality: that its last evaluation found.
        images_per_second: over its last epoch of training.
        pace_seconds: of its last epoch, evaluation and checkpoint included.
        can_go_on: whether there is a checkpoint.
        started_ms: when its last attempt began or was gone on with (UNIX time).
        last_ms: its last sign of life (UNIX time).
        looked_s: when it was looked at last (UNIX seconds).
        wrong: what is wrong; None: nothing that is known.
        submitted: whether anybody has had it run.
        elsewhere: whether who runs it here waits, or has waited, for another process that does.
    """

    member: int
    state: MemberState
    hosts: tuple[str, ...] = ()
    job: str = ""
    restarts: int | None = None
    attempts: int | None = None
    epoch: int | None = None
    epochs_done: int = 0
    step: int = 0
    steps: int | None = None
    quality: float | None = None
    images_per_second: float | None = None
    pace_seconds: float | None = None
    can_go_on: bool = False
    started_ms: int | None = None
    last_ms: int | None = None
    looked_s: float | None = None
    wrong: str | None = None
    submitted: bool = True
    elsewhere: bool = False

    @property
    def progress(self) -> float:
        """Epochs that are done, with the part of this one that is known to be."""
        in_epoch = self.epoch is not None and self.epoch > self.epochs_done and self.steps
        return self.epochs_done + (min(self.step / self.steps, 1.0) if in_epoch and self.steps else 0.0)

    def age_seconds(self, now_s: float) -> float | None:
        """How long ago its last sign of life was."""
        return None if self.last_ms is None else max(0.0, now_s - self.last_ms / 1000)

    def document(self, now_s: float) -> dict[str, Any]:
        """For programs."""
        return {
            "member": self.member,
            "state": self.state,
            "hosts": list(self.hosts),
            "job": self.job or None,
            "restarts": self.restarts,
            "attempts": self.attempts,
            "epoch": self.epoch,
            "epochs_done": self.epochs_done,
            "step": self.step,
            "steps": self.steps,
            "quality": self.quality,
            "images_per_second": self.images_per_second,
            "epoch_seconds": self.pace_seconds,
            "can_go_on": self.can_go_on,
            "started_ms": self.started_ms,
            "last_ms": self.last_ms,
            "age_seconds": self.age_seconds(now_s),
            "looked_seconds_ago": None if self.looked_s is None else max(0.0, now_s - self.looked_s),
            "wrong": self.wrong,
            "submitted": self.submitted,
        }


@dataclass(frozen=True)
class Setting:
    """What the ensemble says of all members.

    Attributes:
        epochs: of each.
        orders: in its journal.
        machine: this one, where no scheduler tells who runs.
    """

    epochs: int
    orders: Orders
    machine: Machine | None


def member_status(member: int, job: MemberJob | None, known: MemberMemory | None, setting: Setting) -> MemberStatus:
    """The row of one member.

    Args:
        member: its number.
        job: as its scheduler sees it; None where there is none to ask, or it knows nothing of it.
        known: what was read of it.
        setting: what is true of all.
    """
    hosts, name, restarts = (job.hosts, job.job, job.restarts) if job else ((), "", None)
    if known is None:
        state, wrong = _unread(job)
        submitted = job is not None or member in setting.orders.submitted
        return MemberStatus(member, state, hosts, name, restarts, wrong=wrong, submitted=submitted)
    state, wrong = _state(job, known, member, setting)
    record, journal = known.record, known.journal
    epoch = record.epoch if record.epoch is None else min(record.epoch, setting.epochs)
    last_ms = max(filter(None, (record.last_ms, journal.started_ms)), default=None)
    return MemberStatus(
        member,
        state,
        hosts or record.hosts,
        name,
        restarts,
        attempts=journal.attempts,
        epoch=epoch,
        epochs_done=min(record.epochs_done, setting.epochs),
        step=record.step,
        steps=record.steps,
        quality=record.quality,
        images_per_second=record.images_per_second,
        pace_seconds=record.pace_seconds,
        can_go_on=record.can_go_on and record.diverged is None,
        started_ms=journal.started_ms,
        last_ms=last_ms,
        looked_s=known.looked_s,
        wrong=wrong,
        submitted=job is not None or member in setting.orders.submitted or journal.attempts > 0,
        elsewhere=job is not None and job.is_elsewhere,
    )


def _unread(job: MemberJob | None) -> tuple[MemberState, str | None]:
    state = _SCHEDULED.get(job.state) if job else None
    if job is None or state is None:
        return "unread", None
    if state == "waiting":
        return state, _unusual(job)
    return state, None if state == "running" else job.reason or None


def _state(job: MemberJob | None, known: MemberMemory, member: int, setting: Setting) -> tuple[MemberState, str | None]:
    if known.broken:
        return "lost", known.broken
    if known.journal.status == "done":
        return "done", None
    if known.record.diverged:
        return "diverged", known.record.diverged
    if job is not None and (state := _SCHEDULED.get(job.state)):
        # One whose time was up has failed for its scheduler, and is whole.
        stopped = state == "failed" and known.journal.status == "stopped" and job == known.job
        return "stopped" if stopped else state, _words(job, known)
    return _by_records(job, known, member, setting)


def _by_records(
    job: MemberJob | None, known: MemberMemory, member: int, setting: Setting
) -> tuple[MemberState, str | None]:
    """How one stands whose scheduler does not know."""
    if job is not None and job != known.job:
        return "unread", None
    status = known.journal.status
    if status == "running":
        return _without_end(job, known, setting)
    if _has_failed_since(known, member, setting):
        if setting.machine and setting.machine.holds(known.turn):
            # Tried again, and before its first event: it stages, or waits for its ranks.
            return "running", known.unreadable or _failures(known)
        return "failed", known.unreadable or _given_up(known, member)
    if status in ("stopped", "failed"):
        return status, known.unreadable or _past(known)
    return _not_begun(job, known, member, setting)


def _has_failed_since(known: MemberMemory, member: int, setting: Setting) -> bool:
    """Whether a job of the member has failed after its last attempt ended, or before it had begun any."""
    if not known.failures or not setting.orders.is_of_the_last(member, known.failures[-1]):
        return False
    return known.journal.ended_ms is None or known.failures[-1].time_ms >= known.journal.ended_ms


def _without_end(job: MemberJob | None, known: MemberMemory, setting: Setting) -> tuple[MemberState, str | None]:
    """One whose journal tells of an attempt that has not ended."""
    if job is not None and job.state == "ended":
        return "lost", "its job has ended, and its record tells no end: it was killed, or its node went down"
    machine = setting.machine
    if machine and machine.has_lost(known.record, known.inode):
        return "lost", f"killed: nothing on {machine.host} runs it any more, and its record tells no end"
    return "running", known.unreadable or (job.reason or None if job and job.is_elsewhere else None)


def _not_begun(
    job: MemberJob | None, known: MemberMemory, member: int, setting: Setting
) -> tuple[MemberState, str | None]:
    if job is not None and job.state == "ended":
        return "lost", known.unreadable or "its job has ended before it began: see the job's output"
    if member in setting.orders.collected and known.unreadable is None:
        return "lost", f"members/{member:05d}: it was there when it was collected, and is gone: restore it"
    if setting.orders.cancelled and member in setting.orders.submitted:
        return "cancelled", known.unreadable
    if setting.machine and setting.machine.holds(known.turn):
        return "running", known.unreadable
    return "waiting", known.unreadable


def _words(job: MemberJob, known: MemberMemory) -> str | None:
    """What is wrong with one whose scheduler knows how it stands."""
    if job.state == "waiting":
        return _unusual(job)
    if job.state == "running":
        if job.is_elsewhere:
            return job.reason
        return known.unreadable or (_failures(known) if known.journal.status != "failed" else _past(known))
    if job.state == "stopped":
        return known.unreadable or job.reason or _why(known)
    # Who runs members here has told of its failures itself, in `reason`.
    failures = None if OUTPUT in job.reason else _failures(known)
    words = [known.unreadable, job.reason, _why(known), failures, known.last_error]
    return _joined(words)


def _unusual(job: MemberJob) -> str | None:
    """Why it waits, if it might wait for ever."""
    return None if job.reason.strip("()") in _USUAL_REASONS else f"waits: {job.reason}"


def _past(known: MemberMemory) -> str | None:
    """Why its last attempt ended, and how often it has failed."""
    return _joined([_why(known), _failures(known), known.last_error])


def _given_up(known: MemberMemory, member: int) -> str | None:
    """Why one has failed that no scheduler tells of, and whose last attempt, if it had any, is another story."""
    why = _why(known) if known.journal.status == "failed" else None
    return _joined([why, _failures(known), f"see members/{member:05d}/{OUTPUT}", known.last_error])


def _why(known: MemberMemory) -> str | None:
    """Why its last attempt ended."""
    why = known.journal.reason or known.record.error
    return why.partition(_ADVICE)[0] if why else None


def _joined(words: Sequence[str | None]) -> str | None:
    """Sentences in one, what is said twice once."""
    found: list[str] = []
    for word in words:
        if word and not any(word in other for other in found):
            found.append(word)
    return "; ".join(found) or None


def _failures(known: MemberMemory) -> str | None:
    if not known.failures:
        return None
    last = known.failures[-1]
    times = f"{len(known.failures)} times" if len(known.failures) > 1 else "once"
    return f"failed {times} by itself, last on {last.host} (exit code {last.exit_code})"
