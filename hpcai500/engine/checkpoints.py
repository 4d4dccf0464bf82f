"""Checkpoints of a run: written into reserved space, renamed when complete, checked by hash when read."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import nn

from hpcai500.files import allocate, sync_folder
from hpcai500.methodology.passes import target_checkpoint
from hpcai500.record import Event, cannot_write, iterate

_KEPT = 2
_SLACK_BYTES = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk, from which the run resumes at `step` (from 0) of `epoch` (from 1)."""

    epoch: int
    step: int
    file: str
    sha256: str
    bytes: int


class _HashingWriter:
    """A stream for torch.save that hashes what it writes to a file."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.written_bytes = 0
        self.error: BaseException | None = None

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self._hash.update(view)
        try:
            rest = view
            while rest:
                rest = rest[self._stream.write(rest) or 0 :]
        except BaseException as error:
            # torch replaces a writer's error by its own, without the cause.
            self.error = error
            raise
        self.written_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class CheckpointStore:
    """The folder `checkpoints/` of a record.

    The space of the next checkpoint is allocated before its epoch is trained, so that a full disk never costs a trained
    epoch.
    """

    suffix = ".pt"

    def __init__(self, record: Path, first_size_bytes: int, own_bytes: int = 0) -> None:
        """`own_bytes` are those that a checkpoint within an epoch may have beyond one at its end."""
        self._record = record
        self._folder = record / "checkpoints"
        self._reserved = self._folder / ".next"
        self._slack_bytes = own_bytes + _SLACK_BYTES
        self._next_size_bytes = first_size_bytes + self._slack_bytes
        self._good: list[str] = []
        self._at_target: str | None = None

    def reserve(self) -> None:
        """Allocate the space of the next checkpoint.

        Raises:
            RunError: the disk is full.
        """
        try:
            allocate(self._reserved, self._next_size_bytes)
        except OSError as error:
            raise cannot_write(self._record, error, self._next_size_bytes) from error

    def save(self, state: dict[str, Any], epoch: int, step: int, *, at_target: bool = False) -> Checkpoint:
        """Write `state` into the reserved space, then rename it; the run would resume at `step` of `epoch`.

        `at_target`: these weights reach the target quality. The first such checkpoint is never removed.

        Raises:
            RunError: the disk is full.
        """
        path = self._path(epoch, step)
        self.reserve()
        try:
            with self._reserved.open("r+b", buffering=0) as stream:
                writer = _HashingWriter(stream)
                _save(state, writer)
                stream.truncate(writer.written_bytes)
                os.fsync(stream.fileno())
            self._reserved.replace(path)
            sync_folder(self._folder)
        except OSError as error:
            self._reserved.unlink(missing_ok=True)
            raise cannot_write(self._record, error) from error
        saved = Checkpoint(epoch, step, path.name, writer.sha256, writer.written_bytes)
        self._note(saved, at_target=at_target)
        return saved

    def _path(self, epoch: int, step: int) -> Path:
        return self._folder / f"epoch-{epoch:04d}-step-{step:07d}{self.suffix}"

    def _note(self, saved: Checkpoint, *, at_target: bool) -> None:
        """Keep the newest checkpoint, and know the size of the next one."""
        self._next_size_bytes = saved.bytes + self._slack_bytes
        self._good = [name for name in self._good if name != saved.file] + [saved.file]
        if at_target and self._at_target is None:
            self._at_target = saved.file

    def prune(self) -> None:
        """Remove all checkpoints except the newest intact ones and the first at the target.

        Called once the newest is in the record's events.
        """
        for old in self._folder.glob(f"epoch-*{self.suffix}"):
            if old.name not in (*self._good[-_KEPT:], self._at_target):
                remove(old)

    def release(self) -> None:
        """Free the reserved space at the end of a run."""
        self._reserved.unlink(missing_ok=True)

    def load_latest(
        self, events: Sequence[Event], problem: Mapping[str, Any]
    ) -> tuple[Checkpoint, dict[str, Any]] | None:
        """The newest checkpoint in the events whose file is intact, with its state, or None.

        Damaged or missing files are skipped. `problem` is the table of the run's recipe, with its target quality.
        """
        known = [Checkpoint(**event["value"]) for event in iterate(events, "checkpoint")]
        for position in reversed(range(len(known))):
            checkpoint = known[position]
            path = self._folder / checkpoint.file
            if self._hash_of(path) == checkpoint.sha256:
                self._good = [one.file for one in known[: position + 1]]
                at_target = target_checkpoint(events, problem)
                # If the run resumes from before it was written, another one will be the first.
                if at_target and at_target["file"] in self._good:
                    self._at_target = at_target["file"]
                return checkpoint, self._read(path)
        return None

    def _hash_of(self, path: Path) -> str | None:
        """The hash that the event of the intact checkpoint `path` has; None if it is missing."""
        return file_sha256(path) if path.is_file() else None

    def _read(self, path: Path) -> dict[str, Any]:
        # weights_only: a checkpoint must not be able to run code.
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state


def state_bytes(model: nn.Module) -> int:
    """Upper estimate of a checkpoint's size: weights, buffers, and two numbers of optimizer state for each weight."""
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    return 3 * parameters + buffers


def _save(state: dict[str, Any], writer: _HashingWriter) -> None:
    try:
        torch.save(state, cast(IO[bytes], writer))
    except RuntimeError:
        if writer.error is not None:
            raise writer.error from None
        raise


def remove(path: Path) -> None:
    """Remove a checkpoint, a file or a folder; nothing happens if there is none."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
