"""Asks the kernel to read files that a loader will read soon, where they are not in memory.

A decoding thread that reads its own file waits for the disk; then its core is idle.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcai500.data.samplers import SampleIds

# Files of a batch that are looked up: if they are in memory, so probably is the whole set, and nothing is asked.
_PROBES = 4


class ReadAhead:
    """Reads ahead the files `paths` below `root`, in a thread of its own; the last `depth` batches of it at most.

    Only on file systems that say what is in memory (ext4, XFS, Btrfs, ...). On those of a network, where opening a file
    twice asks the server twice, it does nothing.
    """

    def __init__(self, root: Path, paths: Sequence[str], depth: int) -> None:
        self._root = os.fspath(root)
        self._paths = paths
        self._batches: deque[SampleIds] = deque(maxlen=depth)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hpcai500-read-ahead")
        self._useful = hasattr(os, "RWF_NOWAIT")

    def submit(self, ids: SampleIds) -> None:
        """Read the files of a batch ahead. Never waits, and raises nothing if they cannot be read."""
        if self._useful:
            self._batches.append(ids)
            self._thread.submit(self._next)

    def close(self) -> None:
        """Stop after the file that is being asked for."""
        self._useful = False
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        # A batch that was dropped because others followed leaves its call without one.
        ids = self._batches.popleft() if self._batches else ()
        if all(self._in_memory(sample) for sample in ids[:: max(len(ids) // _PROBES, 1)]):
            return
        for sample in ids:
            if self._useful:
                self._ask(sample)

    def _in_memory(self, sample: int) -> bool:
        """Whether the file's beginning is; True where nothing can be gained by asking for it."""
        try:
            descriptor = self._open(sample)
            try:
                os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
            finally:
                os.close(descriptor)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                self._useful = False
        return True

    def _ask(self, sample: int) -> None:
        # The thread that decodes the file reports what is wrong with it.
        with contextlib.suppress(OSError):
            descriptor = self._open(sample)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def _open(self, sample: int) -> int:
        return os.open(f"{self._root}/{self._paths[sample]}", os.O_RDONLY | os.O_NONBLOCK)
