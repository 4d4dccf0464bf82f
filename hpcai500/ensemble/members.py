"""Follows the members of an ensemble: reads their logs as they grow, and derives how each of them stands.

A look neither locks nor writes a member's files, so that it cannot disturb the runs. What one poll opens and reads is
bounded, and every member is looked at within a bounded number of polls.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpcai500.campaign.journal import ALL_TRIALS, NO_EVENTS, SCHEMA, Status, folder_name, lock_path
from hpcai500.campaign.journal import JOURNAL as CAMPAIGN_JOURNAL
from hpcai500.ensemble.journal import FAILURES, JOURNAL, OUTPUT, Ensemble
from hpcai500.ensemble.scheduler import MemberJob, State
from hpcai500.errors import RecordError
from hpcai500.methodology.events import (
    VALUES,
    Checkpoint,
    Company,
    EpochStop,
    Evaluation,
    InitStart,
    Model,
    Place,
    Resume,
    Value,
)
from hpcai500.record import FIRST_PREVIOUS, Event, last_hash, line_hash, parse_events

# ----------------------------------------------------------------------------------------------------
# The log of chained events that another process is writing: each read returns what was appended, no byte twice.
#
# Of a long log that is met for the first time only the end is read: it says how the run stands.


# Windows at the end of a log that is met for the first time: the next one is read if the last does not say enough.
_WINDOWS_BYTES = (2**16, 2**19, 2**22)
# At one look at a known log. A longer line is skipped: such lines describe nodes, not how a run stands.
_MOST_BYTES = 2**20


@dataclass(slots=True)
class Meter:
    """What reading has cost so far; `files` counts also those that were looked for and are not there."""

    files: int = 0
    read_bytes: int = 0


class LogTail:
    """The end of one log.

    Attributes:
        identity: hash of its first line; None where that was not read.
        head: hash of the last whole line that was read; None before any was.
        is_behind: whether there is more than was read.
    """

    __slots__ = ("_at_line", "_chained", "_lines", "_offset", "head", "identity", "inode", "is_behind", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.identity: str | None = None
        self.head: str | None = None
        self.inode: int | None = None
        self.is_behind = False
        self._begin_at(0)

    def read(self, meter: Meter, enough: Callable[[Sequence[Event]], bool] = lambda events: True) -> list[Event]:
        """The events that were appended since the last call; an unfinished line is left for the next one.

        Of a log that is met for the first time, more of its end is read until `enough` holds for its events. `meter` is
        told the cost.

        Raises:
            FileNotFoundError: the log is not there.
            OSError: it cannot be read.
            RecordError: it is no log of events, was changed, or lost lines since it was read.
        """
        meter.files += 1
        # O_NONBLOCK: opening a pipe would block for ever.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            self._check(status)
            if self._offset == 0 and status.st_size > _WINDOWS_BYTES[0]:
                return self._first(descriptor, status.st_size, meter, enough)
            return self._next(descriptor, status.st_size, _MOST_BYTES, meter)
        finally:
            os.close(descriptor)

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(f"{self.path}: not a file")
        if self.inode not in (None, status.st_ino):
            raise RecordError(f"{self.path}: another file than before: it was replaced")
        if status.st_size < self._offset:
            raise RecordError(f"{self.path}: shorter than before: lines were removed")
        self.inode = status.st_ino

    def _first(
        self, descriptor: int, size: int, meter: Meter, enough: Callable[[Sequence[Event]], bool]
    ) -> list[Event]:
        events: list[Event] = []
        for window in _WINDOWS_BYTES:
            self._begin_at(max(0, size - window))
            events = self._next(descriptor, size, window, meter)
            if size <= window or enough(events):
                break
        return events

    def _begin_at(self, offset: int) -> None:
        """Forget what was read, and go on at `offset`, which is inside a line unless it is 0."""
        self.head = None
        # Offset of the first byte not yet taken as an event; how many lines come before it, as far as that is known.
        self._offset, self._lines = offset, 0
        # Whether a line begins there; whether the hash of the line before it is known.
        self._at_line = self._chained = offset == 0

    def _next(self, descriptor: int, size: int, most: int, meter: Meter) -> list[Event]:
        content = os.pread(descriptor, min(most, size - self._offset), self._offset) if size > self._offset else b""
        meter.read_bytes += len(content)
        self.is_behind = size > self._offset + len(content)
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            if self.is_behind or not self._at_line:
                self._skip(len(content))
            return []
        if not self._at_line:
            cut = whole.index(b"\n") + 1
            whole, self._offset, self._at_line = whole[cut:], self._offset + cut, True
        return self._parsed(whole) if whole else []

    def _skip(self, length: int) -> None:
        """Go past a part of a line; the chain of hashes begins anew with the next whole line."""
        self._offset += length
        self._at_line = self._chained = False

    def _parsed(self, whole: bytes) -> list[Event]:
        previous, before = (self.head or FIRST_PREVIOUS, self._lines) if self._chained else _place(whole, self.path)
        events, _ = parse_events(whole, self.path, previous, before)
        if not before:
            self.identity = line_hash(whole[: whole.index(b"\n")])
        self.head, self._chained = last_hash(whole), True
        self._offset, self._lines = self._offset + len(whole), before + len(events)
        return events


def _place(whole: bytes, path: str) -> tuple[str, int]:
    """Hash and number of the lines before the first line of `whole`, which is from the middle of a log."""
    try:
        event = json.loads(whole[: whole.index(b"\n")])
        previous, sequence = event["prev"], event["seq"]
        if isinstance(previous, str) and isinstance(sequence, int):
            return previous, sequence
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise RecordError(f"{path}: a line in its end is not an event")


# ----------------------------------------------------------------------------------------------------
# What stands beside a member's logs: its failures, as its batch script or the local runner noted them; its last error.


# Read of each of the two files, from its end.
_FAILURES_MOST_BYTES = 2**14
_MOST_WORDS = 400
_ERROR = "hpcai500: error: "
# Ending of an error that only points to the one printed before it.
_SEE_ABOVE = "(see above)"
# First line of each job's output: what stands before it is from an earlier job.
_BEGUN = re.compile(r"hpcai500: member \d+: job .*, restart \d+$")


@dataclass(frozen=True)
class Failure:
    """One failure of a member's own.

    Attributes:
        host: that it ran on; several are separated by commas.
        time_ms: UNIX time; 0 where unknown.
        job: the scheduler's name for it, as in the journal's `submit`; empty where unknown.
    """

    host: str
    exit_code: int
    time_ms: int = 0
    job: str = ""


def begun_line(member: int, job: str, host: str, restarts: int) -> str:
    """The line before a job's own output in a member's output file; the batch script writes the same."""
    return f"hpcai500: member {member}: job {job} on {host}, restart {restarts}\n"


def note_failure(folder: Path, failure: Failure, restart: int) -> None:
    """Write a failure down in a member's folder, as the batch script does.

    Raises:
        OSError: it cannot be written.
    """
    told = {
        "time_ms": failure.time_ms, "host": failure.host, "exit_code": failure.exit_code, "restart": restart,
        "job": failure.job,
    }  # fmt: skip
    descriptor = os.open(folder / FAILURES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, json.dumps(told, separators=(",", ":")).encode() + b"\n")
    finally:
        os.close(descriptor)


def last_failure(folder: Path) -> Failure | None:
    """The last failure noted in a member's folder; None where there is none.

    Raises:
        OSError: it cannot be read.
    """
    found = read_failures(str(folder), Meter())
    return found[-1] if found else None


def last_error(folder: Path) -> str | None:
    """The last error that a member's last job printed; None where it printed none.

    Raises:
        OSError: its output cannot be read.
    """
    return read_last_error(str(folder), Meter())


def read_failures(folder: str, meter: Meter) -> tuple[Failure, ...]:
    """The failures noted in a member's folder, oldest first; of very many, only the last ones.

    Raises:
        OSError: they cannot be read.
    """
    return tuple(_failures(_end_of(f"{folder}/{FAILURES}", meter)))


def read_last_error(folder: str, meter: Meter) -> str | None:
    """As `last_error`; `meter` is told the cost."""
    pointer: str | None = None
    for line in reversed(_end_of(f"{folder}/{OUTPUT}", meter).decode("utf-8", "replace").splitlines()):
        if _BEGUN.search(line):
            break
        _, sign, words = line.partition(_ERROR)
        told = words.strip()[:_MOST_WORDS]
        if sign and told and not words.rstrip().endswith(_SEE_ABOVE):
            return told
        pointer = pointer or (told if sign else None) or None
    return pointer


def _failures(content: bytes) -> Iterator[Failure]:
    for line in content.split(b"\n"):
        try:
            told = json.loads(line)
            yield Failure(
                str(told["host"]), int(told["exit_code"]), int(told.get("time_ms", 0)), str(told.get("job", ""))
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            # An unfinished line, or one that we did not write, is ignored.
            continue


def _end_of(path: str, meter: Meter) -> bytes:
    """The end of a file; empty if the file is not there."""
    if not os.path.lexists(path):
        return b""
    meter.files += 1
    # O_NONBLOCK: opening a pipe would block for ever.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b""
        content = os.pread(descriptor, _FAILURES_MOST_BYTES, max(0, status.st_size - _FAILURES_MOST_BYTES))
    finally:
        os.close(descriptor)
    meter.read_bytes += len(content)
    return content


# ----------------------------------------------------------------------------------------------------
# What was ordered for an ensemble, as its journal has it: members and scheduler of each `submit`, `cancel`, `collect`.


@dataclass(frozen=True)
class Order:
    """One `submit`: names of its jobs, and its UNIX time."""

    jobs: frozenset[str]
    time_ms: int


@dataclass(frozen=True)
class Orders:
    """All orders of an ensemble together.

    Attributes:
        scheduler: of the last `submit`; None where there was none.
        submitted: members that were ever submitted.
        cancelled: whether the last order was to cancel.
        collected: members that were collected, and not submitted again since.
        last: the order that last submitted each member.
    """

    scheduler: str | None
    submitted: frozenset[int]
    cancelled: bool
    collected: frozenset[int] = frozenset()
    last: Mapping[int, Order] = field(default_factory=dict, repr=False)

    def is_of_the_last(self, member: int, failure: Failure) -> bool:
        """Whether `failure` happened after the member was submitted last."""
        order = self.last.get(member)
        # Clocks of two hosts may differ, so the job's name decides where it is known.
        return order is None or failure.job in order.jobs or failure.time_ms >= order.time_ms


def orders_of(ensemble: Ensemble) -> Orders:
    """The orders in the journal of `ensemble`.

    Raises:
        RecordError: an event lacks something.
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


# ----------------------------------------------------------------------------------------------------
# What a member's logs tell: its campaign's journal the attempts, its record how far the last attempt has come.
#
# Both are folded event by event, so that only what a status shows is kept. Hostile or damaged logs are possible: a
# value of the wrong type is an error of that member alone.


Phase = Literal["starting", "training", "evaluating", "ended"]

_LONGEST_REASON = 600


class _Process(BaseModel):
    """The part of `init_start` that no score depends on."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    process: int | None = None


class _Divergence(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    what: str = Field(max_length=4096)
    epoch: int
    step: int


@dataclass(slots=True)
class JournalFacts:
    """What the events of a member's campaign journal add up to.

    Times are UNIX milliseconds.

    Attributes:
        plan: value of `campaign_start.ensemble`; None before that was read.
        runs: how many attempts were begun or resumed.
        record: folder name of the last attempt.
        status: of the last attempt; None before the first.
        reason: why the last attempt ended without a result.
        head: hash of the last line of its record, once it ended.
        began_ms: begin of the first attempt.
        started_ms: when the last attempt began or was resumed.
        ended_ms: end of the last attempt; None while it goes on.
    """

    plan: Any = None
    attempts: int = 0
    runs: int = 0
    record: str | None = None
    status: Status | None = None
    reason: str | None = None
    head: str | None = None
    began_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None

    def fold(self, events: Iterable[Event]) -> None:
        """Take in new events.

        Raises:
            RecordError: an event lacks something.
        """
        for event in events:
            try:
                self._take(event["key"], event["value"], _moment_ms(event))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise RecordError(f"the campaign's journal: {event['key']}: {type(error).__name__} {error}") from error

    def _take(self, key: str, value: Mapping[str, Any], time_ms: int) -> None:
        if key == "campaign_start":
            if value["schema"] != SCHEMA:
                raise ValueError(f"the schema {value['schema']!r}, not {SCHEMA}")
            self.plan = value.get("ensemble")
        elif key == "attempt_start":
            self.record, self.attempts = folder_name(value["record"]), self.attempts + 1
            self.began_ms = time_ms if self.began_ms is None else self.began_ms
            self._run(time_ms)
        elif key == "attempt_resume":
            self._run(time_ms)
        elif key == "attempt_stop":
            if value["status"] not in get_args(Status):
                raise ValueError(f"the status {value['status']!r}")
            self.status, self.ended_ms = cast(Status, value["status"]), time_ms
            self.head, self.reason = _text(value["head"]), _text(value["reason"])

    def _run(self, time_ms: int) -> None:
        self.status, self.reason, self.head, self.ended_ms = "running", None, None, None
        self.runs, self.started_ms = self.runs + 1, time_ms


@dataclass(slots=True)
class RecordFacts:
    """What the events of an attempt's record add up to.

    Attributes:
        campaign: value of `init_start.campaign`; None where that was not read.
        boot: boot id of that process's machine.
        epoch: the current one, from 1.
        epochs_done: epochs trained and evaluated.
        step: updates done in this epoch, at the last event.
        steps: updates in an epoch.
        quality: of the last evaluation.
        images_per_second: over the last epoch of training.
        pace_seconds: from the beginning of the last epoch to that of the next, evaluation and checkpoint included.
        diverged: which number was not finite, and where.
        last_ms: UNIX time of the last event.
    """

    campaign: Any = None
    process: int | None = None
    boot: str | None = None
    hosts: tuple[str, ...] = ()
    phase: Phase = "starting"
    epoch: int | None = None
    epochs_done: int = 0
    step: int = 0
    steps: int | None = None
    quality: float | None = None
    images_per_second: float | None = None
    pace_seconds: float | None = None
    can_go_on: bool = False
    diverged: str | None = None
    error: str | None = None
    last_ms: int | None = None
    _epoch_began_ms: int | None = None

    def fold(self, events: Iterable[Event]) -> None:
        """Take in new events.

        Raises:
            RecordError: an event has not the value that its key demands.
        """
        for event in events:
            key, value = event["key"], event.get("value")
            try:
                self.last_ms = _moment_ms(event)
                if key in VALUES:
                    self._take(key, VALUES[key].model_validate(value))
                else:
                    self._take_other(key, value)
                if key == "init_start":
                    self.process = _Process.model_validate(value).process
            except ValidationError as error:  # a ValueError, too
                first = error.errors(include_url=False, include_context=False)[0]
                where = ".".join(map(str, first["loc"])) or "value"
                raise RecordError(f"line {event['seq'] + 1} of its events, {key}: {where}: {first['msg']}") from error
            except ValueError as error:
                raise RecordError(f"line {event['seq'] + 1} of its events, {key}: {error}") from error

    def _take(self, key: str, value: Value) -> None:
        match value:
            case InitStart():
                self._begin(value)
            case Model():
                self.steps = value.steps_per_epoch
            case Resume():
                self.hosts, self.epoch, self.step = tuple(value.hosts), value.epoch, value.step
                self.epochs_done, self.can_go_on = value.epoch - 1, True
            case Company():
                self.hosts = tuple(value.hosts)
            case Place():
                self.phase, self.epoch, self.step = "training", value.epoch, value.step
                if key == "epoch_start":
                    self.epochs_done = value.epoch - 1
                    self._epoch_began_ms = None if value.step else self.last_ms
            case EpochStop():
                self.step = self.steps = value.steps
                rate = value.samples / value.seconds if value.seconds else math.inf
                self.images_per_second = rate if math.isfinite(rate) else None
            case Evaluation():
                self.quality, self.epochs_done = value.value, value.epoch
            case Checkpoint():
                self._save(value)
            case _ if key == "eval_start":
                self.phase = "evaluating"

    def _take_other(self, key: str, value: Any) -> None:
        if key == "diverged":
            told = _Divergence.model_validate(value)
            self.diverged = f"diverged: {told.what} at epoch {told.epoch}, step {told.step}"
        elif key == "run_error":
            self.phase = "ended"
            self.error = _text(value.get("reason")) if isinstance(value, Mapping) else None
        elif key == "run_stop":
            self.phase = "ended"

    def _begin(self, value: InitStart) -> None:
        """Another process resumes where the last one ended."""
        self.campaign, self.boot, self.phase, self.error = value.campaign, value.boot_id, "starting", None

    def _save(self, value: Checkpoint) -> None:
        self.can_go_on = True
        if self.epoch is not None and value.epoch > self.epoch:
            if self._epoch_began_ms is not None and self.last_ms is not None:
                self.pace_seconds = (self.last_ms - self._epoch_began_ms) / 1000
            self.epoch, self.step = value.epoch, 0


def tells_place(events: Sequence[Event]) -> bool:
    """Whether the end of a record says how far the run is and how fast, or reaches back to the record's beginning."""
    return any(event["key"] in ("dataset", "model", "run_start", "epoch_stop") for event in events)


def _moment_ms(event: Event) -> int:
    moment = int(event["time_ms"])
    if not 0 <= moment < 2**53:
        raise ValueError(f"time_ms is no moment: {moment}")
    return moment


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:_LONGEST_REASON]


# ----------------------------------------------------------------------------------------------------
# Whether the process that writes a record still runs, for where no scheduler answers.
#
# No lock is tried to find out: a run that starts and finds its log locked, if only for a moment, would give up.


_LOCKS = Path("/proc/locks")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Machine:
    """This machine at one moment.

    Attributes:
        boot: its boot id; None where the system has none.
        locked: inodes of files that some process here holds a lock on; None where that cannot be told.
    """

    host: str
    boot: str | None
    locked: frozenset[int] | None = field(repr=False)

    def holds(self, inode: int | None) -> bool:
        return inode is not None and self.locked is not None and inode in self.locked

    def has_lost(self, facts: RecordFacts, inode: int | None) -> bool:
        """Whether the writer of the record with these facts ran here and is gone, as far as can be seen.

        False for the writer on another machine, or in a container with its own process ids: nothing is known of it.
        """
        if facts.phase == "ended" or facts.boot is None or self.boot is None:
            return False
        if facts.boot != self.boot:
            # The machine was restarted, if it is this one.
            return facts.hosts == (self.host,)
        unlocked = self.locked is not None and inode not in self.locked
        return unlocked and facts.process is not None and facts.process > 0 and not _runs(facts.process)


def this_machine() -> Machine:
    """The state of this machine now, from two small system files, however many members there are."""
    return Machine(socket.gethostname(), _presence_text(_BOOT), _locked())


def _locked() -> frozenset[int] | None:
    """The inodes in `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 18340 fe:00:2195594 0 EOF`."""
    text = _presence_text(_LOCKS)
    if text is None:
        return None
    places = [word for line in text.splitlines() for word in line.split() if word.count(":") == 2]
    inodes = [place.rpartition(":")[2] for place in places]
    return frozenset(int(inode) for inode in inodes if inode.isdecimal())


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _presence_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


# ----------------------------------------------------------------------------------------------------
# What is remembered of one member, and how it is looked at again.
#
# A look opens the record, and the campaign's journal only when that may have grown: at first, when the member's job has
# changed, and at the record's end.


# Without a scheduler to report new jobs, the journal is read this often while the record is silent.
_JOURNAL_AFTER_SECONDS = 60.0
# A job's last writes may reach a shared file system late: only after this many looks they are taken to be complete.
_LOOKS_AFTER_THE_END = 3


@dataclass(slots=True)
class MemberMemory:
    """What is remembered of one member.

    Attributes:
        looked: number of the poll that looked at it last; 0: none has.
        looked_s: when that was (UNIX seconds).
        looks: how many, since its job changed.
        last_error: that its last job printed; None where its logs say why it failed, or it did not fail.
        turn: inode of the lock that its runner holds from before the first attempt on; None where there is none.
        broken: what is wrong with the contents of its files; None: nothing.
        unreadable: why its files could not be read at the last look; None: they could.
        is_behind: whether there is more to be read than one look reads.
    """

    looked: int = 0
    looked_s: float = 0.0
    job: MemberJob | None = None
    looks: int = 0
    journal: JournalFacts = field(default_factory=JournalFacts)
    record: RecordFacts = field(default_factory=RecordFacts)
    failures: tuple[Failure, ...] = ()
    last_error: str | None = None
    turn: int | None = None
    broken: str | None = None
    unreadable: str | None = None
    is_behind: bool = False
    _journal: LogTail | None = None
    _record: LogTail | None = None
    _journal_read_s: float = 0.0

    @property
    def inode(self) -> int | None:
        """Inode of its record's log."""
        return self._record.inode if self._record else None

    @property
    def has_settled(self) -> bool:
        """Whether nothing more can be learnt unless its job changes, as far as its scheduler knows."""
        if self.looked == 0 or self.is_behind:
            return False
        if self.job is None:
            return self.journal.status == "done"
        if self.job.state in ("waiting", "running", "unknown"):
            return False
        return self.journal.status != "running" or self.looks >= _LOOKS_AFTER_THE_END

    def look(self, folder: str, plan: Any, job: MemberJob | None, now_s: float, meter: Meter) -> None:
        """Read what was appended since the last look.

        Args:
            plan: what its journal must carry as `campaign_start.ensemble`.
            job: how its scheduler sees it; None where there is none to ask.
            now_s: UNIX seconds.
            meter: is told the cost.
        """
        has_changed = job != self.job
        self.job, self.looked_s, self.looks = job, now_s, 1 if has_changed else self.looks + 1
        broken, self.broken, self.unreadable, self.is_behind = self.broken, None, None, False
        try:
            heard = self._read_record(folder, meter)
            is_open = self.journal.status == "running" and self.record.phase != "ended"
            is_due = job is None and not heard and now_s - self._journal_read_s >= _JOURNAL_AFTER_SECONDS
            if self._journal is None or has_changed or not is_open or is_due:
                self._read_both(folder, plan, now_s, meter)
            if self._contradicts():
                # Somebody may have resumed the attempt since the journal was read.
                self._read_both(folder, plan, now_s, meter)
                if self._contradicts():
                    raise RecordError(
                        f"{folder}/{self.journal.record}: not the record that the campaign's journal vouches for: its "
                        "last line differs"
                    )
            self._read_failures(folder, meter, has_changed=has_changed)
            if self._journal is None or (self.journal.record is not None and self._record is None):
                # Files that were broken and then vanished do not make the member sound.
                self.broken = broken
        except RecordError as error:
            self._forget(str(error))
        except OSError as error:
            self.unreadable = f"{error.filename}: cannot be read: {error.strerror}"

    def _read_failures(self, folder: str, meter: Meter, *, has_changed: bool) -> None:
        """Read failures and last error of a member, where its logs do not tell all."""
        job, status = self.job, self.journal.status
        self.turn = None
        if job is None:
            if status in ("running", "done"):
                return
            self.turn = _inode(lock_path(Path(folder), ALL_TRIALS))
        elif not has_changed or not (job.restarts or job.state in ("failed", "ended")) or status == "done":
            return
        self.failures = read_failures(folder, meter)
        has_failed = bool(self.failures) or status == "failed" or (job is not None and job.state == "failed")
        is_told = self.record.error is not None or self.record.diverged is not None
        self.last_error = read_last_error(folder, meter) if has_failed and not is_told else None

    def _forget(self, why: str) -> None:
        """Make the next look read everything from the beginning: somebody may have mended the files by then."""
        self.broken = why
        self._journal = self._record = None
        self.journal, self.record = JournalFacts(), RecordFacts()

    def _read_both(self, folder: str, plan: Any, now_s: float, meter: Meter) -> None:
        """Read the journal, and the record again if the journal has new events."""
        self._journal_read_s = now_s
        if self._read_journal(f"{folder}/{CAMPAIGN_JOURNAL}", plan, meter):
            self._read_record(folder, meter)

    def _read_journal(self, path: str, plan: Any, meter: Meter) -> bool:
        """Returns whether there were new events."""
        tail = self._journal or LogTail(path)
        try:
            events = tail.read(meter)
        except FileNotFoundError:
            if self._journal is not None:
                raise RecordError(f"{path}: it was there, and is gone") from None
            return False
        self._journal = tail
        name = self.journal.record
        self.journal.fold(events)
        if tail.identity is not None and self.journal.plan != plan:
            raise RecordError(f"{path}: not of this member of this ensemble: it names another plan")
        if self.journal.record != name:
            self._record, self.record = None, RecordFacts()
        self.is_behind = self.is_behind or tail.is_behind
        return bool(events)

    def _read_record(self, folder: str, meter: Meter) -> bool:
        """Returns whether there were new events."""
        if self.journal.record is None:
            return False
        path = f"{folder}/{self.journal.record}/events.jsonl"
        tail = self._record or LogTail(path)
        try:
            events = tail.read(meter, tells_place)
        except FileNotFoundError:
            # An attempt that has just begun has no log yet. A head in the journal says that there was one.
            if self._record is not None or self.journal.head not in (None, NO_EVENTS):
                raise RecordError(f"{path}: it was there, and is gone") from None
            return False
        self._record = tail
        self.record.fold(events)
        named, own = self.record.campaign, self._journal.identity if self._journal else None
        if named is not None and own is not None and named.get("id") != own:
            raise RecordError(f"{path}: the record of another campaign")
        self.is_behind = self.is_behind or tail.is_behind
        return bool(events)

    def _contradicts(self) -> bool:
        """Whether the journal names another last line of the record than the record has."""
        head = self._record.head if self._record and not self._record.is_behind else None
        return None not in (head, self.journal.head) and head != self.journal.head


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


# ----------------------------------------------------------------------------------------------------
# How one member stands: what its scheduler says and what its logs tell, in one row.


# `lost`: its record cannot be used, or no process runs it and its record has no end. `unread`: not read since its job
# ended.
MemberState = Literal[
    "waiting", "running", "done", "stopped", "cancelled", "failed", "diverged", "lost", "unread"
]  # fmt: skip
STATES: tuple[MemberState, ...] = (
    "waiting", "running", "done", "stopped", "cancelled", "failed", "diverged", "lost", "unread",
)  # fmt: skip
# These members do not reach their end by themselves.
GIVEN_UP: tuple[MemberState, ...] = ("failed", "diverged", "lost")

# States where the scheduler decides; how an ended job ended is told by the record.
_SCHEDULED: dict[State, MemberState] = {
    "waiting": "waiting", "running": "running", "stopped": "stopped", "cancelled": "cancelled", "failed": "failed",
}  # fmt: skip
# Reasons of members that will run in the end: https://slurm.schedmd.com/job_reason_codes.html
_USUAL_REASONS = {
    "", "None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency", "Prolog", "Cleaning",
}  # fmt: skip
# What follows in the message of a stopped run is advice for a run that stands alone.
_ADVICE = "; nothing is lost"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The row of one member.

    Attributes:
        hosts: that it runs on, or ran on last.
        job: the scheduler's name for it.
        restarts: how often the scheduler has restarted it; None without a scheduler.
        attempts: how many were begun; None where nobody has looked.
        epoch: the current one, from 1; None before the first.
        epochs_done: epochs trained and evaluated.
        step: updates done in this epoch, at the last event.
        steps: updates in an epoch.
        quality: of the last evaluation.
        images_per_second: over the last epoch of training.
        pace_seconds: of the last epoch, evaluation and checkpoint included.
        started_ms: when the last attempt began or was resumed (UNIX time).
        last_ms: its last sign of life (UNIX time).
        looked_s: when it was looked at last (UNIX seconds).
        wrong: what is wrong; None: nothing that is known.
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


@dataclass(frozen=True)
class Setting:
    """What holds for all members: epochs of each, orders, and this machine where no scheduler tells who runs."""

    epochs: int
    orders: Orders
    machine: Machine | None


def member_status(member: int, job: MemberJob | None, known: MemberMemory | None, setting: Setting) -> MemberStatus:
    """The row of one member.

    `job` is None where no scheduler knows a job of the member; `known` is None where nothing was read yet.
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
        # A job whose time was up is a failure to its scheduler; its attempt was stopped in good order.
        stopped = state == "failed" and known.journal.status == "stopped" and job == known.job
        return "stopped" if stopped else state, _words(job, known)
    return _by_records(job, known, member, setting)


def _by_records(
    job: MemberJob | None, known: MemberMemory, member: int, setting: Setting
) -> tuple[MemberState, str | None]:
    """The state of a member whose scheduler does not know it."""
    if job is not None and job != known.job:
        return "unread", None
    status = known.journal.status
    if status == "running":
        return _without_end(job, known, setting)
    if _has_failed_since(known, member, setting):
        if setting.machine and setting.machine.holds(known.turn):
            # It is tried again, and before its first event: it stages data, or waits for its ranks.
            return "running", known.unreadable or _member_status_failures(known)
        return "failed", known.unreadable or _given_up(known, member)
    if status in ("stopped", "failed"):
        return status, known.unreadable or _past(known)
    return _not_begun(job, known, member, setting)


def _has_failed_since(known: MemberMemory, member: int, setting: Setting) -> bool:
    """Whether a job of the member failed after its last attempt ended, or before it began any."""
    if not known.failures or not setting.orders.is_of_the_last(member, known.failures[-1]):
        return False
    return known.journal.ended_ms is None or known.failures[-1].time_ms >= known.journal.ended_ms


def _without_end(job: MemberJob | None, known: MemberMemory, setting: Setting) -> tuple[MemberState, str | None]:
    """The state of a member whose journal has an attempt without end."""
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
    """What is wrong with a member whose scheduler knows its state."""
    if job.state == "waiting":
        return _unusual(job)
    if job.state == "running":
        if job.is_elsewhere:
            return job.reason
        return known.unreadable or (
            _member_status_failures(known) if known.journal.status != "failed" else _past(known)
        )
    if job.state == "stopped":
        return known.unreadable or job.reason or _why(known)
    # The local runner has put the failures into `reason` itself.
    failures = None if OUTPUT in job.reason else _member_status_failures(known)
    words = [known.unreadable, job.reason, _why(known), failures, known.last_error]
    return _joined(words)


def _unusual(job: MemberJob) -> str | None:
    """Why it waits, if it might wait for ever."""
    return None if job.reason.strip("()") in _USUAL_REASONS else f"waits: {job.reason}"


def _past(known: MemberMemory) -> str | None:
    """Why its last attempt ended, how often it failed, and its last error."""
    return _joined([_why(known), _member_status_failures(known), known.last_error])


def _given_up(known: MemberMemory, member: int) -> str | None:
    """Why a member failed after its last attempt had ended, or before any, without a scheduler to tell."""
    why = _why(known) if known.journal.status == "failed" else None
    return _joined([why, _member_status_failures(known), f"see members/{member:05d}/{OUTPUT}", known.last_error])


def _why(known: MemberMemory) -> str | None:
    why = known.journal.reason or known.record.error
    return why.partition(_ADVICE)[0] if why else None


def _joined(words: Sequence[str | None]) -> str | None:
    """Sentences in one; what another sentence already contains is left out."""
    found: list[str] = []
    for word in words:
        if word and not any(word in other for other in found):
            found.append(word)
    return "; ".join(found) or None


def _member_status_failures(known: MemberMemory) -> str | None:
    if not known.failures:
        return None
    last = known.failures[-1]
    times = f"{len(known.failures)} times" if len(known.failures) > 1 else "once"
    return f"failed {times} by itself, last on {last.host} (exit code {last.exit_code})"


# ----------------------------------------------------------------------------------------------------
# Which members a poll looks at: never more than its bounds allow.
#
# Members that wait, or have ended and were read, cost nothing: the scheduler's one answer names them. The others form
# three queues: jobs that ended, jobs that began, and the rest; within each, the longest unseen come first. A poll takes
# one of each in turn.


# Bounds of one poll.
MOST_FILES = 256
MOST_BYTES = 2**26
# Files that one look opens at most: record, journal and record again, all twice at worst, failures and output.
_FILES_A_LOOK = 7

Jobs = Mapping[int, MemberJob]


@dataclass(frozen=True)
class Poll:
    """What one poll has cost.

    Attributes:
        number: of the poll, from 1.
        cpu_seconds: of this process.
        left: members that it would have looked at without its bounds.
    """

    number: int
    members: int
    files: int
    read_bytes: int
    seconds: float
    cpu_seconds: float
    left: int


class Memory:
    """The members of one ensemble, as they were seen last.

    Args:
        files: that one poll opens at most.
        read_bytes: that one poll reads at most; the last member looked at may exceed it.
        clock: UNIX seconds.

    Attributes:
        last: cost of the last poll; None before the first.
        now_s: when that poll was.
    """

    def __init__(
        self, files: int = MOST_FILES, read_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._files, self._bytes, self._clock = max(files, 2 * _FILES_A_LOOK), read_bytes, clock
        self._members: dict[int, MemberMemory] = {}
        self.last: Poll | None = None
        self.now_s = 0.0

    def member(self, member: int) -> MemberMemory | None:
        """What is known of a member; None where nobody has looked at it."""
        return self._members.get(member)

    def poll(self, ensemble: Ensemble, jobs: Jobs | None, *, only_unread: bool = False) -> Poll:
        """Look at the members that need it most.

        `jobs` is None where there is no scheduler to ask: then all members may have changed. `only_unread` leaves out
        members that were looked at since their job changed.
        """
        start, cpu = time.perf_counter(), time.process_time()
        self.now_s, number, meter, looked = self._clock(), self.last.number + 1 if self.last else 1, Meter(), 0
        queues = self._wanted(ensemble, jobs, only_unread=only_unread)
        for member in _in_turn(queues):
            if meter.files + _FILES_A_LOOK > self._files or meter.read_bytes >= self._bytes:
                break
            known = self._members.setdefault(member, MemberMemory())
            known.looked, looked = number, looked + 1
            plan = {"id": ensemble.identity, "member": member}
            known.look(str(ensemble.folder(member)), plan, _job(jobs, member), self.now_s, meter)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        left = sum(map(len, queues)) - looked
        self.last = Poll(number, looked, meter.files, meter.read_bytes, seconds, cpu_seconds, left)
        return self.last

    def catch_up(self, ensemble: Ensemble, jobs: Jobs | None) -> Iterator[Poll]:
        """Poll until every member that may have news was looked at, and read to its end."""
        yield self.poll(ensemble, jobs, only_unread=True)
        while self.last and self.last.left + sum(known.is_behind for known in self._members.values()):
            yield self.poll(ensemble, jobs, only_unread=True)

    def _wanted(self, ensemble: Ensemble, jobs: Jobs | None, *, only_unread: bool) -> Sequence[Sequence[int]]:
        """Members whose job ended, whose job began, and others that may have news; each list longest unseen first."""
        ended: list[tuple[int, int]] = []
        begun: list[tuple[int, int]] = []
        steady: list[tuple[int, int]] = []
        for member in ensemble.members:
            known, job = self._members.get(member), _job(jobs, member)
            looked = known.looked if known else 0
            if _is_idle(known, job, is_told=jobs is not None):
                continue
            if job is not None and (known is None or known.job != job):
                (begun if job.state == "running" else ended).append((looked, member))
            elif not only_unread or known is None or known.is_behind:
                steady.append((looked, member))
        return [[member for _, member in sorted(queue)] for queue in (ended, begun, steady)]


def _job(jobs: Jobs | None, member: int) -> MemberJob | None:
    return jobs.get(member) if jobs is not None else None


def _is_idle(known: MemberMemory | None, job: MemberJob | None, *, is_told: bool) -> bool:
    """Whether a look could tell nothing new; `is_told`: whether a scheduler has told of all members."""
    if job is not None and job.state == "waiting":
        return True
    if known is None or known.job != job:
        return False
    if is_told and job is None and not known.is_behind:
        # It was not submitted; if somebody runs it by hand, that has begun by now.
        return known.journal.status != "running"
    return known.has_settled


def _in_turn(queues: Sequence[Sequence[int]]) -> Iterator[int]:
    """One of each queue in turn, so that none keeps the others waiting for ever."""
    for members in zip_longest(*queues):
        yield from (member for member in members if member is not None)
