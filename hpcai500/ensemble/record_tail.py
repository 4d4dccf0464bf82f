"""A log of chained events that somebody else is writing: what joined it since it was read last, and no byte twice.

Of a long log that is met for the first time only the end is read: how a run stands is told there. Nothing is locked and
nothing is written: a look must not stand in the way of those who run.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcai500.chain import FIRST_PREVIOUS, Event, last_hash, line_hash, parse_events
from hpcai500.errors import RecordError

# Of a log that is met for the first time: more and more of its end, until it tells where the run is.
_WINDOWS_BYTES = (2**16, 2**19, 2**22)
# At one look at a log that is known; a longer line is not read: it tells what nodes are, not how a run stands.
_MOST_BYTES = 2**20


@dataclass(slots=True)
class Meter:
    """What reading has cost so far.

    Attributes:
        files: that were opened, or were to be and are not there.
        read_bytes: that were read.
    """

    files: int = 0
    read_bytes: int = 0


class LogTail:
    """The end of one log.

    Attributes:
        path: of the log.
        identity: hash of its first line; None where that was not read.
        head: hash of the last whole line that was read; None before any was.
        inode: of its file, once it was opened.
        is_behind: whether there is more than was read.
    """

    __slots__ = ("_at_line", "_chained", "_lines", "_offset", "head", "identity", "inode", "is_behind", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.identity: str | None = None
        self.head: str | None = None
        self.inode: int | None = None
        self.is_behind = False
        self._begin_at(0)

    def read(self, meter: Meter, enough: Callable[[Sequence[Event]], bool] = lambda events: True) -> list[Event]:
        """The events that joined since the last call; a line that is not whole yet is left for the next one.

        Args:
            meter: is told what it costs.
            enough: whether the end of a log that is met for the first time tells what is wanted.

        Raises:
            FileNotFoundError: the log is not there.
            OSError: it cannot be read.
            RecordError: it is no log of events, was changed, or lost lines since it was read.
        """
        meter.files += 1
        # Without O_NONBLOCK, whoever puts a pipe there keeps us for ever.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            self._check(status)
            if self._offset == 0 and status.st_size > _WINDOWS_BYTES[0]:
                return self._first(descriptor, status.st_size, meter, enough)
            return self._next(descriptor, status.st_size, _MOST_BYTES, meter)
        finally:
            os.close(descriptor)

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(f"{self.path}: not a file")
        if self.inode not in (None, status.st_ino):
            raise RecordError(f"{self.path}: another file than before: it was replaced")
        if status.st_size < self._offset:
            raise RecordError(f"{self.path}: shorter than before: lines were removed")
        self.inode = status.st_ino

    def _first(
        self, descriptor: int, size: int, meter: Meter, enough: Callable[[Sequence[Event]], bool]
    ) -> list[Event]:
        events: list[Event] = []
        for window in _WINDOWS_BYTES:
            self._begin_at(max(0, size - window))
            events = self._next(descriptor, size, window, meter)
            if size <= window or enough(events):
                break
        return events

    def _begin_at(self, offset: int) -> None:
        """Forget what was read, and go on at `offset`: in the middle of a line, unless it is the beginning."""
        self.head = None
        # Of the first byte that was not read as an event; and how many lines come before it, as far as that is known.
        self._offset, self._lines = offset, 0
        # Whether a line begins there; and whether the line before it is known.
        self._at_line = self._chained = offset == 0

    def _next(self, descriptor: int, size: int, most: int, meter: Meter) -> list[Event]:
        content = os.pread(descriptor, min(most, size - self._offset), self._offset) if size > self._offset else b""
        meter.read_bytes += len(content)
        self.is_behind = size > self._offset + len(content)
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            if self.is_behind or not self._at_line:
                self._skip(len(content))
            return []
        if not self._at_line:
            cut = whole.index(b"\n") + 1
            whole, self._offset, self._at_line = whole[cut:], self._offset + cut, True
        return self._parsed(whole) if whole else []

    def _skip(self, length: int) -> None:
        """Go past a part of a line; what comes after it is in the chain of what nobody has seen."""
        self._offset += length
        self._at_line = self._chained = False

    def _parsed(self, whole: bytes) -> list[Event]:
        previous, before = (self.head or FIRST_PREVIOUS, self._lines) if self._chained else _place(whole, self.path)
        events, _ = parse_events(whole, self.path, previous, before)
        if not before:
            self.identity = line_hash(whole[: whole.index(b"\n")])
        self.head, self._chained = last_hash(whole), True
        self._offset, self._lines = self._offset + len(whole), before + len(events)
        return events


def _place(whole: bytes, path: str) -> tuple[str, int]:
    """What the first line of `whole`, in the middle of a log, says of the lines before it."""
    try:
        event = json.loads(whole[: whole.index(b"\n")])
        previous, sequence = event["prev"], event["seq"]
        if isinstance(previous, str) and isinstance(sequence, int):
            return previous, sequence
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise RecordError(f"{path}: a line in its end is not an event")
