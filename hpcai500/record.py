"""The run record: a folder of facts, chained by hashes, that is scored and verified without the machine that made it.

RECORD/
    recipe.toml      resolved: every field, nothing implicit
    system.json      captured by the job itself
    events.jsonl     one JSON object a line; `prev` is the SHA-256 of the line before
    result.json      derived from the above
    checkpoints/     atomic; the last one resumes the run
    DONE | ERROR     written last
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from hpcai500.errors import RecordError, RunError
from hpcai500.files import write_atomically
from hpcai500.layers import Recipe
from hpcai500.recipe import parse_resolved, recipe_hash, to_toml

FIRST_PREVIOUS = "0" * 64
# Given back when the disk is full, so that the record can still be closed with what happened.
_BALLAST_BYTES = 256 * 1024

Event = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A record as it lies on disk, its chain checked."""

    path: Path
    recipe: Recipe
    system: Mapping[str, Any]
    events: tuple[Event, ...]
    torn_bytes: int
    status: Literal["done", "error", "unfinished"]


def line_hash(line: bytes) -> str:
    """SHA-256 (hex) of one event line without its line end: what the next line carries as `prev`."""
    return hashlib.sha256(line).hexdigest()


def parse_events(content: bytes, name: str) -> tuple[list[Event], int]:
    """Events of a log, their chain checked, and the number of bytes of a last line that was cut off by a crash.

    Raises:
        RecordError: a line is not an event, or does not carry the hash of the line before it.
    """
    events: list[Event] = []
    previous = FIRST_PREVIOUS
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            linked = event["prev"] == previous and event["seq"] == number - 1
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{name}:{number}: not an event: {error}") from error
        if not linked:
            raise RecordError(
                f"{name}:{number}: the chain is broken here: a line before it was changed, added or removed"
            )
        events.append(event)
        previous = line_hash(line)
    return events, len(rest)


def read_record(path: Path) -> Record:
    """Read the record in folder `path`.

    Raises:
        RecordError: it is no record, or its chain of events is broken.
        RecipeError: its recipe cannot be read.
    """
    for needed in ("recipe.toml", "events.jsonl"):
        if not (path / needed).is_file():
            raise RecordError(f"{path}: not a record: {needed} is missing (a record is the folder that a run wrote)")
    recipe_path, events_path = path / "recipe.toml", path / "events.jsonl"
    recipe = parse_resolved(recipe_path.read_text(encoding="utf-8"), str(recipe_path))
    events, torn_bytes = parse_events(events_path.read_bytes(), str(events_path))
    claimed = next((event["value"]["recipe_hash"] for event in events if event["key"] == "init_start"), None)
    if claimed is not None and claimed != recipe_hash(recipe):
        raise RecordError(
            f"{recipe_path}: not the recipe that the run was started with: its hash differs from the events'"
        )
    system_path = path / "system.json"
    system = json.loads(system_path.read_bytes()) if system_path.is_file() else {}
    ended: Literal["done", "error", "unfinished"]
    ended = "done" if (path / "DONE").exists() else "error" if (path / "ERROR").exists() else "unfinished"
    return Record(path, recipe, system, tuple(events), torn_bytes, ended)


def iterate(events: tuple[Event, ...] | list[Event], key: str) -> Iterator[Event]:
    """The events named `key`, in order."""
    return (event for event in events if event["key"] == key)


class RecordWriter:
    """Writes one record. Use `create` for a new run, `reopen` for one that goes on."""

    def __init__(self, path: Path, stream: FileIO, sequence: int, previous: str) -> None:
        self.path = path
        self._stream = stream
        self._sequence = sequence
        self._previous = previous
        self._set_ballast()

    @classmethod
    def create(cls, path: Path, recipe: Recipe, system: Mapping[str, Any]) -> RecordWriter:
        """Start a new record in the folder `path`, which must be empty or absent.

        Raises:
            RecordError: there is something in the folder, or it cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise RecordError(f"{path}: not empty; give another --out, or go on with it: --resume --out {path}")
            (path / "checkpoints").mkdir()
            write_atomically(path / "recipe.toml", to_toml(recipe).encode())
            write_atomically(path / "system.json", _pretty(system))
            stream = (path / "events.jsonl").open("ab", buffering=0)
            return cls(path, stream, 0, FIRST_PREVIOUS)
        except OSError as error:
            raise RecordError(
                f"{path}: the record cannot be written here: {error.strerror}; give another --out"
            ) from error

    @classmethod
    def reopen(cls, record: Record) -> RecordWriter:
        """Go on with `record`; a line that a crash left unfinished is cut off."""
        if record.status == "done":
            raise RecordError(f"{record.path}: this run is complete; see `hpcai500 score {record.path}`")
        events_path = record.path / "events.jsonl"
        content = events_path.read_bytes()
        whole = content[: len(content) - record.torn_bytes]
        if record.torn_bytes:
            os.truncate(events_path, len(whole))
        last = whole.rstrip(b"\n").rsplit(b"\n", 1)[-1]
        for stale in ("ERROR", "result.json"):
            (record.path / stale).unlink(missing_ok=True)
        stream = events_path.open("ab", buffering=0)
        return cls(record.path, stream, len(record.events), line_hash(last) if last else FIRST_PREVIOUS)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def event(self, key: str, value: Any = None) -> Event:
        """Append one event, on disk when this returns.

        Raises:
            RunError: the disk is full; the log then ends with its last whole line.
        """
        event = {
            "prev": self._previous,
            "seq": self._sequence,
            "time_ms": time.time_ns() // 1_000_000,
            "clock_s": round(time.monotonic(), 6),
            "key": key,
            "value": value,
        }
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
        self._append(line + b"\n")
        self._previous, self._sequence = line_hash(line), self._sequence + 1
        return event

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`."""
        write_atomically(self.path / "result.json", _pretty(result))

    def finish(self) -> None:
        """Mark the run complete; nothing is written after this."""
        self.close()
        write_atomically(self.path / "DONE", f"{self._previous}\n".encode())

    def fail(self, reason: str) -> None:
        """Mark the run ended without a result. Never raises: the reason itself is on its way to the user."""
        self.close()
        try:
            write_atomically(self.path / "ERROR", f"{reason}\n".encode())
        except OSError as error:
            print(f"hpcai500: {self.path}/ERROR could not be written: {error.strerror}", file=sys.stderr)  # noqa: T201

    def close(self) -> None:
        """Close the log and give the ballast back."""
        if not self._stream.closed:
            self._stream.close()
        (self.path / ".ballast").unlink(missing_ok=True)

    def _append(self, content: bytes) -> None:
        before = os.fstat(self._stream.fileno()).st_size
        for last_try in (False, True):
            try:
                _write_all(self._stream, content)
                os.fsync(self._stream.fileno())
                return
            except OSError as error:
                os.ftruncate(self._stream.fileno(), before)
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or last_try:
                    raise disk_full(self.path, error) from error
                (self.path / ".ballast").unlink(missing_ok=True)

    def _set_ballast(self) -> None:
        ballast = self.path / ".ballast"
        try:
            with ballast.open("wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, _BALLAST_BYTES)
        except OSError as error:
            ballast.unlink(missing_ok=True)
            raise disk_full(self.path, error) from error


def _write_all(stream: FileIO, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[stream.write(view) :]


def disk_full(path: Path, error: OSError) -> RunError:
    """The error for a record that cannot be written any more."""
    return RunError(
        f"{path}: {error.strerror}: the record cannot grow; every finished epoch is saved: "
        f"free some space, then go on with --resume --out {path}"
    )


def _pretty(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
