"""How far a copy is: in MB, for this process's bar and for the processes that wait for it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path

from hpcai500.data.staging.layout import PROGRESS, state_folder
from hpcai500.progress import Progress

MEGABYTE = 10**6
_WRITE_SECONDS = 0.5


class Meter:
    """Takes bytes from any thread, tells whole megabytes.

    Args:
        bar: is told.
        total_bytes: that there are to do.
        root: staged folder, in which those who wait look.
    """

    def __init__(self, bar: Progress, total_bytes: int, root: Path) -> None:
        self._bar, self._total, self._path = bar, megabytes(total_bytes), state_folder(root) / PROGRESS
        self._lock = threading.Lock()
        self._bytes = self._told = 0
        self._written = 0.0

    def add(self, count_bytes: int) -> None:
        """Count bytes that are done."""
        with self._lock:
            self._bytes += count_bytes
            whole = self._bytes // MEGABYTE
            if whole > self._told:
                self._bar.advance(whole - self._told)
                self._told = whole
                self._write()

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        # Nobody needs to wait any more.
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        now = time.monotonic()
        if now - self._written < _WRITE_SECONDS:
            return
        self._written = now
        # Torn, it is no JSON and counts as nothing; a full disk shows at the data.
        with contextlib.suppress(OSError):
            self._path.write_text(json.dumps({"done": self._told, "total": self._total}), encoding="ascii")


def megabytes(count_bytes: int) -> int:
    """Whole megabytes, at least one."""
    return max(1, count_bytes // MEGABYTE)
