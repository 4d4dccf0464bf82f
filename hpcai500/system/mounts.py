"""Mounts: which one a path is on, and whether it responds.

Accessing a path below a mount whose server is gone may block forever, often without reacting to signals. So a child
process accesses the paths that a user named first, and is waited for only until a time limit.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError

# Enough for a busy metadata server or an automounter to answer for one folder.
_ANSWER_SECONDS = 15.0
# The kernel's errors if a server or a FUSE process is gone.
_GONE = {
    errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ECONNREFUSED, errno.ECONNABORTED, errno.ECONNRESET, errno.ESHUTDOWN, errno.ENODEV,
}  # fmt: skip
# Options of network file systems with credentials; only some file systems show them as `<hidden>`.
_PRIVATE = re.compile(r"^(\w*(?:pass|secret|cred|key|token|user|domain)\w*)=.*$", re.IGNORECASE)
# Overlays of containers list every layer.
_LONGEST_OPTION = 200
# The child's code, run without site packages (10 ms in all). It reads paths from stdin and follows the links of each,
# component by component, so that the parent knows how far it came; then it stats the path, lists one entry of a folder
# and reads one byte of a regular file. Each record that it writes is the number of a path, then `@` and the place
# reached, or `=` and errno.
_PROBE = r"""
import os, signal, sys, _thread
signal.alarm(int(sys.argv[1]))
paths = list(enumerate(open(0, "rb").read().split(b"\0")))
paths.reverse()
left, lock = len(paths), _thread.allocate_lock()
done = _thread.allocate_lock(); done.acquire()

def say(number, mark, what):
    with lock:
        try:
            os.write(1, b"%d%s%s\0" % (number, mark, what))
        except OSError:
            os._exit(1)  # the parent is gone

def touch(number, path):
    place, rest, links = b"/", path.split(b"/"), 0
    while rest:
        part = rest.pop(0)
        if part in (b"", b"."):
            continue
        if part == b"..":
            place = os.path.dirname(place)
            continue
        place = os.path.join(place, part)
        say(number, b"@", place)
        try:
            target = os.readlink(place)
        except OSError:
            continue
        links += 1
        if links > 40:
            return
        place = b"/" if target.startswith(b"/") else os.path.dirname(place)
        rest = target.split(b"/") + rest
    mode = os.stat(place).st_mode & 0o170000
    if mode == 0o040000:
        with os.scandir(place) as entries:
            next(entries, None)
    elif mode == 0o100000:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
        os.read(descriptor, 1)
        os.close(descriptor)

def work():
    global left
    while True:
        try:
            number, path = paths.pop()
        except IndexError:
            return
        code = 0
        try:
            touch(number, path)
        except OSError as error:
            code = error.errno or 0
        say(number, b"=", b"%d" % code)
        with lock:
            left -= 1
            if not left:
                done.release()

for _ in range(min(left, 64)):
    _thread.start_new_thread(work, ())
done.acquire()
os._exit(0)
"""


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    point: str
    type: str
    source: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Unreachable:
    """A path that does not respond, as the user gave it, with the problem and its fix."""

    path: str
    detail: str
    fix: str


def require_reachable(paths: Iterable[str | Path], seconds: float = _ANSWER_SECONDS) -> None:
    """Refuse paths that do not respond, before anything else accesses them; a missing path counts as a response.

    Raises:
        EnvironmentLacksError: a path does not respond within `seconds`, or its server is gone; with mount and fix.
    """
    if dead := unreachable(paths, seconds):
        more = f" (and {len(dead) - 1} more)" if dead[1:] else ""
        raise EnvironmentLacksError(f"{dead[0].detail}{more}; {dead[0].fix}")


def unreachable(paths: Iterable[str | Path], seconds: float = _ANSWER_SECONDS) -> list[Unreachable]:
    """Those of `paths` that do not respond within `seconds`, or whose server is gone, in the same order."""
    names = list(dict.fromkeys(map(str, paths)))
    named = [(name, whole) for name in names if (whole := _absolute(name)) is not None]
    if not named:
        return []
    places, codes, waited_seconds = _touched([whole for _, whole in named], seconds)
    found = []
    for number, (name, whole) in enumerate(named):
        code = codes.get(number)
        if code is None and waited_seconds is not None:
            reason = f"does not respond (waited {seconds:g} s)"
        elif code in _GONE:
            reason = os.strerror(code)
        else:
            continue
        mount = mount_of(Path(places.get(number, whole)), read_mounts())
        found.append(Unreachable(name, *_problem(name, reason, mount)))
    return found


def _problem(name: str, reason: str, mount: Mount | None) -> tuple[str, str]:
    """Detail and fix."""
    if mount is None:
        return f"{name}: {reason}", "give another folder"
    detail = f"{name}: {reason}: {mount.point} ({mount.type}, from {mount.source}) is dead"
    unmount = "" if mount.point == "/" else f", or unmount it (umount -l {mount.point}) and mount it again"
    return detail, f"check that its server is running{unmount}"


def _absolute(path: str) -> str | None:
    """`path` as an absolute path, without accessing it; None if it is not a valid path."""
    if "\0" in path or not path:
        return None
    try:
        return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - Path would normalise what the user wrote
    except FileNotFoundError:  # the working directory was removed
        return path if path.startswith("/") else None


def _touched(paths: list[str], seconds: float) -> tuple[dict[int, str], dict[int, int], float | None]:
    """Access `paths` in a child: returns how far it came with each, errno of those that responded (0: none), and how
    long the parent waited (None: the child ended).

    The child is killed, but not waited for: in state D it ends only when the mount does. If this process dies, the
    child's alarm ends it.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROBE, str(math.ceil(seconds) + 1)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    said, limit, ended = b"", time.monotonic() + seconds, False
    try:
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(b"\0".join(map(os.fsencode, paths)))
        while not ended and (left := limit - time.monotonic()) > 0:
            if select.select([child.stdout], [], [], left)[0]:
                said += (piece := os.read(child.stdout.fileno(), 1 << 16))
                ended = not piece
    finally:
        child.stdout.close()
        child.kill()
        if ended:
            child.wait()
    places: dict[int, str] = {}
    codes: dict[int, int] = {}
    for record in said.split(b"\0")[:-1]:
        number, mark, what = re.split(rb"([@=])", record, maxsplit=1)
        if mark == b"@":
            places[int(number)] = os.fsdecode(what)
        else:
            codes[int(number)] = int(what)
    return places, codes, None if ended else seconds


def read_mounts(root: Path = Path("/")) -> list[Mount]:
    """The mounts that this process sees, in the order in which they were made; empty if the kernel does not say."""
    try:
        return parse_mounts((root / "proc/self/mountinfo").read_text("utf-8", "surrogateescape"))
    except OSError:
        return []


def parse_mounts(text: str) -> list[Mount]:
    """The mounts in the text of /proc/self/mountinfo."""
    found = []
    for line in text.splitlines():
        # Optional fields end with a dash (proc(5)).
        before, _, after = line.partition(" - ")
        head, tail = before.split(), after.split(" ")
        if len(head) < 6 or len(tail) < 3:
            continue
        options = dict.fromkeys([*head[5].split(","), *tail[2].split(",")])
        # The part before @ names the user (sshfs, Ceph).
        source = re.sub(r"^[^/:@]+@", "", _plain(tail[1]))
        found.append(Mount(_plain(head[4]), tail[0], source, tuple(map(public, options))))
    return found


def mount_of(path: Path, mounts: list[Mount]) -> Mount | None:
    """The mount of `path`, which is absolute and without links: the longest match, and of equal ones the last."""
    holding = [mount for mount in mounts if path.is_relative_to(mount.point)]
    return max(enumerate(holding), key=lambda one: (len(Path(one[1].point).parts), one[0]))[1] if holding else None


def public(option: str) -> str:
    """A mount option without possible secrets."""
    return _PRIVATE.sub(r"\1=[left out]", option)[:_LONGEST_OPTION]


def _plain(text: str) -> str:
    r"""Undo mountinfo's escapes, such as `\040` for a space."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
