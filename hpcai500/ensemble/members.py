"""The state of each member of an ensemble, from the files in its folder and from its scheduler.

Reading takes no locks and writes nothing, so it cannot disturb the runs. One poll opens and reads a bounded amount, and
every member is read within a bounded number of polls.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, get_args

from hpcai500.campaign.journal import ALL_TRIALS, NO_EVENTS, Attempt, Status, lock_path, parse_campaign
from hpcai500.campaign.journal import JOURNAL as CAMPAIGN_JOURNAL
from hpcai500.ensemble.journal import FAILURES, JOURNAL, OUTPUT, Ensemble
from hpcai500.ensemble.scheduler import MemberJob, State
from hpcai500.errors import RecordError
from hpcai500.record import last_hash, parse_events
from hpcai500.run_progress import PROGRESS, Progress, parse_progress
from hpcai500.system.process import is_alive, is_gone

# ----------------------------------------------------------------------------------------------------
# Reading a member's files, which may be damaged, huge, or not regular files.


# Read at most of a journal, of progress.json, and of the end of an older version's record.
_MOST_BYTES = 2**20
# Read at most of a file whose last lines are enough.
_END_BYTES = 2**14
# UNIX milliseconds from which on a time is certainly wrong, and a float not exact.
_WRONG_TIME_MS = 2**53


@dataclass(slots=True)
class Meter:
    """The cost of reading so far."""

    files: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a file; `is_whole`: that is all of it."""

    content: bytes
    is_whole: bool

    @property
    def lines(self) -> bytes:
        """The complete lines in it."""
        lines = self.content[: self.content.rfind(b"\n") + 1]
        return lines if self.is_whole else lines[lines.find(b"\n") + 1 :]


def _read(path: str, most: int, meter: Meter) -> _End | None:
    """The last `most` bytes of a file; None if it does not exist.

    Raises:
        OSError: it cannot be read.
        RecordError: it is not a regular file.
    """
    meter.files += 1
    try:
        try:
            found = _end_of(path, most)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # On NFS, a file that was replaced after it was opened.
            found = _end_of(path, most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error  # errors of reading have no file name
    meter.read_bytes += len(found.content)
    return found


def _end_of(path: str, most: int) -> _End:
    # O_NONBLOCK: opening a pipe would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(f"{path}: not a file")
        return _End(os.pread(descriptor, most, max(0, status.st_size - most)), status.st_size <= most)
    finally:
        os.close(descriptor)


def _read_if_there(path: str, most: int, meter: Meter) -> _End | None:
    """As `_read`, for a file that most members do not have: a missing file costs nothing."""
    return _read(path, most, meter) if os.path.lexists(path) else None


# ----------------------------------------------------------------------------------------------------
# Files beside a member's record: its failures, written by its batch script or the local runner, and its output.


_MOST_WORDS = 400
_LONGEST_REASON = 600
_ERROR = "hpcai500: error: "
# Ending of an error that only points to the one printed before it.
_SEE_ABOVE = "(see above)"
# First line of each job's output: what is before it is from an earlier job.
_BEGUN = re.compile(r"hpcai500: member \d+: job .*, restart \d+$")


@dataclass(frozen=True)
class Failure:
    """One failure of a member, which its record need not show.

    Attributes:
        host: that it ran on; several are separated by commas.
        time_ms: UNIX time; 0 if unknown.
        job: the scheduler's name for it, as in the journal's `submit`; empty if unknown.
    """

    host: str
    exit_code: int
    time_ms: int = 0
    job: str = ""


def begun_line(member: int, job: str, host: str, restarts: int) -> str:
    """The line before a job's own output in a member's output file; the batch script writes the same."""
    return f"hpcai500: member {member}: job {job} on {host}, restart {restarts}\n"


def note_failure(folder: Path, failure: Failure, restart: int) -> None:
    """Append a failure to the file in a member's folder, as the batch script does.

    Raises:
        OSError: it cannot be written.
    """
    row = {
        "time_ms": failure.time_ms, "host": failure.host, "exit_code": failure.exit_code, "restart": restart,
        "job": failure.job,
    }  # fmt: skip
    descriptor = os.open(folder / FAILURES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, json.dumps(row, separators=(",", ":")).encode() + b"\n")
    finally:
        os.close(descriptor)


def read_failures(folder: Path, meter: Meter | None = None) -> tuple[tuple[Failure, ...], str | None]:
    """The failures noted in a member's folder, oldest first, and what is wrong with the file, or None.

    Only the end of a long file is read. A last line that a crash cut off is ignored.
    """
    path = folder / FAILURES
    found: list[Failure] = []
    problem = None
    try:
        end = _read_if_there(str(path), _END_BYTES, meter or Meter())
    except OSError as error:
        return (), f"{path}: cannot be read: {error.strerror}"
    except RecordError as error:
        return (), str(error)
    for line in end.lines.splitlines() if end else ():
        try:
            row = json.loads(line)
            failure = Failure(
                str(row["host"]), int(row["exit_code"]), int(row.get("time_ms", 0)), str(row.get("job", ""))
            )
            found.append(failure)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            problem = f"{path}: a line is malformed: {type(error).__name__} {error}"
    return tuple(found), problem


def last_error(folder: Path, meter: Meter | None = None) -> str | None:
    """The last error that a member's last job printed; None if it printed none.

    Raises:
        RecordError: its output cannot be read.
    """
    path = folder / OUTPUT
    try:
        end = _read_if_there(str(path), _END_BYTES, meter or Meter())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    pointer: str | None = None
    for line in reversed(end.content.decode("utf-8", "replace").splitlines() if end else []):
        if _BEGUN.search(line):
            break
        _, sign, words = line.partition(_ERROR)
        text = words.strip()[:_MOST_WORDS]
        if sign and text and not words.rstrip().endswith(_SEE_ABOVE):
            return text
        pointer = pointer or text or None
    return pointer


# ----------------------------------------------------------------------------------------------------
# The `submit`, `cancel` and `collect` events in an ensemble's journal.


@dataclass(frozen=True)
class Order:
    """One `submit`: the names of its jobs, and its UNIX time."""

    jobs: frozenset[str]
    time_ms: int


@dataclass(frozen=True)
class Orders:
    """All `submit`, `cancel` and `collect` events of an ensemble.

    Attributes:
        scheduler: of the last `submit`; None if there was none.
        submitted: members that were ever submitted.
        cancelled: whether `cancel` came after the last `submit`.
        collected: members that were collected, and not submitted again since.
        last: the last `submit` of each member.
    """

    scheduler: str | None
    submitted: frozenset[int]
    cancelled: bool
    collected: frozenset[int] = frozenset()
    last: Mapping[int, Order] = field(default_factory=dict, repr=False)

    def is_of_the_last(self, member: int, failure: Failure) -> bool:
        """Whether `failure` happened after the member was submitted last."""
        order = self.last.get(member)
        # Clocks of two hosts may differ, so the job's name decides if it is known.
        return order is None or failure.job in order.jobs or failure.time_ms >= order.time_ms


def orders_of(ensemble: Ensemble) -> Orders:
    """The orders in the journal of `ensemble`.

    Raises:
        RecordError: an event is malformed.
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
            raise RecordError(f"{place}: {key} is malformed: {type(error).__name__} {error}") from error
    return Orders(scheduler, frozenset(last), cancelled, frozenset(collected), last)


# ----------------------------------------------------------------------------------------------------
# Reading one member: its attempts from its journal, the progress of the last one from progress.json.


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of one member, and when.

    Attributes:
        looked: number of the poll that read it.
        looked_s: UNIX seconds.
        job: its state in the scheduler then; None without a scheduler.
        attempts: how many were begun.
        attempt: the last one.
        started_ms: when that began or was resumed (UNIX time).
        ended_ms: when it ended; None while it runs.
        last_error: that its last job printed; None if its record says why it failed, or it did not fail.
        is_held: whether a process here holds its lock, perhaps before its first attempt.
        is_gone: whether the process that wrote its record ran here, and died without writing an end.
        broken: what is wrong with the contents of its files; None: nothing.
        unreadable: why files of it could not be read; None: they could.
    """

    looked: int = 0
    looked_s: float = 0.0
    job: MemberJob | None = None
    attempts: int = 0
    attempt: Attempt | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    progress: Progress = field(default_factory=Progress)
    failures: tuple[Failure, ...] = ()
    last_error: str | None = None
    is_held: bool = False
    is_gone: bool = False
    broken: str | None = None
    unreadable: str | None = None

    @property
    def status(self) -> Status | None:
        """Of the last attempt, by the journal; None before the first."""
        return self.attempt.status if self.attempt else None


def look(folder: Path, plan: Mapping[str, Any], job: MemberJob | None, before: Seen, meter: Meter) -> Seen:
    """Read the member in `folder`.

    Args:
        plan: what its journal must have as `campaign_start.ensemble`.
        job: its state in the scheduler; None without a scheduler.
        before: what was read of it last.
        meter: counts the cost.
    """
    seen = replace(before, job=job, broken=None, unreadable=None)
    is_at_work = job is not None and job == before.job and job.state in ("running", "unknown")
    is_steady = is_at_work and not (before.broken or before.unreadable)
    try:
        if before.attempt and before.status == "running" and is_steady:
            # The journal does not change while the attempt runs. But a job that Slurm has requeued may have given it
            # up for another one: then its progress no longer changes.
            progress = _read_progress(folder / before.attempt.record, meter)
            goes_on = progress is not None and progress.phase != "ended"
            if progress is not None and goes_on and not (job and job.restarts and progress == before.progress):
                return replace(seen, progress=progress)
        found = _with_failures(folder, _with_attempt(folder, plan, seen, meter), meter)
        if found.is_gone:
            # Its end may have been written since the journal was read.
            found = _with_failures(folder, _with_attempt(folder, plan, seen, meter), meter)
        return found
    except RecordError as error:
        return replace(seen, broken=str(error))
    except OSError as error:
        return replace(seen, unreadable=f"{error.filename}: cannot be read: {error.strerror}")


def _with_attempt(
    folder: Path, plan: Mapping[str, Any], before: Seen, meter: Meter, *, is_second_look: bool = False
) -> Seen:
    """Read the journal, and the progress of its last attempt."""
    path = folder / CAMPAIGN_JOURNAL
    content = _read(str(path), _MOST_BYTES, meter)
    if content is None:
        if before.attempt:
            raise RecordError(f"{path}: was there before, and is missing now")
        return before
    if not content.is_whole:
        raise RecordError(f"{path}: longer than {_MOST_BYTES >> 20} MiB: not the journal of a member")
    journal = parse_campaign(content.content, folder, {})
    if journal.start.get("ensemble") != plan:
        raise RecordError(f"{path}: not the journal of this member of this ensemble: it names another plan")
    if not journal.attempts:
        return replace(before, attempts=0, attempt=None)
    attempt = journal.attempts[-1]
    record = folder / attempt.record
    known = before.progress if before.attempt and before.attempt.record == attempt.record else None
    progress, head = _read_record(record, attempt, known, meter)
    if progress.campaign is not None and progress.campaign.get("id") != journal.identity:
        raise RecordError(f"{record}: the record of another campaign")
    if None not in (head, attempt.head) and head != attempt.head:
        if not is_second_look:
            # The attempt may have been resumed since the journal was read.
            return _with_attempt(folder, plan, before, meter, is_second_look=True)
        raise RecordError(f"{record}: not the record that the campaign's journal names: its last line differs")
    times = [(event["key"], event["time_ms"]) for event in journal.events[1:]]
    if not all(0 <= time_ms < _WRONG_TIME_MS for _, time_ms in times):
        raise RecordError(f"{path}: a time_ms is out of range")
    return replace(
        before,
        attempts=len(journal.attempts),
        attempt=attempt,
        started_ms=max((time_ms for key, time_ms in times if key != "attempt_stop"), default=None),
        ended_ms=None if attempt.status == "running" else times[-1][1],
        progress=progress,
    )


def _read_progress(record: Path, meter: Meter) -> Progress | None:
    """None also if it is damaged, as by a crash of the node: the log has the same facts."""
    path = f"{record}/{PROGRESS}"
    found = _read_if_there(path, _MOST_BYTES, meter)
    try:
        return parse_progress(found.content, path) if found else None
    except RecordError:
        return None


def _read_record(record: Path, attempt: Attempt, before: Progress | None, meter: Meter) -> tuple[Progress, str | None]:
    """The progress of a record, and the hash of its last line if the journal has one.

    `before` is what was read of it last.
    """
    progress = _read_progress(record, meter)
    if progress is not None and attempt.status == "running":
        return progress, None
    path = f"{record}/events.jsonl"
    end = _read(path, _MOST_BYTES if progress is None else _END_BYTES, meter)
    if end is None:
        # An attempt that has just begun has no log yet.
        if attempt.head not in (None, NO_EVENTS) or (before is not None and before.last_ms is not None):
            raise RecordError(f"{path}: was there before, and is missing now")
        return Progress(), None
    lines = end.lines
    if progress is None:
        progress = Progress()
        progress.fold(parse_events(lines, path, is_end=not end.is_whole)[0])
    return progress, last_hash(lines) if lines or end.is_whole else None


def _with_failures(folder: Path, seen: Seen, meter: Meter) -> Seen:
    """Read the member's files beside its record, if the record does not say enough."""
    job, status, progress = seen.job, seen.status, seen.progress
    if job is None and status == "running":
        # While its lock is held, its process is writing the end into the journal, or another one is about to retry.
        return replace(seen, is_gone=is_gone(progress.owner) and not _is_held(folder, meter))
    seen = replace(seen, is_held=False, is_gone=False)
    if status == "done" or not (job is None or job.restarts or job.state in ("failed", "ended")):
        return seen
    if job is None:
        seen = replace(seen, is_held=_is_held(folder, meter))
    failures, problem = read_failures(folder, meter)
    has_failed = failures or status == "failed" or (job is not None and job.state == "failed")
    is_explained = progress.error is not None or progress.diverged is not None
    error = None
    try:
        error = last_error(folder, meter) if has_failed and not is_explained else None
    except RecordError as other:
        problem = problem or str(other)
    return replace(seen, failures=failures, last_error=error, unreadable=problem)


def _is_held(folder: Path, meter: Meter) -> bool:
    holder = _read_if_there(str(lock_path(folder, ALL_TRIALS)), _END_BYTES, meter)
    return holder is not None and is_alive(holder.content.decode("utf-8", "replace"))


# ----------------------------------------------------------------------------------------------------
# The state of a member.
#
#     done, diverged       its record says so
#     waiting, running,
#     cancelled, failed    its scheduler says so; without one, its journal, its failures and the locks here
#     stopped              ended on request, with a checkpoint
#     lost                 its record cannot be used, or no process runs it and its record has no end
#     unread               its job has ended, and its record was not read since


MemberState = Literal[
    "waiting", "running", "done", "stopped", "cancelled", "failed", "diverged", "lost", "unread"
]  # fmt: skip
STATES: tuple[MemberState, ...] = get_args(MemberState)
# These members will not finish by themselves.
GIVEN_UP: tuple[MemberState, ...] = ("failed", "diverged", "lost")

# States that the scheduler decides; how an ended job ended is in the record.
_SCHEDULED: dict[State, MemberState] = {
    "waiting": "waiting", "running": "running", "stopped": "stopped", "cancelled": "cancelled", "failed": "failed",
}  # fmt: skip
# Reasons of members that will run sooner or later: https://slurm.schedmd.com/job_reason_codes.html
_USUAL_REASONS = {
    "", "None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency", "Prolog", "Cleaning",
}  # fmt: skip
# What follows in the message of a stopped run is advice that is wrong for a member.
_ADVICE = "; nothing is lost"


def _state(job: MemberJob | None, seen: Seen, member: int, orders: Orders) -> tuple[MemberState, str | None]:
    """The state of a member, and what is wrong with it."""
    if seen.broken:
        return "lost", seen.broken
    if seen.status == "done":
        return "done", None
    if seen.progress.diverged:
        return "diverged", seen.progress.diverged
    if job is not None and (state := _SCHEDULED.get(job.state)):
        # A job whose time was up has failed for its scheduler, but its attempt was stopped with a checkpoint.
        is_stop = state == "failed" and seen.status == "stopped" and job == seen.job
        return "stopped" if is_stop else state, _wrong_with_job(job, seen)
    if seen.looked == 0 or (job is not None and job != seen.job):
        return "unread", None
    return _by_records(job, seen, member, orders)


def _by_records(job: MemberJob | None, seen: Seen, member: int, orders: Orders) -> tuple[MemberState, str | None]:
    """The state of a member that its scheduler does not know, or knows only as ended."""
    if seen.status == "running":
        return _without_end(job, seen)
    if _has_failed(seen, member, orders):
        if seen.is_held:
            # It is tried again and has no event yet: it stages data, or waits for its ranks.
            return "running", seen.unreadable or _failed_how_often(seen)
        why = _why(seen) if seen.status == "failed" else None
        wrong = _joined([why, _failed_how_often(seen), f"see members/{member:05d}/{OUTPUT}", seen.last_error])
        return "failed", seen.unreadable or wrong
    if seen.status is not None:
        return seen.status, seen.unreadable or _past(seen)
    return _not_begun(job, seen, member, orders)


def _without_end(job: MemberJob | None, seen: Seen) -> tuple[MemberState, str | None]:
    """The state of a member whose journal has an attempt without an end."""
    if job is not None and job.state == "ended":
        return "lost", "its job has ended, but its record has no end: it was killed, or its node went down"
    if seen.is_gone:
        return "lost", f"killed: no process on {socket.gethostname()} runs it, and its journal has no end"
    return "running", seen.unreadable or (job.reason or None if job and job.is_elsewhere else None)


def _not_begun(job: MemberJob | None, seen: Seen, member: int, orders: Orders) -> tuple[MemberState, str | None]:
    if job is not None and job.state == "ended":
        return "lost", seen.unreadable or "its job ended before the member started: see the job's output"
    if member in orders.collected and seen.unreadable is None:
        return "lost", f"members/{member:05d}: was collected, but is missing now: restore it"
    if orders.cancelled and member in orders.submitted:
        return "cancelled", seen.unreadable
    return "running" if seen.is_held else "waiting", seen.unreadable


def _has_failed(seen: Seen, member: int, orders: Orders) -> bool:
    """Whether a job of the member failed after its last attempt ended, or before its first began."""
    if not seen.failures or not orders.is_of_the_last(member, seen.failures[-1]):
        return False
    return seen.ended_ms is None or seen.failures[-1].time_ms >= seen.ended_ms


def _wrong_with_job(job: MemberJob, seen: Seen) -> str | None:
    """What is wrong with a member whose scheduler knows its state."""
    if job.state == "waiting":
        return None if job.reason.strip("()") in _USUAL_REASONS else f"waits: {job.reason}"
    if job.state == "running":
        if job.is_elsewhere:
            return job.reason
        return seen.unreadable or (_past(seen) if seen.status == "failed" else _failed_how_often(seen))
    if job.state == "stopped":
        return seen.unreadable or job.reason or _why(seen)
    # The local runner has put the failures into `reason` itself.
    failures = None if OUTPUT in job.reason else _failed_how_often(seen)
    return _joined([seen.unreadable, job.reason, _why(seen), failures, seen.last_error])


def _past(seen: Seen) -> str | None:
    """Why its last attempt ended, how often it failed, and its last error."""
    return _joined([_why(seen), _failed_how_often(seen), seen.last_error])


def _why(seen: Seen) -> str | None:
    why = (seen.attempt.reason if seen.attempt else None) or seen.progress.error
    return why.partition(_ADVICE)[0][:_LONGEST_REASON] if why else None


def _failed_how_often(seen: Seen) -> str | None:
    if not seen.failures:
        return None
    last = seen.failures[-1]
    times = f"{len(seen.failures)} times" if len(seen.failures) > 1 else "once"
    return f"failed {times}, last on {last.host} (exit code {last.exit_code})"


def _joined(words: Sequence[str | None]) -> str | None:
    """All sentences in one, without those that another one contains."""
    found: list[str] = []
    for word in words:
        if word and not any(word in other for other in found):
            found.append(word)
    return "; ".join(found) or None


# ----------------------------------------------------------------------------------------------------
# The row of one member.


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The row of one member.

    Attributes:
        hosts: that it runs on, or ran on last.
        job: the scheduler's name for it.
        restarts: how often the scheduler has restarted it; None without a scheduler.
        attempts: how many were begun; None before the first look.
        epoch: the current one, from 1; None before the first.
        epochs_done: epochs trained and evaluated.
        step: updates done in this epoch, at the last event.
        steps: updates in an epoch.
        quality: of the last evaluation.
        images_per_second: over the last epoch of training.
        pace_seconds: of the last epoch, evaluation and checkpoint included.
        started_ms: when the last attempt began or was resumed (UNIX time).
        last_ms: its last sign of life (UNIX time).
        looked_s: when it was read last (UNIX seconds).
        wrong: what is wrong, as far as known.
        submitted: whether it was ever submitted or run.
        elsewhere: whether its runner here waits, or has waited, for another process that runs it.
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
        """Epochs done, with the known fraction of the current one."""
        in_epoch = self.epoch is not None and self.epoch > self.epochs_done and self.steps
        return self.epochs_done + (min(self.step / self.steps, 1.0) if in_epoch and self.steps else 0.0)

    def age_seconds(self, now_s: float) -> float | None:
        """Seconds since its last sign of life."""
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


def member_status(member: int, job: MemberJob | None, seen: Seen, epochs: int, orders: Orders) -> MemberStatus:
    """The row of one member; `epochs` is how many it has to do.

    `job` is None if no scheduler knows a job of the member.
    """
    hosts, name, restarts = (job.hosts, job.job, job.restarts) if job else ((), "", None)
    state, wrong = _state(job, seen, member, orders)
    has_looked, progress = seen.looked > 0, seen.progress
    return MemberStatus(
        member,
        state,
        hosts or progress.hosts,
        name,
        restarts,
        attempts=seen.attempts if has_looked else None,
        epoch=progress.epoch if progress.epoch is None else min(progress.epoch, epochs),
        epochs_done=min(progress.epochs_done, epochs),
        step=progress.step,
        steps=progress.steps,
        quality=progress.quality,
        images_per_second=progress.images_per_second,
        pace_seconds=progress.pace_seconds,
        can_go_on=progress.can_go_on and progress.diverged is None,
        started_ms=seen.started_ms,
        last_ms=max(filter(None, (progress.last_ms, seen.started_ms)), default=None),
        looked_s=seen.looked_s if has_looked else None,
        wrong=wrong,
        submitted=job is not None or member in orders.submitted or seen.attempts > 0,
        elsewhere=job is not None and job.is_elsewhere,
    )


# ----------------------------------------------------------------------------------------------------
# Which members a poll reads, within its bounds.
#
# Members that wait, or have ended and were read, cost nothing: the scheduler's answer covers them. The others form two
# queues, jobs that ended or began and the rest; in each, those that were not read for longest come first. A poll takes
# from each in turn, so that neither starves.


# Bounds of one poll.
MOST_FILES = 256
MOST_BYTES = 2**26
# Files that reading one member opens at most: journal, progress and record, each twice; lock, failures and output.
_FILES_A_LOOK = 9

Jobs = Mapping[int, MemberJob]
_NEVER = Seen()


@dataclass(frozen=True)
class Poll:
    """The cost of one poll.

    Attributes:
        number: of the poll, from 1.
        cpu_seconds: of this process.
        left: members that it would have read without its bounds.
    """

    number: int
    members: int
    files: int
    read_bytes: int
    seconds: float
    cpu_seconds: float
    left: int


class Memory:
    """The members of one ensemble, as they were read last.

    Args:
        files: that one poll opens at most.
        read_bytes: that one poll reads at most; the last member may exceed it.
        clock: UNIX seconds.

    Attributes:
        last: cost of the last poll; None before the first.
        now_s: when that poll was.
    """

    def __init__(
        self, files: int = MOST_FILES, read_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._files, self._bytes, self._clock = max(files, 2 * _FILES_A_LOOK), read_bytes, clock
        self._members: dict[int, Seen] = {}
        self.last: Poll | None = None
        self.now_s = 0.0

    def member(self, member: int) -> Seen:
        """What is known of a member."""
        return self._members.get(member, _NEVER)

    def poll(self, ensemble: Ensemble, jobs: Jobs | None, *, only_unread: bool = False) -> Poll:
        """Read the members that need it most.

        `jobs` is None without a scheduler: then any member may have changed. `only_unread` leaves out members that were
        read since their job changed.
        """
        start, cpu = time.perf_counter(), time.process_time()
        self.now_s, number, meter, looked = self._clock(), self.last.number + 1 if self.last else 1, Meter(), 0
        queues = self._queues(ensemble, jobs, only_unread=only_unread)
        for member in (member for both in zip_longest(*queues) for member in both if member is not None):
            if meter.files + _FILES_A_LOOK > self._files or meter.read_bytes >= self._bytes:
                break
            looked += 1
            plan = {"id": ensemble.identity, "member": member}
            seen = look(ensemble.folder(member), plan, _job(jobs, member), self.member(member), meter)
            self._members[member] = replace(seen, looked=number, looked_s=self.now_s)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        left = sum(map(len, queues)) - looked
        self.last = Poll(number, looked, meter.files, meter.read_bytes, seconds, cpu_seconds, left)
        return self.last

    def catch_up(self, ensemble: Ensemble, jobs: Jobs | None) -> Iterator[Poll]:
        """Poll until every member that may have changed was read."""
        yield self.poll(ensemble, jobs, only_unread=True)
        while self.last and self.last.left:
            yield self.poll(ensemble, jobs, only_unread=True)

    def _queues(self, ensemble: Ensemble, jobs: Jobs | None, *, only_unread: bool) -> tuple[list[int], list[int]]:
        """Members whose job ended or began, and others that may have changed; those not read for longest first."""
        news, steady = list[int](), list[int]()
        for member in ensemble.members:
            seen, job = self.member(member), _job(jobs, member)
            if _is_idle(seen, job, has_scheduler=jobs is not None):
                continue
            if job is not None and (seen.looked == 0 or seen.job != job):
                news.append(member)
            elif not only_unread or seen.looked == 0:
                steady.append(member)
        for queue in (news, steady):
            queue.sort(key=lambda member: self.member(member).looked)
        return news, steady


def _job(jobs: Jobs | None, member: int) -> MemberJob | None:
    return jobs.get(member) if jobs is not None else None


def _is_idle(seen: Seen, job: MemberJob | None, *, has_scheduler: bool) -> bool:
    """Whether reading the member again would show nothing new."""
    if job is not None and job.state == "waiting":
        return True
    if seen.looked == 0 or seen.job != job or seen.unreadable:
        return False
    if job is None and not has_scheduler:
        return seen.status == "done"
    # A member that was not submitted may be run by hand, but then it has begun by now.
    return seen.status != "running" and (job is None or job.state not in ("running", "unknown"))
