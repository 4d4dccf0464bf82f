"""A process: a token that identifies it, its job's times, the processor time of its threads, and a limit to it.

A token consists of host, boot of the host, namespace of the process id, process id and start time. No other process has
the same five, also later. In doubt, a process counts as alive.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.files import boot

_PROC = Path("/proc")
_WORDS = 5
# Field 22 of the file, counted from the end of the process's name, which is the last parenthesis.
_START_FIELD = 19


def owner_of(process: int) -> str:
    """The token of a process of this node; "" if it is unknown, or the process has ended."""
    try:
        namespace = (_PROC / "self/ns/pid").readlink()
        start = (_PROC / str(process) / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()[_START_FIELD]
    except (OSError, IndexError):
        return ""
    return " ".join((socket.gethostname(), boot(), str(namespace), str(process), start))


def age_seconds(process: int) -> float | None:
    """Seconds since a process of this node started, as /proc shows it; None if it is unknown."""
    words = owner_of(process).split(" ")
    if len(words) != _WORDS or not words[4].isdecimal():
        return None
    start = int(words[4]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start)


# Set by batch scripts: when the job came into the queue, and when it started (UNIX seconds).
JOB_TIMES = "HPCAI500_JOB_TIMES"
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def job_times(environment: Mapping[str, str]) -> dict[str, Any]:
    """What is known of this job's time in a queue: `scheduler`, `job_submitted_s` and `job_started_s` of `Launch`."""
    words = environment.get(JOB_TIMES, "").split()
    submitted, started = (float(word) if word.isdecimal() else None for word in (*words, "", "")[:2])
    return {
        "scheduler": any(environment.get(name) for name in _JOBS),
        "job_submitted_s": submitted,
        "job_started_s": started,
    }


def is_here(owner: str) -> bool:
    """Whether a token names a process of this node since its last boot."""
    words = owner.split(" ")
    return len(words) == _WORDS and words[1] == boot()


def is_gone(owner: str) -> bool:
    """Whether the process of a token has certainly ended."""
    words = owner.split(" ")
    if len(words) != _WORDS or words[0] != socket.gethostname() or not boot() or not words[3].isdecimal():
        return False
    if words[1] != boot():
        return True
    now = owner_of(os.getpid()).split(" ")
    if len(now) != _WORDS or now[2] != words[2]:
        return False
    found = owner_of(int(words[3]))
    return found != owner if found else _has_ended(int(words[3]))


def _has_ended(pid: int) -> bool:
    """Whether there is no such process; /proc may hide processes of other users (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def is_alive(owner: str) -> bool:
    """Whether the process of a token certainly runs on this node, in this namespace of process ids."""
    words = owner.split(" ")
    return len(words) == _WORDS and words[3].isdecimal() and owner_of(int(words[3])) == owner


# ----------------------------------------------------------------------------------------------------
# The processor time of this process, and a limit to it.


_TASKS = _PROC / "self/task"
# After so many times its limit a process ends although it waited for a processor.
_LAST_LIMIT = 10


@dataclass(frozen=True)
class ProcessorTimes:
    """For how long the threads of this process ran, and waited for a processor though they could run: nanoseconds."""

    ran: int
    waited: int

    def share_waited(self, later: ProcessorTimes) -> float | None:
        """Share of the threads' time until `later` that they waited; None if the kernel does not count it."""
        ran, waited = later.ran - self.ran, later.waited - self.waited
        return max(0, waited) / (ran + max(0, waited)) if ran > 0 else None


def processor_times(tasks: Path = _TASKS) -> ProcessorTimes:
    """As the kernel counted them until now; zeros if it does not."""
    ran = waited = 0
    for file in tasks.glob("*/schedstat"):
        # The thread may end in between.
        with contextlib.suppress(OSError):
            found = [int(word) for word in file.read_text(encoding="ascii").split()]
            ran, waited = ran + found[0], waited + found[1]
    return ProcessorTimes(ran, waited)


def end_by_alarm(limit_seconds: float) -> None:
    """Let SIGALRM end this process after `limit_seconds`, even if it hangs in a library.

    Time in which a thread waited for a processor does not count: on a machine that is loaded four times over, the same
    work takes four times as long. The last limit, for a library that keeps Python's lock, does not depend on this.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(_LAST_LIMIT * limit_seconds))
    end_seconds = time.monotonic() + limit_seconds

    def watch() -> None:
        while (left_seconds := end_seconds + processor_times().waited / 1e9 - time.monotonic()) > 0:
            time.sleep(min(left_seconds, 1.0))
        os.kill(os.getpid(), signal.SIGALRM)

    threading.Thread(target=watch, name="limit", daemon=True).start()
