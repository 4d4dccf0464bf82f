"""The system's own tools: asked with a limit of time, so that one that hangs is said and hangs nobody."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

# lscpu takes 10 ms, lstopo 100 ms, ibstat 50 ms. One that takes so long as this hangs on a driver.
PATIENCE_SECONDS = 5.0
# What is kept of a tool's output: whole for all but hwloc's XML of large nodes.
LONGEST_RAW_BYTES = 64 * 1024
# Users' PATH often lacks where tools of administrators lie.
_ADMINISTRATORS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# What names one machine, card or cable among its like stays at the site: rows of dmidecode and ibstat, hwloc's XML.
_IDENTITY = r"(?:Serial|UUID|GUID|GID|Asset|Address)"
_ROWS = re.compile(rf"^(\s*[^:\n]*{_IDENTITY}[^:\n]*:).*$", re.MULTILINE | re.IGNORECASE)
_INFOS = re.compile(rf'(<info name="[^"]*{_IDENTITY}[^"]*" value=")[^"]*', re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What a tool printed.

    Attributes:
        text: its standard output; None where it did not answer.
        reason: why not: `not installed`, or its last words.
    """

    text: str | None = None
    reason: str | None = None


def ask(command: Sequence[str], patience_seconds: float = PATIENCE_SECONDS) -> Answer:
    """What `command` prints, in the C locale."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ADMINISTRATORS])
    program = shutil.which(command[0], path=path)
    if program is None:
        return Answer(reason="not installed")
    try:
        started = _start(program, command[1:], path)
    except OSError as error:
        # Built for another machine, or on a file system that may not be run from.
        return Answer(reason=f"{program} cannot be started: {error.strerror}")
    with started as process:
        try:
            output, errors = process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            _give_up(process)
            return Answer(reason=f"did not answer within {patience_seconds:g} s")
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return Answer(reason=last[0])
    return Answer(text=output.decode(errors="replace"))


def _start(program: str, arguments: Sequence[str], path: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": path, "LC_ALL": "C"},
        # A group of its own: what it starts ends with it.
        start_new_session=True,
    )


def _give_up(process: subprocess.Popen[bytes]) -> None:
    """End it without waiting: a process that waits for a driver does not even end when it is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
    # Leaving `with` would wait for it. Nobody reads its output any more either.
    process.returncode = process.returncode if process.returncode is not None else -signal.SIGKILL


def anonymous(text: str) -> str:
    """`text` of a tool without serial numbers, addresses and the like."""
    return _INFOS.sub(r"\1[left out]", _ROWS.sub(r"\1 [left out]", text))


def bounded(text: str, most_bytes: int = LONGEST_RAW_BYTES) -> str:
    """`text`, or as many of its first lines as fit, and how much was left out."""
    content = text.encode()
    if len(content) <= most_bytes:
        return text
    kept = content[: content.rfind(b"\n", 0, most_bytes) + 1] or content[:most_bytes]
    return f"{kept.decode(errors='ignore')}[cut here: {len(content) - len(kept)} of {len(content)} bytes left out]\n"
