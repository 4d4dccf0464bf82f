"""One repacking at a time writes into a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcai500.errors import RunError

FILE = ".hpcai500-repack.lock"
# Of file systems that have no such locks, as parallel ones mounted without them.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`; it ends with the process. The file stays: removed, it could be locked twice.

    Raises:
        RunError: another process holds it.
        OSError: the folder cannot be written.
    """
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"{folder}: another repacking writes there: wait for it, and run this command again"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)
