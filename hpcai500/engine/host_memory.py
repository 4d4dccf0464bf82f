"""Memory of tensors on the host, when it is freed."""

from __future__ import annotations

import ctypes

# Names of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for its next tensors; returns whether the C library can (glibc).

    Otherwise glibc gives large blocks back to the kernel, which clears all their pages when the next step takes them
    again. On two cores that was a fifth of a step of the smoke recipe. Values do not change, and the process never
    holds more than it has held at once, apart from gaps between blocks.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(_TRIM_THRESHOLD, _MOST), mallopt(_MMAP_THRESHOLD, _MOST)])
