"""Checkpoints of a run: written into space that was reserved before, renamed when whole, checked when read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

import torch

from hpcai500.files import sync_folder
from hpcai500.record import Event, disk_full

_KEPT = 2
_SLACK_BYTES = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk: the run goes on at `step` (from 0) of `epoch` (from 1)."""

    epoch: int
    step: int
    file: str
    sha256: str
    bytes: int


class _HashingWriter:
    """Passes what torch writes on to a file, and hashes it on the way."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.written_bytes = 0

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self._hash.update(view)
        rest = view
        while rest:
            rest = rest[self._stream.write(rest) :]
        self.written_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is held back here."""

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class CheckpointStore:
    """The folder `checkpoints/` of a record.

    The space of the next checkpoint is allocated before its epoch is trained: a disk that fills up in the meantime
    costs the run, never the epoch.
    """

    def __init__(self, record: Path, first_size_bytes: int) -> None:
        self._record = record
        self._folder = record / "checkpoints"
        self._reserved = self._folder / ".next"
        self._next_size_bytes = first_size_bytes + _SLACK_BYTES

    def reserve(self) -> None:
        """Allocate the space of the next checkpoint.

        Raises:
            RunError: the disk is full.
        """
        try:
            with self._reserved.open("ab") as stream:
                os.posix_fallocate(stream.fileno(), 0, self._next_size_bytes)
        except OSError as error:
            self._reserved.unlink(missing_ok=True)
            raise disk_full(self._record, error) from error

    def save(self, state: dict[str, Any], epoch: int, step: int) -> Checkpoint:
        """Write `state` into the reserved space and give it its name.

        Raises:
            RunError: the disk is full.
        """
        path = self._folder / f"epoch-{epoch:04d}-step-{step:07d}.pt"
        self.reserve()
        try:
            with self._reserved.open("r+b", buffering=0) as stream:
                writer = _HashingWriter(stream)
                torch.save(state, cast(IO[bytes], writer))
                stream.truncate(writer.written_bytes)
                os.fsync(stream.fileno())
            self._reserved.replace(path)
        except OSError as error:
            self._reserved.unlink(missing_ok=True)
            raise disk_full(self._record, error) from error
        sync_folder(self._folder)
        self._next_size_bytes = writer.written_bytes + _SLACK_BYTES
        return Checkpoint(epoch, step, path.name, writer.sha256, writer.written_bytes)

    def prune(self) -> None:
        """Remove all but the newest checkpoints. Called when the newest is in the record's events."""
        for old in sorted(self._folder.glob("epoch-*.pt"))[:-_KEPT]:
            old.unlink()

    def release(self) -> None:
        """Give reserved space back at the end of a run."""
        self._reserved.unlink(missing_ok=True)

    def load_latest(self, events: Sequence[Event]) -> tuple[Checkpoint, dict[str, Any]] | None:
        """The newest checkpoint that the events know and whose bytes are still theirs, or None.

        A damaged or missing file is passed over for the one before it.
        """
        for event in reversed([event for event in events if event["key"] == "checkpoint"]):
            checkpoint = Checkpoint(**event["value"])
            path = self._folder / checkpoint.file
            if path.is_file() and _sha256(path) == checkpoint.sha256:
                # weights_only: a checkpoint is data, it must not be able to run code.
                return checkpoint, torch.load(path, map_location="cpu", weights_only=True)
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
