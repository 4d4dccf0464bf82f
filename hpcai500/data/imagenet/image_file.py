"""Reads image files as the native loader does (csrc/core/file_reader.cpp): regular ones, of a bounded size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Folder::most_bytes: a path to a video or a disk ends here, and not in the memory limit.
MOST_BYTES = 2**30


def read_image(path: Path) -> bytes:
    """The whole file. Raises OSError, whose `strerror` says why, where it cannot be read, is no file, or too large."""
    # Opening a pipe without a writer would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > MOST_BYTES:
            reason = f"the file has {status.st_size} bytes; the limit for an image is {MOST_BYTES}"
            raise OSError(errno.EFBIG, reason)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            # No further than that, as a file that grows meanwhile has no end.
            return stream.read(status.st_size)
    finally:
        os.close(descriptor)
