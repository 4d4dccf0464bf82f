"""Atomic file writes, locks between processes, and temporary folders.

A reader never sees a half-written file, even after a kill or a crash. Output goes to --out or the working directory and
nowhere else: the caches of libraries (torch's compiled code, Matplotlib's list of fonts) go into a temporary folder. It
is removed at the end, and after an error, Ctrl-C or SIGTERM; if the process was killed, the next one of the same kernel
removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import IO, Literal, NoReturn
from weakref import WeakSet

from hpcai500.errors import EnvironmentLacksError, HpcAi500Error, RecordError, UsageError

# ----------------------------------------------------------------------------------------------------
# Paths, and atomic writes that survive a power failure.


def exists(path: Path) -> bool:
    """Whether this user can see `path`; false below a folder that this user cannot search, where Path.exists raises."""
    try:
        return path.exists()
    except PermissionError:
        return False


def is_folder(path: Path) -> bool:
    return exists(path) and path.is_dir()


def as_utf8(name: str | Path) -> str:
    """A file's name, or text with such names, read as UTF-8 in every locale: to be stored, compared and shown.

    Bytes that are not UTF-8 become lone surrogates, as in os.fsdecode.
    """
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def from_utf8(name: str) -> str:
    """The inverse of `as_utf8`: the name as this process passes it to the system."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def why_not(kind: Literal["file", "folder"], path: Path) -> str | None:
    """Why `path`, typed by a user, is no `kind`, such as "no such folder (did you mean ic-2?)"; None if it is one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            return f"a link to {path.readlink()}, which does not exist"
        near = similar_path(path, kind)
        return f"no such {kind}" + (f" (did you mean {near}?)" if near else "")
    except OSError as error:
        return f"not readable by this user ({error.strerror})"
    if stat.S_ISDIR(mode):
        return None if kind == "folder" else "a folder, not a file"
    if kind == "folder":
        return "a file, not a folder"
    return None if stat.S_ISREG(mode) else "not a regular file"


def similar_path(path: Path, kind: Literal["file", "folder"]) -> Path | None:
    """An existing path that a user may have meant by `path`, which does not exist: one of its names is misspelt."""
    found = Path(path.anchor)
    for index, name in enumerate(path.parts):
        if exists(found / name):
            found /= name
            continue
        rest = path.parts[index + 1 :]
        near = _similar_names(found, name, "folder" if rest else kind)
        # The rest may be misspelt, too: the first name is worth correcting.
        whole = (found.joinpath(one, *rest) for one in near)
        return next(filter(exists, whole), None) or next((found / one for one in near), None)
    return None


# Listing more takes long on a shared file system.
_MOST_LISTED = 10_000


def _similar_names(folder: Path, name: str, kind: Literal["file", "folder"]) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in islice(entries, _MOST_LISTED) if one.is_dir() == (kind == "folder")]
    except OSError:
        return []
    by_lower = {one.lower(): one for one in sorted(names)}
    near = get_close_matches(name.lower(), by_lower, cutoff=0.75)
    return [by_lower[one] for one in near]


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """`text` with $VARIABLES and ${VARIABLES} replaced by their values.

    Raises:
        UsageError: one of them is unset or empty: the path would name another folder.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not environment.get(name):
            raise UsageError(f"{text}: ${name} is not set here: set it on all nodes, or give a folder without it")
        return environment[name]

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)


def nearest(path: Path) -> Path:
    """`path`, or its nearest parent that this user can see."""
    path = path.absolute()
    return next(one for one in (path, *path.parents) if exists(one))


def make_empty(folder: Path, kind: type[HpcAi500Error], remedy: str) -> None:
    """Make `folder`; if it exists, it must be empty.

    Raises:
        HpcAi500Error: of class `kind`; it is not empty. `remedy` says what to do.
        OSError: it cannot be made or listed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise kind(f"{folder}: not empty; {remedy}")


RUNS = Path("runs")


@contextmanager
def run_folder(out: Path | None, name: str) -> Iterator[Path]:
    """`out`, or a new folder NAME-TIME in `runs/`, which is this process's own and is removed if it stays empty.

    A second one of the same second is NAME-TIME-2: two runs never share a folder.

    Raises:
        RecordError: the folder cannot be made.
    """
    if out is not None:
        yield out
        return
    first = RUNS / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder, number = first, 1
    try:
        RUNS.mkdir(parents=True, exist_ok=True)
        while not _is_made(folder):
            number += 1
            folder = first.with_name(f"{first.name}-{number}")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def _is_made(folder: Path) -> bool:
    """Make `folder`; false if it exists already."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure, where its file system can.

    Raises:
        OSError: the disk is faulty.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # CIFS before Linux 4.17, vboxsf and some FUSE file systems do not synchronise folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, even after a crash.

    Raises:
        OSError: the disk is full or the folder cannot be written; `path` is then unchanged.
    """

    def write(stream: IO[bytes]) -> None:
        stream.write(content)

    write_atomically_by(path, write)


def write_atomically_by(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """As `write_atomically`, for large content: `write` writes it to a stream.

    Raises:
        OSError: as `write_atomically`, or as `write` does.
    """
    # The number of a process alone is not unique: other hosts and containers have their own.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def allocate(path: Path, size_bytes: int) -> None:
    """Allocate at least `size_bytes` of disk for `path`, so that writing into it cannot fail for lack of space.

    The content of the file is kept. On file systems that cannot allocate, the C library writes into the file instead,
    which needs a descriptor open for reading and writing.

    Raises:
        OSError: the disk is full; the file is then removed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def write_unsynced(path: Path, content: bytes, scratch: Path | None = None) -> None:
    """Write a file that can be made again: it is whole or absent after a kill, but not after a power failure.

    It is written under a temporary name in `scratch` (by default beside `path`), then renamed. Unlike
    `write_atomically` this does not wait for the disk, which takes minutes for 3,500 images on some file systems. Any
    number of processes, also on different nodes, may write the same path at once: the file of one of them stays.

    Raises:
        OSError: the folder cannot be written; no temporary file is left.
    """
    temporary = (scratch or path.parent) / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part"
    # os.open applies the umask; files of tempfile could be read by their owner only.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# ----------------------------------------------------------------------------------------------------
# Locks between processes (flock). The kernel releases a lock when its process ends, also after a kill.


def boot() -> str:
    """Id of the kernel since it was started, the same in all containers of a host; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


# `alone`: this process holds the lock; `taken`: another one does; `unknown`: this file system has no locks, such as a
# parallel one that is mounted without them.
Turn = Literal["alone", "taken", "unknown"]
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> Turn:
    """Lock an open file or folder until it is closed; with `wait`, block until every other process has released it.

    `shared`: take a shared lock, which several processes can hold at once.
    """
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return "taken"
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return "unknown"
        raise
    return "alone"


@contextmanager
def turn_of(path: Path, on_wait: Callable[[], None] | None = None, holder: str = "") -> Iterator[Turn]:
    """Hold the lock of the lock file `path` while the context is open.

    With `on_wait`, call it once if the lock is taken, then wait. `holder` is written into the file.

    Raises:
        OSError: the file cannot be made.
    """
    has_waited = False
    while True:
        with path.open("ab") as stream:
            turn = lock(stream.fileno())
            if turn == "taken" and on_wait:
                if not has_waited:
                    on_wait()
                has_waited = True
                turn = lock(stream.fileno(), wait=True)
            # The previous holder may have removed the file after we opened it: then our lock excludes nobody.
            if turn == "alone" and not _is_open_at(stream.fileno(), path):
                turn = "taken"
            if turn == "taken" and on_wait:
                continue
            try:
                if turn == "alone":
                    _sign(stream.fileno(), holder)
                yield turn
            finally:
                # Before the lock is released: a process that waits for it finds the file gone, and makes a new one.
                if turn == "alone":
                    with contextlib.suppress(OSError):
                        path.unlink()
            return


_POLL_SECONDS = 0.1
_MOST_VANISHED = 100


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Wait for the lock of the file `path` and hold it; yields whether another process held it before.

    The file and its folder are made if missing, and the file names the holder. The kernel releases the lock when the
    process ends, also after a kill. The holder may remove the file.

    Args:
        path: of the lock file.
        on_wait: called every 0.1 s while another process holds the lock.

    Raises:
        EnvironmentLacksError: files cannot be locked there.
        OSError: the file cannot be made.
    """
    descriptor, waited = _acquire(path, on_wait)
    try:
        _sign(descriptor, f"process {os.getpid()} on {socket.gethostname()}")
        yield waited
    finally:
        os.close(descriptor)


def _acquire(path: Path, on_wait: Callable[[], None]) -> tuple[int, bool]:
    waited, vanished = False, 0
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            # The folder was removed in between, or cannot be made there, as below /proc.
            vanished += 1
            if vanished == _MOST_VANISHED:
                raise
            continue
        try:
            while not _try_lock(descriptor, path):
                waited = True
                on_wait()
                time.sleep(_POLL_SECONDS)
            # The previous holder may have removed the file: then this lock excludes nobody.
            if _is_open_at(descriptor, path):
                return descriptor, waited
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path) -> bool:
    turn = lock(descriptor)
    if turn == "unknown":
        raise EnvironmentLacksError(
            f"{path.parent}: this file system has no file locks: use another one, such as the node's own storage"
        )
    return turn == "alone"


def _sign(descriptor: int, holder: str) -> None:
    # The lock works without it, for example when the disk is full.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, holder.encode())


def _is_open_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


# ----------------------------------------------------------------------------------------------------
# Temporary folders, also where few folders are writable, such as in an image without bind mounts.


VARIABLE = "TMPDIR"
# It comes last: memory is scarce.
_MEMORY = "/dev/shm"  # noqa: S108 - as below
_USUAL = ("/tmp", "/var/tmp", _MEMORY)  # noqa: S108 - folders to try, each for a uniquely named folder
# No more than this, and than this share of what is free, may lie in memory.
_LITTLE_BYTES, _SHARE_OF_FREE = 64 * 2**20, 0.25
# If the user sets one of these, the cache is kept from run to run.
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "torch", "MPLCONFIGDIR": "matplotlib"}
_KIND = "hpcai500-"


class HeldFolder(tempfile.TemporaryDirectory[str]):
    """A new temporary folder in `parent`, which this process keeps locked until it removes it.

    Folders of the same `kind` that killed processes of this user have left there are removed first. Whether a process
    is alive is what the lock of its folder says, never its number: other containers of this host count their own.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: str | Path, kind: str = _KIND) -> None:
        _remove_abandoned(Path(parent), kind)
        while True:
            super().__init__(prefix=_prefix(parent, kind), dir=parent, ignore_cleanup_errors=True)
            if (held := _hold(Path(self.name))) is not None:
                break
            self.cleanup()
        self._held = held
        _open_folders.add(self)

    def cleanup(self) -> None:
        super().cleanup()
        if self in _open_folders:
            _open_folders.discard(self)
            os.close(self._held)


_open_folders: WeakSet[HeldFolder] = WeakSet()


def scratch_folder(
    environment: Mapping[str, str], work: Path, most_bytes: int | None = None
) -> tempfile.TemporaryDirectory[str]:
    """A new folder in the first of these that is writable: $TMPDIR, /tmp, /var/tmp, /dev/shm, `work`.

    `work` is a folder of the user and need not exist yet. If no more than `most_bytes` will be written, and these are
    few, /dev/shm comes before /tmp. On a disk, thousands of small files cost more than their bytes: to make one, ext4
    looks at each file that was deleted beside it in the last minutes.

    Raises:
        EnvironmentLacksError: none can be written.
    """
    tried = []
    first = [_MEMORY] if not environment.get(VARIABLE) and _fits_in_memory(most_bytes) else []
    for folder in dict.fromkeys((*first, *_candidates(environment, work))):
        try:
            return HeldFolder(folder)
        except OSError as error:
            tried.append(f"{folder} ({error.strerror})")
    raise EnvironmentLacksError(
        f"no folder for temporary files is writable: {', '.join(tried)}; set {VARIABLE} to a writable one (in a "
        f"container: `--bind DIR --env {VARIABLE}=DIR`)"
    )


@contextmanager
def scratch(environment: MutableMapping[str, str], work: Path) -> Iterator[Path]:
    """A temporary folder while the context is open; the caches of libraries go there, too.

    Meanwhile SIGTERM unwinds this process, as Ctrl-C does, so that the folder is removed.

    Enter it before these libraries are imported: they read `environment`, which is changed while the context is open.

    Raises:
        EnvironmentLacksError: as scratch_folder.
    """
    with scratch_folder(environment, work) as folder:
        places = {name: str(Path(folder, place)) for name, place in _CACHES.items() if name not in environment}
        changes = {**places, **_temporary(environment, folder)}
        before = {name: environment.get(name) for name in changes}
        environment.update(changes)
        # An existing handler stays, and Python sets handlers in its main thread only.
        is_main = threading.current_thread() is threading.main_thread()
        if unwinds := is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _unwind)
        try:
            yield Path(folder)
        finally:
            if unwinds and signal.getsignal(signal.SIGTERM) is _unwind:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for name, value in before.items():
                environment.pop(name)
                environment.update({name: value} if value is not None else {})


def in_scratch(path: str) -> bool:
    """Whether `path` is in a temporary folder of this process."""
    return any(path.startswith(f"{folder.name}/") for folder in list(_open_folders))


# Waits until its stdin ends, because the process that started it closed it or died, and removes the folder, until
# nobody writes into it any more. It is not disturbed by signals that end the others.
_GUARD = r"""
import os, shutil, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
os.write(1, b"!")
os.read(0, 1)
limit = time.monotonic() + 60
while True:
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.lexists(sys.argv[1]) or time.monotonic() > limit:
        break
    time.sleep(0.1)
"""
# How long the end of a command waits for the removal: after a signal it has a few seconds in all to unwind.
_REMOVAL_SECONDS, _HURRY_SECONDS, _TROUBLE_SECONDS = 600.0, 3.0, 15.0


class GuardedFolder:
    """A new folder in `parent` that is removed at the end of the block, and also if this process is killed.

    Another process removes it, so that this one ends even if the file system no longer responds. Whatever both leave,
    for example because its memory ran out, is removed by the next `GuardedFolder` of this user.

    Attributes:
        path: of the folder.
        removed: folders that killed processes had left in `parent`.
        foreign: folders of processes whose locks cannot be seen here: of other hosts, which may be alive, and of this
            one before it was started anew.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        self.removed = _remove_abandoned(parent, _KIND)
        here = set(parent.glob(_pattern(parent, _KIND)))
        self.foreign = [one for one in parent.glob(f"{_KIND}*-*") if one not in here]
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_prefix(parent, _KIND), dir=parent))
            if (held := _hold(self.path)) is not None:
                break
        try:
            # The guard shares the lock: until it ends, nobody else removes the folder.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD, self.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[held],
                start_new_session=True,
            )
            # From here on it ignores signals.
            assert self._guard.stdout is not None
            self._guard.stdout.read(1)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        finally:
            os.close(held)

    def __enter__(self) -> GuardedFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        seconds = _REMOVAL_SECONDS if kind is None else _TROUBLE_SECONDS
        if kind and not issubclass(kind, Exception):
            seconds = _HURRY_SECONDS
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(seconds)

    @property
    def remover(self) -> int | None:
        """After the block: the number of the process that still removes the folder; None if it has ended."""
        return None if self._guard.poll() is not None else self._guard.pid


def remove_scratch() -> None:
    """Remove the temporary folders of this process now, before os._exit, which unwinds nothing."""
    for folder in list(_open_folders):
        shutil.rmtree(folder.name, ignore_errors=True)


def remove_scratch_of(process: int, environment: Mapping[str, str], work: Path) -> None:
    """Remove the temporary folders of a child process on this host that was killed.

    `environment` and `work` are those that the child had.
    """
    for parent in _candidates(environment, work):
        _remove_abandoned(Path(parent), _KIND, f"{process}")


def _unwind(number: int, frame: FrameType | None) -> NoReturn:
    # A second SIGTERM from the scheduler would interrupt the unwinding.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _prefix(parent: str | Path, kind: str) -> str:
    return f"{kind}{socket.gethostname()}-{_lock_space(parent)}-{os.getpid()}-"


def _pattern(parent: Path, kind: str, process: str = "*") -> str:
    # Containers of one host have names of their own.
    return f"{kind}*-{_lock_space(parent)}-{process}-*"


def _lock_space(parent: str | Path) -> str:
    """Names all processes that see one another's locks of folders in `parent`: of one kernel, and one mount.

    NFS keeps the locks of folders on each host, and FUSE those of each mount. So a folder of another space may be in
    use although it is not locked here.
    """
    return hashlib.sha256(f"{boot()} {Path(parent).stat().st_dev}".encode()).hexdigest()[:12]


def _hold(folder: Path) -> int | None:
    """Lock a new folder; returns the descriptor that holds the lock, or None if another process has removed it.

    One that looks for abandoned folders may find it before it is locked.
    """
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    # If folders cannot be locked, no other process can lock this one either, so none removes it.
    turn: Turn = "unknown"
    with contextlib.suppress(OSError):
        turn = lock(held, shared=True)
    if turn != "taken" and _is_open_at(held, folder):
        return held
    os.close(held)
    return None


def _remove_abandoned(parent: Path, kind: str, process: str = "*") -> list[Path]:
    """Remove the folders of `kind` in `parent` of this user whose locks are seen here, and are not held."""
    removed: list[Path] = []
    if not (boot() and is_folder(parent)):
        return removed
    for folder in parent.glob(_pattern(parent, kind, process)):
        # Another process may remove it at any moment, and it may not be a folder.
        with contextlib.suppress(OSError):
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(held).st_uid == os.geteuid() and lock(held) == "alone":
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder)
            finally:
                os.close(held)
    return removed


def with_temporary_folder(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """`environment` with a writable TMPDIR, for programs that need one, such as MPI's launchers.

    Unchanged if no folder is writable.
    """
    folder = writable_folder(environment, work)
    return {**environment, **(_temporary(environment, folder) if folder else {})}


def writable_folder(environment: Mapping[str, str], work: Path) -> str | None:
    """The folder in which `scratch_folder` would make one, or None."""
    return next((folder for folder in _candidates(environment, work) if _can_write(folder)), None)


def can_be_made(path: Path) -> bool:
    """Whether this user can write the folder `path`, or can make it."""
    return _can_write(str(nearest(path)))


def _temporary(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """TMPDIR = `folder`, or nothing if the default folder is writable."""
    return {} if _can_write(environment.get(VARIABLE) or _USUAL[0]) else {VARIABLE: folder}


def _fits_in_memory(most_bytes: int | None) -> bool:
    if most_bytes is None or most_bytes > _LITTLE_BYTES:
        return False
    try:
        return most_bytes <= _SHARE_OF_FREE * shutil.disk_usage(_MEMORY).free
    except OSError:
        return False


def _can_write(folder: str) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _candidates(environment: Mapping[str, str], work: Path) -> Iterator[str]:
    yield from dict.fromkeys((*filter(None, [environment.get(VARIABLE)]), *_USUAL, str(nearest(work))))
