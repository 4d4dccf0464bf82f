"""The run record: a folder of facts, chained by hashes, that is scored and verified without the machine that made it.

    RECORD/
        recipe.toml      resolved: every field, nothing implicit
        system.json      captured by the job itself
        events.jsonl     one JSON object a line; `prev` is the SHA-256 of the line before
        result.json      derived from the above
        checkpoints/     atomic; the last one resumes the run
        pictures/        what the last evaluation saw, for people
        predictions/     of a member of an ensemble: what it says of each sample, for the vote
        power/           HOST.csv: power samples of each node
        DONE | ERROR     written last

This module reads; `record_writer` writes. A record is read as plain tables, so that a recipe of today is still scored
when later versions know more fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcai500.chain import Event, iterate, last_hash, parse_events
from hpcai500.errors import RecordError
from hpcai500.layers import Recipe
from hpcai500.recipe import parse_resolved, tables_hash
from hpcai500.toml_source import parse_toml

Status = Literal["done", "error", "unfinished"]


@dataclass(frozen=True)
class Record:
    """A record as it lies on disk, its chain and its files checked against each other.

    Attributes:
        path: the folder.
        tables: the recipe, as plain tables.
        system: content of `system.json`.
        events: all events, in order.
        torn_bytes: length of a last line that a crash cut off; it is not among the events.
        status: how it ended: `done`, `error`, or `unfinished` (it still runs, or was killed).
    """

    path: Path
    tables: Mapping[str, Any]
    system: Mapping[str, Any]
    events: tuple[Event, ...]
    torn_bytes: int
    status: Status

    def recipe(self) -> Recipe:
        """The recipe, validated, for going on with the run.

        Raises:
            RecipeError: this version of hpcai500 cannot run it.
        """
        path = self.path / "recipe.toml"
        return parse_resolved(_text(path), str(path))


def read_record(path: Path) -> Record:
    """Read the record in folder `path`.

    Raises:
        RecordError: it is no record, its chain of events is broken, or its files are not those of its events.
    """
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
        raise RecordError(f"{path / 'recipe.toml'}: not the recipe that the run was started with: its hash differs")
    status = _status(path)
    system = json_object(path / "system.json") if (path / "system.json").is_file() else {}
    named = [event.get("value") for event in iterate(events, "system")]
    if named and named[-1] != system:
        raise RecordError(f"{path / 'system.json'}: not the system that the events name")
    if status == "done":
        _check_finished(path, content)
    _check_power_files(path, events)
    return Record(path, tables, system, tuple(events), torn_bytes, status)


# Folders that hold records, by their journal, with the command that tells of them.
_OTHERS = {
    "campaign.jsonl": "a campaign, which holds records: hpcai500 campaign status {path}",
    "ensemble.jsonl": "an ensemble, whose members' records lie in members/: hpcai500 ensemble status {path}",
}


def _what_it_is(path: Path, missing: str) -> str:
    known = (text.format(path=path) for journal, text in _OTHERS.items() if (path / journal).is_file())
    return next(known, f"{missing} is missing (a record is the folder that a run wrote)")


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`.

    Raises:
        RecordError: it holds something else.
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
    """A finished run vouches for its last line, and has not failed."""
    if (path / "ERROR").exists():
        raise RecordError(f"{path}: holds DONE and ERROR: one of them was put there later")
    if _text(path / "DONE").strip() != last_hash(content):
        raise RecordError(f"{path / 'DONE'}: does not carry the hash of the last event: lines were added or removed")


def _check_power_files(path: Path, events: Iterable[Event]) -> None:
    """The samples that power was integrated from are those of the run."""
    for event in iterate(events, "power"):
        place = f"{path / 'events.jsonl'}:{event['seq'] + 1}"
        try:
            named = [(node["file"], node["sha256"]) for node in event["value"]["nodes"]]
        except (KeyError, TypeError) as error:
            raise RecordError(f"{place}: the event power lacks something: {type(error).__name__} {error}") from error
        for file, sha256 in named:
            if file is None:
                continue
            if not isinstance(file, str) or not _lies_in_power(file):
                raise RecordError(f"{place}: {file}: not a file in power/")
            if hashlib.sha256(_bytes(path / file)).hexdigest() != sha256:
                raise RecordError(f"{path / file}: not the power samples that the events name: its hash differs")


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
