"""The scheduler of one machine: members are processes here, each on cores or accelerators of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcai500.ensemble.reading import OUTPUT, Ensemble
from hpcai500.ensemble.retrying import may_be_tried_again
from hpcai500.ensemble.scheduler import MemberJob, State
from hpcai500.errors import EnvironmentLacksError, ExitCode, RunError
from hpcai500.launch.affinity import neighbours_together, share
from hpcai500.launch.child import SignalRelay, start_child
from hpcai500.launch.devices import VARIABLE, visible_devices
from hpcai500.launch.in_job import module_command


@dataclass(frozen=True)
class Slot:
    """What one member at a time has of this machine.

    Attributes:
        cores: that it may run on.
        devices: accelerators that it sees, as CUDA names them; None where the recipe needs none.
    """

    cores: Sequence[int]
    devices: str | None = None


class LocalScheduler:
    """Runs members as processes of this one, which must live as long as they: `jobs` starts the next ones.

    Args:
        relay: passes signals on to them.
        power: what tells the power, as --power has it.
    """

    name = "local"

    def __init__(self, relay: SignalRelay, power: str = "auto") -> None:
        self._relay, self._power = relay, power
        self._host = socket.gethostname()
        self._waiting: list[int] = []
        self._slots: list[Slot] = []
        self._running: dict[int, tuple[subprocess.Popen[bytes], Slot]] = {}
        self._failures: dict[int, int] = {}
        self._restarts: dict[int, int] = {}
        self._ended: dict[int, MemberJob] = {}
        # Exit code of each member's last process.
        self.codes: dict[int, int] = {}

    def submit(
        self, ensemble: Ensemble, members: Sequence[int], *, at_once: int | None = None, exclude: Sequence[str] = ()
    ) -> Sequence[str]:
        """Have `members` run here, as many at a time as the machine has room for, or `at_once`."""
        if self._host in exclude:
            raise RunError(f"{self._host}: is excluded, and there is no other host: leave out --exclude")
        self._slots = slots(ensemble, at_once)
        self._waiting += members
        return [f"process-{os.getpid()}"]

    def jobs(self, ensemble: Ensemble) -> Mapping[int, MemberJob]:
        """How the members stand; those that have room begin."""
        for member, (process, slot) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[member]
                self._slots.append(slot)
                self._end(member, code)
        while self._waiting and self._slots and not self._relay.heard:
            self._start(ensemble, self._waiting.pop(0), self._slots.pop(0))
        return {
            **{member: self._job(member, "waiting") for member in self._waiting},
            **{member: self._job(member, "running") for member in self._running},
            **self._ended,
        }

    def cancel(self, ensemble: Ensemble) -> Sequence[str]:
        """Ask those that run to stop with a checkpoint, and begin no other."""
        for member in self._waiting:
            self._ended[member] = self._job(member, "cancelled")
        self._waiting.clear()
        for process, _ in self._running.values():
            process.send_signal(signal.SIGUSR1)
        return [f"process-{process.pid}" for process, _ in self._running.values()]

    def close(self) -> None:
        """Kill what still runs; its records are gone on with by the next `ensemble run`."""
        for process, _ in self._running.values():
            process.kill()
            process.wait()

    def _start(self, ensemble: Ensemble, member: int, slot: Slot) -> None:
        folder = ensemble.folder(member)
        command = module_command(
            "cli", "ensemble", "member", ensemble.path, "--member", str(member), "--power", self._power,
            "--procs", str(ensemble.shape.degree),
        )  # fmt: skip
        environment = {**os.environ} | ({VARIABLE: slot.devices} if slot.devices is not None else {})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / OUTPUT).open("ab") as output:
                process = start_child(command, environment=environment, cores=slot.cores, output=output.fileno())
        except OSError as error:
            raise RunError(
                f"{error.filename or folder}: cannot be written: {error.strerror}; mend it, then go on"
            ) from error
        self._relay.add(process)
        self._running[member] = process, slot

    def _end(self, member: int, code: int) -> None:
        self.codes[member] = code
        if code == ExitCode.PASS:
            self._ended[member] = self._job(member, "ended")
            return
        if self._relay.heard:
            self._ended[member] = self._job(member, "cancelled", "stopped with this command")
            return
        failures = self._failures[member] = self._failures.get(member, 0) + 1
        if may_be_tried_again(code, failures):
            self._restarts[member] = self._restarts.get(member, 0) + 1
            self._waiting.append(member)
        else:
            why = f"exit code {code}, after {failures} failure(s): see members/{member:05d}/{OUTPUT}"
            self._ended[member] = self._job(member, "failed", why)

    def _job(self, member: int, state: State, reason: str = "") -> MemberJob:
        running = self._running.get(member)
        job = f"process-{running[0].pid}" if running else ""
        hosts = () if state == "waiting" else (self._host,)
        return MemberJob(member, state, job, hosts, self._restarts.get(member, 0), reason)


def slots(ensemble: Ensemble, at_once: int | None) -> list[Slot]:
    """What each of the members that run side by side has of this machine: equal shares, as many as it has room for.

    Raises:
        EnvironmentLacksError: there are fewer accelerators than they take.
    """
    cores = neighbours_together(os.sched_getaffinity(0))
    degree, members = ensemble.shape.degree, ensemble.shape.members
    if ensemble.tables["accelerator"]["device"] != "cuda":
        count = min(members, at_once or max(1, len(cores) // degree))
        return [Slot(share(cores, number, count)) for number in range(count)]
    devices = visible_devices(os.environ)
    room = len(devices) // degree
    if room < (at_once or 1):
        raise EnvironmentLacksError(
            f"{len(devices)} accelerators are seen here, and {at_once or 1} member(s) of {degree} take "
            f"{(at_once or 1) * degree}: plan a lower --degree, or give a lower --at-once"
        )
    count = min(members, at_once or room)
    return [
        Slot(share(cores, number, count), ",".join(devices[number * degree : (number + 1) * degree]))
        for number in range(count)
    ]
