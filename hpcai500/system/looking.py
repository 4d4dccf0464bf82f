"""How a node is looked at: tools with a time limit, small files of /proc and /sys, several looks at once.

Nothing here holds up a job: a tool, file system or driver that hangs is left behind, and reported.
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


# lscpu takes 10 ms, lstopo 100 ms, ibstat 50 ms; a tool that takes this long hangs on a driver.
PATIENCE_SECONDS = 5.0
# Kept of a tool's output: all, except for hwloc's XML of large nodes.
LONGEST_RAW_BYTES = 64 * 1024
# Where administrators' tools are; a user's PATH often lacks these folders.
_ADMINISTRATORS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# What identifies one machine, card or cable stays at the site: rows of dmidecode and ibstat, and hwloc's XML.
_IDENTITY = r"(?:Serial|UUID|GUID|GID|Asset|Address)"
_ROWS = re.compile(rf"^(\s*[^:\n]*{_IDENTITY}[^:\n]*:).*$", re.MULTILINE | re.IGNORECASE)
_INFOS = re.compile(rf'(<info name="[^"]*{_IDENTITY}[^"]*" value=")[^"]*', re.IGNORECASE)


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code (-N: by signal N), and what it printed."""

    code: int
    output: str
    errors: str


def run(command: Sequence[str], patience_seconds: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run `command` to its end, for `patience_seconds` at most.

    What hangs is killed with all that it has started, and left behind: subprocess.run would wait for it, and a process
    that waits for a driver or a file server does not end even then.

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
        # A process group of its own, so that its children end with it.
        start_new_session=True,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired as error:
            _give_up(process)
            raise TimeoutError(f"did not answer within {patience_seconds:g} s") from error
        except BaseException:  # Ctrl-C does not reach its group
            _give_up(process)
            raise
    return Ended(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


def _give_up(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
    # With a code set, leaving `with` does not wait for it.
    process.returncode = process.returncode if process.returncode is not None else -signal.SIGKILL


@dataclass(frozen=True)
class Answer:
    """What a tool printed to stdout; `text` is None where it did not answer, and `reason` says why."""

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
        # Built for another machine, or on a file system mounted noexec.
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
# What a look finds, and where it looks.


@dataclass(frozen=True)
class Absent:
    """Something that stayed unknown: what, the tool that would tell it, and why it did not."""

    what: str
    tool: str
    reason: str

    def document(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """What one look found.

    Attributes:
        values: keys of the node's document; None is unknown.
        raw: output of tools, by their name.
    """

    values: Mapping[str, Any]
    raw: Mapping[str, str] = field(default_factory=dict)
    absent: Sequence[Absent] = ()


@dataclass(frozen=True)
class Host:
    """Where looks go; tests give files and tools' output of another machine.

    Attributes:
        root: `/`.
        ask: runs a tool, given its tokens and how many seconds it may take.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ask: Callable[..., Answer] = ask


# ----------------------------------------------------------------------------------------------------
# Small files of /proc and /sys; whatever is absent or cannot be read is unknown.


def read(path: Path) -> str | None:
    """Content of `path` without the white space around it; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """The whole number in `path`; None where there is none."""
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


def memory_limit(root: Path = Path("/")) -> int | None:
    """The smallest memory limit of this process's control groups, in bytes; None where there is none."""
    path = root / "proc" / "self" / "cgroup"
    groups = path.read_text() if path.is_file() else ""
    mounted = root / "sys" / "fs" / "cgroup"
    found: list[int] = []
    for line in groups.splitlines():
        _, kind, group = line.split(":", 2)
        if kind and "memory" not in kind.split(","):
            continue
        base, name = (mounted / "memory", "memory.limit_in_bytes") if kind else (mounted, "memory.max")
        folder = Path(group.lstrip("/"))
        for one in (folder, *folder.parents):
            limit = base / one / name
            if limit.is_file() and re.fullmatch(r"\d+\s*", text := limit.read_text()):
                found.append(int(text))
    return min(found, default=None)


# ----------------------------------------------------------------------------------------------------
# Several looks at once.


Found = TypeVar("Found")


@dataclass(frozen=True)
class Look(Generic[Found]):
    """The end of one look.

    `found` is None where it failed, and `reason` says why.
    """

    found: Found | None
    reason: str | None
    seconds: float


def together(looks: Mapping[str, Callable[[], Found]], patience_seconds: float) -> dict[str, Look[Found]]:
    """Run all of `looks`, each in a thread, and wait `patience_seconds` at most; the results are in their order."""
    ended: dict[str, Look[Found]] = {}
    started = time.monotonic()

    def run(name: str, look: Callable[[], Found]) -> None:
        try:
            done = Look(look(), None, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - who describes a machine must not end a run on it: it is said
            done = Look(None, f"{type(error).__name__}: {error}", time.monotonic() - started)
        ended[name] = done

    # Daemon threads do not keep the process from ending.
    threads = [threading.Thread(target=run, args=one, daemon=True, name=f"look-{one[0]}") for one in looks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + patience_seconds - time.monotonic()))
    late = Look[Found](None, f"did not answer within {patience_seconds:g} s", patience_seconds)
    return {name: ended.get(name, late) for name in looks}
