"""One collection at a time: a lock on the ensemble's folder, and what a collection leaves there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcai500.campaign.turns import NO_LOCKS
from hpcai500.ensemble.figures import PICTURES
from hpcai500.ensemble.reading import DONE, RESULT, VOTE
from hpcai500.errors import RecordError

_LOCK = ".collect.lock"


class CannotWriteError(RecordError):
    """The ensemble's folder cannot be written."""


@contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only one that collects the ensemble in `folder`; wait for another one, after having said so.

    It ends with the process, however that ends. Where the file system has no locks, nobody is waited for.

    Raises:
        CannotWriteError: no lock can be made there.
    """
    path = folder / _LOCK
    is_told = False

    def on_wait() -> None:
        nonlocal is_told
        if not is_told:
            say(f"{folder}: is being collected by another process: waiting for its end")
        is_told = True

    with written(folder):
        descriptor = _locked(path, on_wait)
    try:
        yield
    finally:
        # While it is still ours: who waits for it finds that it is gone, and makes another one.
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """What cannot be written within is told in one line, with what to do.

    Raises:
        CannotWriteError: as said.
    """
    try:
        yield
    except OSError as error:
        raise CannotWriteError(
            f"{error.filename or folder}: cannot be written: {error.strerror}; mend it, or copy the ensemble to where "
            "you may write, and collect there"
        ) from error


def forget(folder: Path) -> None:
    """Remove what an earlier collection has left: it does not hold while another one is going on.

    Raises:
        OSError: it cannot be removed.
    """
    for name in (DONE, RESULT, VOTE, *PICTURES):
        (folder / name).unlink(missing_ok=True)


def _locked(path: Path, on_wait: Callable[[], None]) -> int:
    """Descriptor of the file `path`, locked by us."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, on_wait)
            if _is_still(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, on_wait: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether who comes later would meet our lock: who had it before us has removed the file that it lay on."""
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
