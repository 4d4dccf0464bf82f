"""One process at a time runs a trial: a lock for each, as far as the file system has any."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

# `alone`: nobody else is at it, and nobody can come; `taken`: somebody is; `unknown`: locks tell nothing here.
Turn = Literal["alone", "taken", "unknown"]

# For whoever runs all of a campaign: its trials are numbered from 1.
ALL_TRIALS = 0
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def lock_path(campaign: Path, trial: int) -> Path:
    """File that whoever is at a trial of the campaign in the folder `campaign` holds locked."""
    return campaign / f".trial-{trial:02d}.lock"


@contextmanager
def turn_at(campaign: Path, trial: int) -> Iterator[Turn]:
    """Try to be the only one at a trial of the campaign in the folder `campaign`, for as long as this is entered.

    It ends with the process, however that ends. A parallel file system may be mounted without locks, and a folder that
    cannot be written to has none.
    """
    path = lock_path(campaign, trial)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield "unknown"
        return
    try:
        turn = _lock(descriptor, path)
        try:
            yield turn
        finally:
            if turn == "alone":
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> Turn:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had it before has removed the file since we opened it: ours is locked by nobody who comes later.
        return "alone" if os.fstat(descriptor).st_ino == path.stat().st_ino else "taken"
    except (BlockingIOError, FileNotFoundError):
        return "taken"
    except OSError as error:
        if error.errno in NO_LOCKS:
            return "unknown"
        raise
