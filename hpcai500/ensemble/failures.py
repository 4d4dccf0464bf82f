"""Failures of a member's own, as its batch script or the runner of this machine wrote them down, and its last words."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcai500.ensemble.reading import FAILURES, OUTPUT
from hpcai500.ensemble.record_tail import Meter

# Of each of the two files, at its end.
_MOST_BYTES = 2**14
_MOST_WORDS = 400
_ERROR = "hpcai500: error: "
# An error that says no more than that one before it says why.
_SEE_ABOVE = "(see above)"
# What was printed before is of an earlier job.
_BEGUN = re.compile(r"hpcai500: member \d+: job .*, restart \d+$")


@dataclass(frozen=True)
class Failure:
    """One failure of a member's own.

    Attributes:
        host: that it ran on; several have commas between them.
        exit_code: of its job.
        time_ms: when that was (UNIX time); 0 where it was not told.
        job: of the scheduler, as the journal's `submit` names it; empty where it was not told.
    """

    host: str
    exit_code: int
    time_ms: int = 0
    job: str = ""


def begun_line(member: int, job: str, host: str, restarts: int) -> str:
    """What stands in a member's output before what a job of it prints; the batch script writes the same."""
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
    """The last failure that was written down in a member's folder; None where none was.

    Raises:
        OSError: it cannot be read.
    """
    found = read_failures(str(folder), Meter())
    return found[-1] if found else None


def last_error(folder: Path) -> str | None:
    """The last error that a member's last job has printed; None where it has printed none.

    Raises:
        OSError: its output cannot be read.
    """
    return read_last_error(str(folder), Meter())


def read_failures(folder: str, meter: Meter) -> tuple[Failure, ...]:
    """The failures that were written down in a member's folder, the last ones of very many, the first one first.

    Raises:
        OSError: they cannot be read.
    """
    return tuple(_failures(_end_of(f"{folder}/{FAILURES}", meter)))


def read_last_error(folder: str, meter: Meter) -> str | None:
    """As `last_error`; `meter` is told what it costs."""
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
            # A line that is not whole, or nothing that we wrote: it decides nothing.
            continue


def _end_of(path: str, meter: Meter) -> bytes:
    """The end of a file that may not be there."""
    if not os.path.lexists(path):
        return b""
    meter.files += 1
    # Without O_NONBLOCK, whoever puts a pipe there keeps us for ever.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b""
        content = os.pread(descriptor, _MOST_BYTES, max(0, status.st_size - _MOST_BYTES))
    finally:
        os.close(descriptor)
    meter.read_bytes += len(content)
    return content
