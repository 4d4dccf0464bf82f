"""Gives the space of a part of a file back, where the file system can."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path

# <linux/falloc.h>: FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_PUNCH = 0x01 | 0x02
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS)


def punch(path: Path, extents: Iterable[tuple[int, int]]) -> None:
    """Turn `extents` (start, bytes) of a file into zeros that take no space.

    File systems without holes keep what is there, which nobody counts on any more. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for start, size in extents:
            if _fallocate(descriptor, start, size) == 0:
                continue
            code = ctypes.get_errno()
            if code not in _CANNOT:
                raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)


def _fallocate(descriptor: int, start: int, size: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return int(call(descriptor, _PUNCH, start, size))
