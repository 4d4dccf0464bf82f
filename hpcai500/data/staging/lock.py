"""One process at a time changes a staged folder; whoever comes meanwhile waits, and sees how far the other one is."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hpcai500.data.staging.layout import FOLDER, LOCK, PROGRESS, state_folder
from hpcai500.errors import EnvironmentLacksError, UsageError
from hpcai500.progress import Progress, Tracker

_POLL_SECONDS = 0.1
_MOST_VANISHED = 100
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def held(root: Path, progress: Tracker, say: Callable[[str], None]) -> Iterator[bool]:
    """Hold `root`, which is made where it is missing; yields whether somebody else had it before.

    The lock ends with the process, however that ends.

    Raises:
        EnvironmentLacksError: files cannot be locked there.
        UsageError: the folder belongs to another user.
        OSError: the folder cannot be made.
    """
    descriptor, waited = _acquire(root, progress, say)
    try:
        yield waited
    finally:
        os.close(descriptor)


def _acquire(root: Path, progress: Tracker, say: Callable[[str], None]) -> tuple[int, bool]:
    waited, vanished = False, 0
    while True:
        try:
            state_folder(root).mkdir(parents=True, exist_ok=True)
            _require_ours(root)
            path = state_folder(root) / LOCK
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            # Somebody has released the folder in between; or nobody can make one there, as below /proc.
            vanished += 1
            if vanished == _MOST_VANISHED:
                raise
            continue
        try:
            waited |= _lock(descriptor, root, progress, say)
            # Whoever had it may have removed the folder: then this is the lock of nothing.
            if _is_file_at(descriptor, path):
                return descriptor, waited
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _require_ours(root: Path) -> None:
    """Under a name that anyone can guess, somebody else may have laid out other samples for us to train on."""
    owner = root.stat().st_uid
    if owner not in (os.geteuid(), 0):
        raise UsageError(f"{root}: belongs to another user (uid {owner}): stage into a folder of your own")


def _lock(descriptor: int, root: Path, progress: Tracker, say: Callable[[str], None]) -> bool:
    """Lock, and return whether that took waiting."""
    if _try(descriptor, root):
        return False
    say(f"{root}: another staging is at work there: waiting for it")
    with ExitStack() as stack:
        bar: Progress | None = None
        shown = total = 0
        while not _try(descriptor, root):
            done, of = _how_far(root)
            if of and of != total:
                stack.close()
                bar, shown, total = stack.enter_context(progress(of, "waiting for another staging", "MB")), 0, of
            if bar is not None:
                bar.advance(max(0, done - shown))
                shown = max(done, shown)
            time.sleep(_POLL_SECONDS)
    return True


def _try(descriptor: int, root: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise EnvironmentLacksError(
            f"{root}: files cannot be locked there ({error.strerror}): stage into the node's own storage"
        ) from error
    return True


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _how_far(root: Path) -> tuple[int, int]:
    try:
        document = json.loads((root / FOLDER / PROGRESS).read_bytes())
        return int(document["done"]), int(document["total"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
