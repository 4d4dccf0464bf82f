"""Asks the kernel to read files that a loader will read soon, where they are not in memory.

A decoding thread that reads its own file waits for the disk; then its core is idle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

from hpcai500.data.samplers import SampleIds

# Files of a batch that are looked up: if they are in memory, so probably is the whole set, and nothing is asked.
_PROBES = 4


class ReadAhead:
    """Reads ahead the files `paths` below `root`, in a thread of its own; no more than `depth` batches wait for it.

    Only on file systems that say what is in memory (ext4, XFS, Btrfs, ...). On those of a network, where opening a file
    twice asks the server twice, it does nothing.
    """

    def __init__(self, root: Path, paths: Sequence[str], depth: int) -> None:
        self._root = os.fspath(root)
        self._paths = paths
        self._batches: queue.Queue[SampleIds | None] = queue.Queue(depth)
        self._useful = hasattr(os, "RWF_NOWAIT")
        # Nobody waits for it: a file system that is gone may never answer.
        threading.Thread(target=self._run, name="hpcai500-read-ahead", daemon=True).start()

    def submit(self, ids: SampleIds) -> None:
        """Read the files of a batch ahead. Never waits, and raises nothing if they cannot be read."""
        if self._useful:
            # One that lags behind is of no use.
            with contextlib.suppress(queue.Full):
                self._batches.put_nowait(ids)

    def close(self) -> None:
        """Stop after the file that is being asked for."""
        self._useful = False
        with contextlib.suppress(queue.Full):
            self._batches.put_nowait(None)

    def _run(self) -> None:
        while self._useful and (ids := self._batches.get()) is not None:
            if not all(self._in_memory(sample) for sample in ids[:: max(len(ids) // _PROBES, 1)]):
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
