"""Read a node's properties: tools with a time limit, small files of /proc and /sys, several readings at once.

Nothing here blocks a job: a tool, file system or driver that hangs is abandoned and reported.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

# ----------------------------------------------------------------------------------------------------
# The system's tools.


# lscpu takes 10 ms, lstopo 100 ms, ibstat 50 ms; a tool that takes this long hangs in a driver.
PATIENCE_SECONDS = 5.0
# The limit for the output of a tool; only hwloc's XML of large nodes exceeds it.
LONGEST_RAW_BYTES = 64 * 1024
# Folders of administrators' tools; a user's PATH often lacks them.
_ADMINISTRATORS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# What identifies a machine, card or cable is removed: rows of dmidecode and ibstat, and attributes of hwloc's XML.
_IDENTITY = r"(?:Serial|UUID|GUID|GID|Asset|Address)"
_ROWS = re.compile(rf"^(\s*[^:\n]*{_IDENTITY}[^:\n]*:).*$", re.MULTILINE | re.IGNORECASE)
_INFOS = re.compile(rf'(<info name="[^"]*{_IDENTITY}[^"]*" value=")[^"]*', re.IGNORECASE)


@dataclass(frozen=True)
class Ended:
    """The result of a program: its exit code (-N: killed by signal N), and what it printed."""

    code: int
    output: str
    errors: str


def run(command: Sequence[str], patience_seconds: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run `command` for `patience_seconds` at most.

    A command that hangs is killed with its children and abandoned: subprocess.run would wait for it, but a process that
    waits for a driver or a file server does not end even when it is killed.

    Raises:
        TimeoutError: it did not answer in time.
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A new process group, so that its children are killed with it.
        start_new_session=True,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired as error:
            _give_up(process)
            raise TimeoutError(f"did not answer within {patience_seconds:g} s") from error
        except BaseException:  # Ctrl-C does not reach its process group
            _give_up(process)
            raise
    return Ended(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


def _give_up(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
    # With a return code set, leaving the `with` block does not wait for it.
    process.returncode = process.returncode if process.returncode is not None else -signal.SIGKILL


@dataclass(frozen=True)
class Answer:
    """What a tool printed to stdout; `text` is None if it failed, and `reason` says why."""

    text: str | None = None
    reason: str | None = None


def ask(command: Sequence[str], patience_seconds: float = PATIENCE_SECONDS) -> Answer:
    """Run `command` in the C locale, for `patience_seconds` at most."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ADMINISTRATORS])
    program = shutil.which(command[0], path=path)
    if program is None:
        return Answer(reason="not installed")
    try:
        ended = run([program, *command[1:]], patience_seconds, {**os.environ, "PATH": path, "LC_ALL": "C"})
    except TimeoutError as error:
        return Answer(reason=str(error))
    except OSError as error:
        # It is built for another machine, or on a file system mounted noexec.
        return Answer(reason=f"{program} cannot be started: {error.strerror}")
    if ended.code != 0:
        return Answer(reason=(ended.errors.strip().splitlines() or [f"exit code {ended.code}"])[-1])
    return Answer(text=ended.output)


def anonymous(text: str) -> str:
    """A tool's output without serial numbers, addresses and the like."""
    return _INFOS.sub(r"\1[left out]", _ROWS.sub(r"\1 [left out]", text))


def bounded(text: str, most_bytes: int = LONGEST_RAW_BYTES) -> str:
    """`text`, or the first lines that fit, and how much was left out."""
    content = text.encode()
    if len(content) <= most_bytes:
        return text
    kept = content[: content.rfind(b"\n", 0, most_bytes) + 1] or content[:most_bytes]
    return f"{kept.decode(errors='ignore')}[cut here: {len(content) - len(kept)} of {len(content)} bytes left out]\n"


# ----------------------------------------------------------------------------------------------------
# The results of readings, and the host that is read.


@dataclass(frozen=True)
class Absent:
    """Something unknown: what it is, the tool that reports it, and why the tool failed."""

    what: str
    tool: str
    reason: str

    def document(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """A part of a node's description.

    Attributes:
        values: keys of the node's document; None is unknown.
        raw: output of tools, by tool.
    """

    values: Mapping[str, Any]
    raw: Mapping[str, str] = field(default_factory=dict)
    absent: Sequence[Absent] = ()


@dataclass(frozen=True)
class Host:
    """The host to read; tests replace it by files and tool outputs of another machine.

    Attributes:
        root: `/`.
        ask: runs a tool, given its command and a time limit in seconds.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ask: Callable[..., Answer] = ask


# ----------------------------------------------------------------------------------------------------
# Small files of /proc and /sys; a file that is missing or unreadable gives None.


def read(path: Path) -> str | None:
    """Content of `path`, stripped of white space; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """The integer in `path`; None if there is none."""
    text = read(path)
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def link_name(path: Path) -> str | None:
    """Last part of the target of the link `path`: the name of a driver, the address of a device."""
    try:
        return path.readlink().name
    except OSError:
        return None


def folders(parent: Path, pattern: str) -> list[Path]:
    """Paths in `parent` that match `pattern`, in the order of their numbers: node2 before node10."""
    return sorted(
        parent.glob(pattern),
        key=lambda path: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)],
    )


def chosen(text: str | None) -> str | None:
    """`always [madvise] never` -> `madvise`."""
    return text[text.index("[") + 1 : text.index("]")] if text and "[" in text else text


def bytes_of(text: str) -> int | None:
    """Bytes in `32K`, `1.5 MiB`, `512 kB`, `16 GB`: powers of two, as in lscpu, meminfo and dmidecode."""
    found = re.fullmatch(r"([\d.]+)\s*([KMGTP]?)i?B?", text.strip(), re.IGNORECASE)
    if found is None:
        return None
    power = " KMGTP".index(found.group(2).upper() or " ")
    return round(float(found.group(1)) * float(1024**power))


def numbers_of(text: str) -> set[int]:
    """The numbers in a list as the kernel writes it: `0-3,8` is 0, 1, 2, 3, 8."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


# ----------------------------------------------------------------------------------------------------
# Several readings at once.


Found = TypeVar("Found")


@dataclass(frozen=True)
class Look(Generic[Found]):
    """The result of one reading; `found` is None if it failed, and `reason` says why."""

    found: Found | None
    reason: str | None
    seconds: float


def together(looks: Mapping[str, Callable[[], Found]], patience_seconds: float) -> dict[str, Look[Found]]:
    """Run all `looks`, each in a thread, and wait `patience_seconds` at most; the results have the same order."""
    ended: dict[str, Look[Found]] = {}
    started = time.monotonic()

    def run(name: str, look: Callable[[], Found]) -> None:
        try:
            done = Look(look(), None, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - describing a machine must not end a run: the error is recorded
            done = Look(None, f"{type(error).__name__}: {error}", time.monotonic() - started)
        ended[name] = done

    # Daemon threads, so that a hung one does not keep the process alive.
    threads = [threading.Thread(target=run, args=one, daemon=True, name=f"look-{one[0]}") for one in looks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + patience_seconds - time.monotonic()))
    late = Look[Found](None, f"did not answer within {patience_seconds:g} s", patience_seconds)
    return {name: ended.get(name, late) for name in looks}
