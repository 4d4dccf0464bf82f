"""Writes one record: events on disk when they are said, and a folder that says how the run ended, whatever happens."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hpcai500.chain import FIRST_PREVIOUS, Event, event_line, last_hash, line_hash, new_event
from hpcai500.errors import RecordError, RunError
from hpcai500.files import allocate, write_atomically, write_atomically_by
from hpcai500.layers import Recipe
from hpcai500.recipe import to_toml
from hpcai500.record import Record, read_record
from hpcai500.streams import say

# Given back when the disk is full, so that the record can still be closed with what happened.
_BALLAST_BYTES = 256 * 1024
_END = "run_error"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What a run leaves that was killed before its first event; nothing of it is worth keeping.
_STILLBORN = {"recipe.toml", "system.json", "events.jsonl", "checkpoints", ".ballast"}


class RecordWriter:
    """Writes one record. Use `create` for a new run, `reopen` for one that goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = FileIO(path / "events.jsonl", "ab")
        self._sequence, self._previous = 0, FIRST_PREVIOUS
        # A rank that is lost may be noticed by another thread, which then closes the record.
        self._turn = threading.RLock()
        self._failure: str | None = None
        self._is_complete = False
        self._lock()
        self._set_ballast()

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> RecordWriter:
        """Start a new record in the folder `path`, which must be empty or absent.

        Raises:
            RecordError: there is something in the folder, or it cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            require_unused(path)
            (path / "checkpoints").mkdir(exist_ok=True)
            writer = cls(path)
            with writer._ours():
                # Again, now that nobody else can write: another process may have come first.
                require_unused(path)
                write_atomically(path / "recipe.toml", to_toml(recipe).encode())
            return writer
        except OSError as error:
            raise RecordError(
                f"{path}: the record cannot be written here: {error.strerror}; give another --out"
            ) from error

    @classmethod
    def reopen(cls, record: Record) -> RecordWriter:
        """Go on with `record`; a line that a crash left unfinished is cut off.

        Raises:
            RecordError: the run is complete, or another process is writing it.
        """
        _require_unfinished(record)
        writer = cls(record.path)
        with writer._ours():
            # Again, now that nobody else can write: another process may have gone on with it in between.
            found = read_record(record.path)
            _require_unfinished(found)
            if found != record:
                raise RecordError(
                    f"{record.path}: another process has written this record just now: start again with --resume"
                )
            log = record.path / "events.jsonl"
            whole = log.read_bytes()[: log.stat().st_size - record.torn_bytes]
            os.truncate(log, len(whole))
            writer._sequence, writer._previous = len(record.events), last_hash(whole)
            for stale in ("ERROR", "result.json"):
                (record.path / stale).unlink(missing_ok=True)
        return writer

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def event(self, key: str, value: Any = None) -> Event:
        """Append one event, on disk when this returns.

        Raises:
            RunError: the disk is full; the log then ends with its last whole line. Or the run was marked as failed.
        """
        with self._turn:
            if self._failure is not None and key != _END:
                raise RunError(self._failure)
            event = new_event(self._previous, self._sequence, key, value)
            line = event_line(event)
            self._append(line + b"\n")
            self._previous, self._sequence = line_hash(line), self._sequence + 1
            return event

    def write_system(self, system: Mapping[str, Any]) -> None:
        """Write `system.json`, and the same as an event, so that the chain holds it."""
        self._write("system.json", _pretty(system))
        self.event("system", system)

    def write_picture(self, name: str, content: bytes) -> None:
        """Write `pictures/NAME`, and its hash as an event, so that the chain vouches for it.

        Raises:
            RunError: the disk is full.
        """
        self._write_named("picture", f"pictures/{name}", content)

    def write_trace(self, name: str, content: bytes) -> None:
        """Write `trace/NAME`, and its hash as an event.

        Raises:
            RunError: the disk is full.
        """
        self._write_named("trace", f"trace/{name}", content)

    def write_predictions(self, kind: str, samples: int, write: Callable[[IO[bytes]], None]) -> None:
        """Write `predictions/KIND.npz` by `write`, and its hash as an event: what a member says of `samples` samples.

        Raises:
            RunError: the disk is full.
        """
        file = f"predictions/{kind}.npz"
        path = self.path / file
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically_by(path, write)
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.event("predictions", {"kind": kind, "file": file, "sha256": sha256, "samples": samples})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write `result.json` and mark the run complete; nothing is written after this.

        Raises:
            RunError: the disk is full; `--resume` then only writes what is missing. Or the run was marked as failed.
        """
        with self._turn:
            if self._failure is not None:
                raise RunError(self._failure)
            self.close()
            self._write("result.json", _pretty(result))
            self._write("DONE", f"{self._previous}\n".encode())
            self._is_complete = True

    def fail(self, reason: str) -> None:
        """Mark the run ended without a result; the first reason stays, and a complete run stays complete.

        Never raises: the reason itself is on its way to the user.
        """
        with self._turn:
            if self._failure is not None or self._is_complete:
                return
            self._failure = reason
            try:
                if not self._stream.closed:
                    self.event(_END, {"reason": reason})
                self.close()
                write_atomically(self.path / "ERROR", f"{reason}\n".encode())
            except (OSError, RunError) as error:
                say(f"{self.path}/ERROR could not be written: {error}")
            finally:
                self.close()

    def close(self) -> None:
        """Close the log and give the ballast back."""
        self._stream.close()
        (self.path / ".ballast").unlink(missing_ok=True)

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Close, and so give the lock back, where what is done inside fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _write_named(self, key: str, file: str, content: bytes) -> None:
        self._write(file, content)
        self.event(key, {"file": file, "sha256": hashlib.sha256(content).hexdigest()})

    def _write(self, name: str, content: bytes) -> None:
        try:
            (self.path / name).parent.mkdir(exist_ok=True)
            write_atomically(self.path / name, content)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _append(self, content: bytes) -> None:
        before = os.fstat(self._stream.fileno()).st_size
        for last_try in (False, True):
            try:
                _write_all(self._stream, content)
                os.fsync(self._stream.fileno())
                return
            except OSError as error:
                os.ftruncate(self._stream.fileno(), before)
                if error.errno not in _FULL or last_try:
                    raise cannot_write(self.path, error) from error
                (self.path / ".ballast").unlink(missing_ok=True)

    def _lock(self) -> None:
        """Two processes in one record would break its chain."""
        try:
            fcntl.flock(self._stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._stream.close()
            raise RecordError(
                f"{self.path}: another process is writing this record: wait for it or stop it, then go on with --resume"
            ) from error
        except OSError as error:
            # A parallel file system may be mounted without locks; then nothing can be said.
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise

    def _set_ballast(self) -> None:
        try:
            allocate(self.path / ".ballast", _BALLAST_BYTES)
        except OSError as error:
            self.close()
            raise cannot_write(self.path, error) from error


def _require_unfinished(record: Record) -> None:
    if record.status == "done":
        raise RecordError(f"{record.path}: this run is complete; see `hpcai500 score {record.path}`")


def require_unused(path: Path) -> None:
    """Refuse the folder `path` for a new run if it holds anything, a run that was killed before its first event aside.

    Raises:
        RecordError: it does.
        OSError: it cannot be listed.
    """
    if not path.exists():
        return
    log = path / "events.jsonl"
    stillborn = {entry.name for entry in path.iterdir()} <= _STILLBORN and not (log.exists() and log.stat().st_size)
    if not stillborn:
        raise RecordError(f"{path}: not empty; give another --out, or go on with it: --resume --out {path}")


def is_being_written(path: Path) -> bool:
    """Whether a process on this machine is writing the record in folder `path` now."""
    with (path / "events.jsonl").open("rb") as stream:
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def cannot_write(path: Path, error: OSError, needed_bytes: int | None = None) -> RunError:
    """The error for a record that cannot be written any more; `needed_bytes` is the size of what did not fit."""
    if error.errno in _FULL and not (path / "recipe.toml").is_file():
        return RunError(f"{path}: {error.strerror}, and nothing is begun: free some space, then start it again")
    if error.errno in _FULL:
        needed = f" (the next checkpoint needs {needed_bytes / 1e6:.0f} MB)" if needed_bytes else ""
        return RunError(
            f"{path}: {error.strerror}{needed}: every epoch that was finished and saved is kept: "
            f"free some space, then go on with --resume --out {path}"
        )
    reason = error.strerror or error
    return RunError(f"{path}: the record cannot be written: {reason}; mend it, then go on with --resume --out {path}")


def _write_all(stream: FileIO, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[stream.write(view) or 0 :]


def _pretty(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
