"""Runs an ensemble on this machine: members are processes side by side, each with its own cores or accelerators."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcai500.campaign.standing import KILLED
from hpcai500.ensemble.journal import FAILURES, OUTPUT, Ensemble, append, parse_members, read_ensemble
from hpcai500.ensemble.member import BEING_RUN
from hpcai500.ensemble.members import Failure, begun_line, note_failure
from hpcai500.ensemble.scheduler import MemberJob, State
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error, RunError
from hpcai500.interpreter import module_command
from hpcai500.launch.layout import shares, visible_devices
from hpcai500.launch.processes import SignalRelay, start_child
from hpcai500.system.devices import DEVICES_VARIABLE
from hpcai500.text import count

# ----------------------------------------------------------------------------------------------------
# Whether a failed member is tried again: the same on a cluster and on one machine.


# A member is given up after this many failures, not counting time limits.
MOST_FAILURES = 3


def may_be_tried_again(exit_code: int, failures: int) -> bool:
    """Whether to try a member again after its `failures`-th failure, with this exit code.

    A member that diverged, or cannot be run as planned, would end the same way again. Codes other than ours come from a
    signal or a launcher.
    """
    final = (ExitCode.WRONG_ANSWER, ExitCode.USAGE, ExitCode.ENVIRONMENT)
    return exit_code not in final and failures < MOST_FAILURES


# ----------------------------------------------------------------------------------------------------
# The scheduler of one machine.


# How much of the end of a member's output is searched for its last line.
_LAST_LINE_BYTES = 1024


@dataclass(frozen=True)
class Slot:
    """One running member's share of this machine.

    `devices` are the accelerators that it sees, by CUDA's names; None if the recipe needs none.
    """

    cores: Sequence[int]
    devices: str | None = None


@dataclass(frozen=True)
class _Running:
    """A running member; its output begins at `offset` of the file `output`."""

    process: subprocess.Popen[bytes]
    slot: Slot
    output: Path
    offset: int
    began_ms: int

    @property
    def waits_for_another(self) -> bool:
        """Whether its last line, except that of a signal, says that another process runs the member."""
        try:
            with self.output.open("rb") as stream:
                end = stream.seek(0, os.SEEK_END)
                stream.seek(max(self.offset, end - _LAST_LINE_BYTES))
                lines = stream.read(_LAST_LINE_BYTES).rstrip().splitlines()
        except OSError:
            return False  # the member runs, even if its output cannot be read
        lines = [line for line in lines if b"error: stopped by " not in line]
        return bool(lines) and BEING_RUN.encode() in lines[-1]


class LocalScheduler:
    """Runs members as child processes, which end with this process; `jobs` starts waiting ones.

    `relay` passes signals on to them. `power` is the value of --power.
    """

    name = "local"

    def __init__(self, relay: SignalRelay, power: str = "auto") -> None:
        self._relay, self._power = relay, power
        self._name = f"process-{os.getpid()}"
        self._host = socket.gethostname()
        self._waiting: list[int] = []
        self._slots: list[Slot] = []
        self._running: dict[int, _Running] = {}
        self._failures: dict[int, int] = {}
        self._restarts: dict[int, int] = {}
        self._ended: dict[int, MemberJob] = {}
        # Exit code of each member's last process.
        self.codes: dict[int, int] = {}

    def submit(self, ensemble: Ensemble, members: Sequence[int], *, at_once: int | None = None) -> Sequence[str]:
        """Queue `members` to run here, `at_once` at a time, or as many as fit."""
        self._slots = slots(ensemble, at_once)
        self._waiting += members
        return [self._name]

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        """The state of the members; starts waiting ones while there are free slots."""
        for member, running in list(self._running.items()):
            code = running.process.poll()
            if code is not None:
                self._slots.append(running.slot)
                self._end(ensemble, member, code)
        while self._waiting and self._slots and not self._relay.has_signal:
            self._start(ensemble, self._waiting.pop(0), self._slots.pop(0))
        return {
            **{member: self._job(member, "waiting") for member in self._waiting},
            **{member: self._running_job(member) for member in self._running},
            **self._ended,
        }

    def close(self) -> None:
        """Kill running members; the next `ensemble run` resumes them."""
        for running in self._running.values():
            running.process.kill()
            running.process.wait()

    def _start(self, ensemble: Ensemble, member: int, slot: Slot) -> None:
        folder = ensemble.folder(member)
        began_ms = _now_ms()
        command = module_command(
            "cli", "ensemble", "member", ensemble.path, "--member", str(member), "--power", self._power,
            "--procs", str(ensemble.shape.degree),
        )  # fmt: skip
        environment = {**os.environ} | ({DEVICES_VARIABLE: slot.devices} if slot.devices is not None else {})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / OUTPUT).open("ab", buffering=0) as output:
                output.write(begun_line(member, self._name, self._host, self._restarts.get(member, 0)).encode())
                offset = output.tell()
                process = start_child(command, environment=environment, cores=slot.cores, output=output.fileno())
        except OSError as error:
            raise RunError(
                f"{error.filename or folder}: cannot be written: {error.strerror}; fix that, then run this again"
            ) from error
        self._relay.add(process)
        self._running[member] = _Running(process, slot, folder / OUTPUT, offset, began_ms)

    def _end(self, ensemble: Ensemble, member: int, code: int) -> None:
        running = self._running.pop(member)
        waited = running.waits_for_another
        self.codes[member] = code
        if code == ExitCode.PASS:
            self._ended[member] = self._job(member, "ended")
            return
        if self._relay.has_signal:
            self._ended[member] = self._stopped(member, is_elsewhere=waited)
            return
        failures = self._failures[member] = self._failures.get(member, 0) + 1
        is_own = not waited and not _was_stopped(ensemble, member, running.began_ms)
        unwritten = self._note(ensemble, member, code) if is_own else ""
        if may_be_tried_again(code, failures):
            self._restarts[member] = self._restarts.get(member, 0) + 1
            self._waiting.append(member)
        else:
            failed = count(failures, "failure")
            why = f"exit code {code}, after {failed}: see members/{member:05d}/{OUTPUT}{unwritten}"
            self._ended[member] = self._job(member, "failed", why)

    def _note(self, ensemble: Ensemble, member: int, code: int) -> str:
        """Write a failure into the member's folder, for `ensemble status`; return the error, or an empty string."""
        failure = Failure(self._host, code, _now_ms(), self._name)
        try:
            note_failure(ensemble.folder(member), failure, self._restarts.get(member, 0))
        except OSError as error:
            return f"; {FAILURES} cannot be written: {error.strerror}"
        return ""

    def _stopped(self, member: int, *, is_elsewhere: bool) -> MemberJob:
        if is_elsewhere:
            # The local job does not know the member's state.
            why = "waited for another process, which still runs it"
            return replace(self._job(member, "unknown", why), is_elsewhere=True)
        return self._job(member, "stopped", "stopped with this command")

    def _running_job(self, member: int) -> MemberJob:
        job = self._job(member, "running")
        if not self._running[member].waits_for_another:
            return job
        return replace(job, reason="is being run by another process: waiting for it", is_elsewhere=True)

    def _job(self, member: int, state: State, reason: str = "") -> MemberJob:
        running = self._running.get(member)
        job = f"process-{running.process.pid}" if running else ""
        hosts = () if state == "waiting" else (self._host,)
        return MemberJob(member, state, job, hosts, self._restarts.get(member, 0), reason)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _was_stopped(ensemble: Ensemble, member: int, since_ms: int) -> bool:
    """Whether an attempt at the member was stopped on request, with a checkpoint, since `since_ms`."""
    try:
        campaign = ensemble.campaign(member)
    except HpcAi500Error:
        return False
    if campaign is None or not campaign.attempts or campaign.events[-1]["time_ms"] < since_ms:
        return False
    last = campaign.attempts[-1]
    return last.status == "stopped" and last.reason != KILLED


def slots(ensemble: Ensemble, at_once: int | None) -> list[Slot]:
    """Equal shares of this machine, one for each member that runs at the same time: `at_once`, or as many as fit.

    Raises:
        EnvironmentLacksError: there are too few accelerators.
    """
    degree, members = ensemble.shape.degree, ensemble.shape.members
    if ensemble.tables["accelerator"]["device"] != "cuda":
        slots = min(members, at_once or max(1, len(os.sched_getaffinity(0)) // degree))
        return [Slot(cores) for cores in shares(slots)]
    devices = visible_devices(os.environ)
    room = len(devices) // degree
    if room < (at_once or 1):
        raise EnvironmentLacksError(
            f"{len(devices)} accelerators are visible here, but {count(at_once or 1, 'member')} of {degree} need "
            f"{(at_once or 1) * degree}: plan a lower --degree, or give a lower --at-once"
        )
    slots = min(members, at_once or room)
    return [
        Slot(cores, ",".join(devices[number * degree : (number + 1) * degree]))
        for number, cores in enumerate(shares(slots, "cuda", degree))
    ]


# ----------------------------------------------------------------------------------------------------
# Running an ensemble to its end.


_POLL_SECONDS = 0.2

Jobs = Mapping[int, MemberJob]


@dataclass(frozen=True)
class RunOrder:
    """What the user asked for.

    Attributes:
        members: those to run, as in `0-3,7`; None: all.
        at_once: members that run at the same time; None: as many as fit.
        power: value of --power.
    """

    folder: Path
    members: str | None = None
    at_once: int | None = None
    power: str = "auto"


@dataclass(frozen=True)
class RunEnd:
    """The state of the members at the end of the command.

    Attributes:
        jobs: of the members that were run.
        stopped: whether a signal ended it early; the same command resumes it.
    """

    ensemble: Ensemble
    jobs: Jobs
    stopped: bool

    @property
    def failed(self) -> list[int]:
        """Members that are not done and were given up."""
        return sorted(member for member, job in self.jobs.items() if job.state == "failed")


def run_ensemble(
    order: RunOrder,
    on_poll: Callable[[Ensemble, Jobs], None] = lambda ensemble, jobs: None,
    on_start: Callable[[Sequence[int]], None] = lambda members: None,
) -> RunEnd:
    """Run the members that are not done, resuming attempts, and call `on_poll` several times a second.

    `on_start` is called with the members to be run before the first of them starts. A member that fails is tried again
    (`may_be_tried_again`); one that another process already runs fails, with that reason.

    Raises:
        HpcAi500Error: there is no such ensemble, member or accelerator, or the folder cannot be written.
    """
    ensemble = read_ensemble(order.folder)
    chosen = parse_members(order.members, ensemble) if order.members else ensemble.members
    left = [member for member in chosen if not is_done(ensemble, member)]
    if not left:
        return RunEnd(ensemble, {}, stopped=False)
    with SignalRelay() as relay:
        scheduler = LocalScheduler(relay, order.power)
        jobs = scheduler.submit(ensemble, left, at_once=order.at_once)
        value = {
            "scheduler": scheduler.name,
            "jobs": list(jobs),
            "members": left,
            "at_once": order.at_once,
            "exclude": [],
        }
        ensemble = append(ensemble, "submit", value)
        on_start(left)
        try:
            states = _to_the_end(scheduler, ensemble, relay, on_poll)
        finally:
            scheduler.close()
        return RunEnd(ensemble, states, stopped=relay.has_signal)


def is_done(ensemble: Ensemble, member: int) -> bool:
    """Whether an attempt at the member is complete."""
    campaign = ensemble.campaign(member)
    return campaign is not None and bool(campaign.done())


def starting_line(ensemble: Ensemble, members: Sequence[int]) -> str:
    """The announcement `starting 2 of 3 members of runs/e, …`."""
    total = ensemble.shape.members
    many = f"{len(members)} of {total}" if len(members) < total else str(total)
    return (
        f"starting {many} member{'s' * (total > 1)} of {ensemble.path}; their output is in "
        f"{ensemble.path}/members/NNNNN/{OUTPUT}"
    )


def _to_the_end(
    scheduler: LocalScheduler, ensemble: Ensemble, relay: SignalRelay, on_poll: Callable[[Ensemble, Jobs], None]
) -> Jobs:
    while True:
        jobs = scheduler.jobs(ensemble)
        on_poll(ensemble, jobs)
        states: Sequence[str] = [job.state for job in jobs.values()]
        if "running" not in states and ("waiting" not in states or relay.has_signal):
            return jobs
        time.sleep(_POLL_SECONDS)
