"""The run record: a folder, chained by hashes, that can be scored and verified without the machine that made it.

    RECORD/
        recipe.toml      resolved: every field, nothing implicit
        system.json      captured by the job itself
        events.jsonl     one JSON object a line; `prev` is the SHA-256 of the line before
        result.json      derived from the above
        progress.json    progress of the run, for `watch` and `status` (`run_progress`)
        checkpoints/     atomic; the last one resumes the run
        pictures/        pictures of the last evaluation, for people
        predictions/     of a member of an ensemble: its prediction for each sample, for the vote
        power/           HOST.csv: power samples of each node; HOST+SOURCE.csv: of a source that is compared with it
        trace/           trace of the communication, for a trace viewer
        DONE | ERROR     written last

A record is read as plain tables, so that a later version with more recipe fields can still score it. The writer syncs
each event to disk before it continues, locks the record against other processes, and can close it with the reason even
if the disk is full.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from hpcai500.errors import RecordError, RunError
from hpcai500.files import allocate, lock, why_not, write_atomically, write_atomically_by
from hpcai500.layers import Recipe
from hpcai500.recipe import parse_resolved, tables_hash, to_toml
from hpcai500.run_progress import SHORTEST_SECONDS, ProgressFile
from hpcai500.streams import lost_output, say
from hpcai500.toml_source import parse_toml

# ----------------------------------------------------------------------------------------------------
# The log: lines of JSON, each with the hash of the line before.
#
# The hash of the last line protects all lines. Records and campaigns are such logs.


FIRST_PREVIOUS = "0" * 64
_ENVELOPE = {"prev": (str,), "seq": (int,), "time_ms": (int,), "clock_s": (int, float), "key": (str,)}
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

Event = dict[str, Any]


def line_hash(line: bytes) -> str:
    """SHA-256 (hex) of an event line without its line end, which the next line carries as `prev`."""
    return hashlib.sha256(line).hexdigest()


def last_hash(content: bytes) -> str:
    """The hash of the last line of a log, complete or torn; `FIRST_PREVIOUS` if the log is empty."""
    last = content.rstrip(b"\n").rsplit(b"\n", 1)[-1]
    return line_hash(last) if last else FIRST_PREVIOUS


def new_event(previous: str, sequence: int, key: str, value: Any = None) -> Event:
    """An event with the current time, to follow the line with the hash `previous`."""
    return {
        "prev": previous,
        "seq": sequence,
        "time_ms": time.time_ns() // 1_000_000,
        # CLOCK_MONOTONIC stops while the machine is suspended, which would make a run look faster.
        "clock_s": round(time.clock_gettime(time.CLOCK_BOOTTIME), 6),
        "key": key,
        "value": value,
    }


def event_line(event: Event) -> bytes:
    """The line of an event, without its line end."""
    return _ENCODER.encode(event).encode()


def iterate(events: Iterable[Event], key: str) -> Iterator[Event]:
    """The events named `key`, in order."""
    return (event for event in events if event["key"] == key)


def parse_events(content: bytes, name: str, *, is_end: bool = False) -> tuple[list[Event], int]:
    """Events of a log, after checking their chain, and the number of bytes of a last line that a crash cut off.

    `content` is the log, or if `is_end` only its last lines; the hash in the first of these is not checked. `name` is
    for messages.

    Raises:
        RecordError: a line is not an event, or lacks the hash of the line before it.
    """
    events: list[Event] = []
    previous, before = FIRST_PREVIOUS, 0
    *lines, rest = content.split(b"\n")
    for place, line in enumerate(lines, 1):
        if line.endswith(b"\r"):
            raise RecordError(
                f"{name}:{before + place}: ends with CR and LF, as after a copy in text mode on Windows, which "
                "changes every hash: copy the folder again byte by byte (tar, rsync, scp; git with "
                "core.autocrlf=false)"
            )
        event = _parse_event(line, f"{name}:{before + place}")
        if is_end and not events:
            previous, before = event["prev"], event["seq"]
        number = before + place
        if event["prev"] != previous or event["seq"] != number - 1:
            raise RecordError(
                f"{name}:{number}: the chain is broken here: a line before it was changed, added or removed"
            )
        events.append(event)
        previous = line_hash(line)
    return events, len(rest)


def parse_journal(content: bytes, name: str, first: str) -> tuple[bytes, list[Event]]:
    """The complete lines of a journal and their events, of which the first has the key `first`.

    A last line that a crash cut off can be ignored: nothing was done yet because of it, as `append_line` returns only
    once the line is on disk.

    Raises:
        RecordError: as `parse_events`, or the journal begins with another event.
    """
    whole = content[: content.rfind(b"\n") + 1]
    events, _ = parse_events(whole, name)
    if not events or events[0]["key"] != first:
        raise RecordError(f"{name}:1: expected the event {first} first")
    return whole, events


def _parse_event(line: bytes, place: str) -> Event:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place}: not an event: {error}") from error
    if not isinstance(event, dict):
        raise RecordError(f"{place}: not an event: expected a JSON object, got {type(event).__name__}")
    for key, kinds in _ENVELOPE.items():
        if type(event.get(key)) not in kinds:
            raise RecordError(f"{place}: not an event: {key} is missing or of a wrong type")
    return event


# ----------------------------------------------------------------------------------------------------
# Reading a record.


Status = Literal["done", "error", "unfinished"]


@dataclass(frozen=True)
class Record:
    """A record on disk, after checking its chain and its files against each other.

    Attributes:
        tables: the recipe, as plain tables.
        system: content of `system.json`.
        torn_bytes: length of a last line that a crash cut off; it is not among the events.
        status: `unfinished` if the run is still going or was killed.
    """

    path: Path
    tables: Mapping[str, Any]
    system: Mapping[str, Any]
    events: tuple[Event, ...]
    torn_bytes: int
    status: Status

    def recipe(self) -> Recipe:
        """The validated recipe.

        Raises:
            RecipeError: this version of hpcai500 cannot run it.
        """
        path = self.path / "recipe.toml"
        return parse_resolved(_text(path), str(path))


def read_record(path: Path) -> Record:
    """Read the record in folder `path`.

    Raises:
        RecordError: it is not a record, its chain of events is broken, or its files do not match its events.
    """
    if why := why_not("folder", path):
        raise RecordError(f"{path}: {why}; give a record, the folder that a run wrote")
    for needed in ("recipe.toml", "events.jsonl"):
        if not (path / needed).is_file():
            raise RecordError(f"{path}: not a record: {_what_it_is(path, needed)}")
    events_path = path / "events.jsonl"
    content = _bytes(events_path)
    events, torn_bytes = parse_events(content, str(events_path))
    tables = _tables(path / "recipe.toml")
    started = next(iterate(events, "init_start"), None)
    if events and (started is None or events[0] is not started):
        raise RecordError(f"{events_path}:1: expected the event init_start first, got {events[0]['key']}")
    if started and _value(started, "recipe_hash", events_path) != tables_hash(tables):
        raise RecordError(f"{path / 'recipe.toml'}: not the recipe that the run started with: its hash differs")
    status = _status(path)
    system = json_object(path / "system.json") if (path / "system.json").is_file() else {}
    named = [event.get("value") for event in iterate(events, "system")]
    if named and named[-1] != system:
        raise RecordError(f"{path / 'system.json'}: differs from the system in the events")
    if status == "done":
        _check_finished(path, content)
    _check_power_files(path, events)
    return Record(path, tables, system, tuple(events), torn_bytes, status)


# Folders that contain records, by their journal, with the command that shows them.
_OTHERS = {
    "campaign.jsonl": "a campaign, which contains records: hpcai500 campaign status {path}",
    "ensemble.jsonl": "an ensemble, whose members' records are in members/: hpcai500 ensemble status {path}",
}


def _what_it_is(path: Path, missing: str) -> str:
    known = (text.format(path=path) for journal, text in _OTHERS.items() if (path / journal).is_file())
    return next(known, f"{missing} is missing (a record is the folder that a run wrote)")


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`.

    Raises:
        RecordError: it contains something else.
    """
    return parse_object(_bytes(path), path)


def parse_object(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `content`, which was read from the file `path`; raises as `json_object`."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise RecordError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RecordError(f"{path}: expected a JSON object, got {type(document).__name__}")
    return document


def _check_finished(path: Path, content: bytes) -> None:
    """DONE must have the hash of the last event, and ERROR must not exist."""
    if (path / "ERROR").exists():
        raise RecordError(f"{path}: contains both DONE and ERROR: one of them was added later")
    if _text(path / "DONE").strip() != last_hash(content):
        raise RecordError(f"{path / 'DONE'}: not the hash of the last event: lines were added or removed")


def _check_power_files(path: Path, events: Iterable[Event]) -> None:
    """The files of power samples must have the hashes in the events."""
    for event in iterate(events, "power"):
        place = f"{path / 'events.jsonl'}:{event['seq'] + 1}"
        try:
            nodes = (*event["value"]["nodes"], *event["value"].get("beside", ()))
            named = [(node["file"], node["sha256"]) for node in nodes]
        except (KeyError, TypeError) as error:
            raise RecordError(f"{place}: the event power lacks something: {type(error).__name__} {error}") from error
        for file, sha256 in named:
            if file is None:
                continue
            if not isinstance(file, str) or not _lies_in_power(file):
                raise RecordError(f"{place}: {file}: not a file in power/")
            if hashlib.sha256(_bytes(path / file)).hexdigest() != sha256:
                raise RecordError(f"{path / file}: the power samples were changed: their hash differs from the event's")


def _lies_in_power(file: str) -> bool:
    parts = Path(file).parts
    return len(parts) == 2 and parts[0] == "power" and parts[1] != ".." and "\0" not in file


def _value(event: Event, key: str, place: Path) -> Any:
    value = event.get("value")
    if not isinstance(value, dict) or key not in value:
        raise RecordError(f"{place}:{event['seq'] + 1}: the event {event['key']} has no {key}")
    return value[key]


def _status(path: Path) -> Status:
    return "done" if (path / "DONE").exists() else "error" if (path / "ERROR").exists() else "unfinished"


def _tables(path: Path) -> dict[str, Any]:
    return parse_toml(_bytes(path), str(path), RecordError)


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start})") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


# ----------------------------------------------------------------------------------------------------
# Writing a record.


# Reserved space that is freed when the disk is full, so that the reason can still be written.
_BALLAST_BYTES = 256 * 1024
_END = "run_error"
_FULL = (errno.ENOSPC, errno.EDQUOT)
# The files of a run that was killed before its first event.
_STILLBORN = {"recipe.toml", "system.json", "events.jsonl", "checkpoints", ".ballast"}


@dataclass(frozen=True)
class _End:
    """Where a log ends: its size, its number of events, and the hash of its last line."""

    size_bytes: int
    events: int
    hash: str


class RecordWriter:
    """Writes one record: `create` begins a new one, `reopen` resumes one.

    Every event is on disk when `event` returns. One process at a time can write a record (flock); any of its threads
    may write events and end the record.

    Attributes:
        stopped_seconds: for how long this process was stopped so far, which becomes an event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = FileIO(path / "events.jsonl", "ab")
        self._end = _End(0, 0, FIRST_PREVIOUS)
        # The monitor's thread closes the record when another rank is lost.
        self._turn = threading.RLock()
        self._failure: str | None = None
        self._is_complete = self._is_begun = self._has_noted_loss = False
        self.stopped_seconds: Callable[[], float] = lambda: 0.0
        self._noted_stops = 0.0
        self._progress: ProgressFile | None = None
        self._is_closed = threading.Event()
        self._lock()
        self._set_ballast()

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> RecordWriter:
        """Start a new record in the folder `path`, which must be empty or absent.

        Raises:
            RecordError: the folder is not empty, or cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            require_unused(path)
            (path / "checkpoints").mkdir(exist_ok=True)
            writer = cls(path)
            with writer._ours():
                # Check again under the lock: another process may have been faster.
                require_unused(path)
                write_atomically(path / "recipe.toml", to_toml(recipe).encode())
            return writer
        except OSError as error:
            raise RecordError(f"{path}: cannot write the record here: {error.strerror}; give another --out") from error

    @classmethod
    def reopen(cls, record: Record) -> RecordWriter:
        """Resume `record`; a line that a crash left unfinished is removed.

        Raises:
            RecordError: the run is complete, or another process is writing it.
        """
        _require_unfinished(record)
        writer = cls(record.path)
        with writer._ours():
            # Check again under the lock: another process may have resumed it in between.
            found = read_record(record.path)
            _require_unfinished(found)
            if found != record:
                raise RecordError(
                    f"{record.path}: another process has just written this record: start again with --resume"
                )
            writer._find_end()
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
            RunError: the disk is full (the log then ends with its last whole line), or the run was marked as failed.
        """
        with self._turn:
            if self._failure is not None and key != _END:
                raise RunError(self._failure)
            if self._is_begun:
                self._note()
            event = self._append(key, value)
            self._is_begun = True
            if self._progress:
                self._progress.take(event)
            return event

    def _note(self) -> None:
        """Append what has happened since the last event."""
        stopped = self.stopped_seconds()
        if stopped > self._noted_stops:
            # First: it lies after the last event.
            self._append("suspended", {"seconds": round(stopped - self._noted_stops, 6)})
            self._noted_stops = stopped
        if not self._has_noted_loss and (loss := lost_output("stderr")):
            self._has_noted_loss = True
            self._append("output_lost", {"reason": loss.reason, "lost_ms": loss.time_ms})

    def _append(self, key: str, value: Any) -> Event:
        # Ctrl-C may interrupt this anywhere, even after the line is on disk: the file says where the chain ends.
        if os.fstat(self._stream.fileno()).st_size != self._end.size_bytes:
            self._find_end()
        end = self._end
        event = new_event(end.hash, end.events, key, value)
        line = event_line(event)
        self._write_line(line + b"\n")
        self._end = _End(end.size_bytes + len(line) + 1, end.events + 1, line_hash(line))
        return event

    def _find_end(self) -> None:
        """Read where the chain ends, and remove a line that was not written whole."""
        content = (self.path / "events.jsonl").read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.ftruncate(self._stream.fileno(), len(whole))
        self._end = _End(len(whole), whole.count(b"\n"), last_hash(whole))

    def keep_progress(self, owner: str, events: Iterable[Event] = (), *, is_one_of_many: bool = False) -> None:
        """Keep `progress.json` up to date from now on; `owner` is this process's token, `events` are those so far."""
        self._progress = ProgressFile(self.path, owner, events, is_one_of_many=is_one_of_many)
        threading.Thread(target=self._beat, args=[self._progress], name="progress", daemon=True).start()

    def _beat(self, progress: ProgressFile) -> None:
        """Show that the process lives, also while it does no steps: a kill leaves no other trace."""
        pause = SHORTEST_SECONDS
        while not self._is_closed.wait(pause):
            with self._turn:
                if not self._is_closed.is_set():
                    pause = progress.beat()

    def step(self, done: int, loss: float | None = None) -> None:
        """Note that `done` updates of this epoch are done; `loss` is that of a recent one."""
        if self._progress:
            with self._turn:
                self._progress.step(done, loss)

    def write_system(self, system: Mapping[str, Any]) -> None:
        """Write `system.json`, and the same as an event, so that the chain protects it."""
        self._write("system.json", _pretty(system))
        self.event("system", system)

    def write_picture(self, name: str, content: bytes) -> None:
        """Write `pictures/NAME`, and its hash as an event, so that the chain protects it.

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
        """Write `predictions/KIND.npz`, a member's predictions for `samples` samples, and its hash as an event.

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
            RunError: the disk is full (`--resume` then writes what is missing), or the run was marked as failed.
        """
        with self._turn:
            if self._failure is not None:
                raise RunError(self._failure)
            self.close()
            self._write("result.json", _pretty(result))
            self._write("DONE", f"{self._end.hash}\n".encode())
            self._is_complete = True

    def fail(self, reason: str) -> None:
        """Mark the run as failed. The first reason is kept, and a complete run stays complete.

        Never raises, as the caller is about to show the reason to the user.
        """
        with self._turn:
            if self._failure is not None or self._is_complete:
                return
            self._failure = reason
            try:
                if not self._stream.closed:
                    self.event(_END, {"reason": reason})
                self.close()
                write_atomically(self.path / "ERROR", f"{reason}\n".encode(errors="backslashreplace"))
            except (OSError, RunError) as error:
                say(f"cannot write {self.path}/ERROR: {error}")
            finally:
                self.close()

    def close(self) -> None:
        """Close the log and free the reserved space."""
        self._is_closed.set()
        self._stream.close()
        (self.path / ".ballast").unlink(missing_ok=True)

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Release the lock if the body fails."""
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

    def _write_line(self, content: bytes) -> None:
        before = self._end.size_bytes
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
        # Parallel file systems may be mounted without locks: then a second writer is not detected.
        if lock(self._stream.fileno()) == "taken":
            self._stream.close()
            raise RecordError(
                f"{self.path}: another process is writing this record: wait for it or stop it, then use --resume"
            )

    def _set_ballast(self) -> None:
        try:
            allocate(self.path / ".ballast", _BALLAST_BYTES)
        except OSError as error:
            self.close()
            raise cannot_write(self.path, error) from error


def _require_unfinished(record: Record) -> None:
    if record.status == "done":
        raise RecordError(f"{record.path}: this run is complete; see `hpcai500 score {record.path}`")


def mark_lost(path: Path, reason: str) -> None:
    """Write ERROR into the record at `path` for a rank 0 that was killed or stopped and cannot write it.

    Nothing is written where the folder is not shared, or the run has ended. Never raises: the run ends anyway.
    """
    ends = (path / "DONE", path / "ERROR")
    with suppress(OSError):
        if (path / "events.jsonl").is_file() and not any(end.exists() for end in ends):
            write_atomically(path / "ERROR", f"{reason}\n".encode(errors="backslashreplace"))


def require_unused(path: Path) -> None:
    """Check that `path` can hold a new run: absent, empty, or left by a run that was killed before its first event.

    Raises:
        RecordError: it contains something else.
        OSError: it cannot be listed.
    """
    if not path.exists():
        return
    log = path / "events.jsonl"
    stillborn = {entry.name for entry in path.iterdir()} <= _STILLBORN and not (log.exists() and log.stat().st_size)
    if not stillborn:
        resume = "" if log.is_file() and is_being_written(path) else f", or resume it: --resume --out {path}"
        raise RecordError(f"{path}: not empty; give another --out{resume}")


def is_being_written(path: Path) -> bool:
    """Whether a process on this machine is writing the record in folder `path` now."""
    with (path / "events.jsonl").open("rb") as stream:
        return lock(stream.fileno(), shared=True) == "taken"


def cannot_write(path: Path, error: OSError, needed_bytes: int | None = None) -> RunError:
    """The error for a record that cannot be written; `needed_bytes` is the size of a checkpoint that did not fit."""
    if error.errno in _FULL and not (path / "recipe.toml").is_file():
        return RunError(f"{path}: {error.strerror}: the run has not started: free some space, then start it again")
    if error.errno in _FULL:
        needed = f" (the next checkpoint needs {needed_bytes / 1e6:.0f} MB)" if needed_bytes else ""
        return RunError(
            f"{path}: {error.strerror}{needed}: all saved epochs are kept: free some space, then continue with "
            f"--resume --out {path}"
        )
    reason = error.strerror or error
    return RunError(f"{path}: cannot write the record: {reason}; fix it, then continue with --resume --out {path}")


def _write_all(stream: FileIO, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[stream.write(view) or 0 :]


def _pretty(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
