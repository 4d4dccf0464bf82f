"""A campaign on disk (V2.0 sections 3.3 and 5.3.2): its plan, and the journal of all attempts that begin and end.

The plan is fixed before the first run. The journal only grows, by one fsynced event at a time, each with the hash of
the line before it; a line that a crash cut off is removed by the next writer.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from hpcai500 import __version__
from hpcai500.errors import RecordError, UsageError
from hpcai500.files import Turn, lock, turn_of, why_not, write_atomically
from hpcai500.layers import Recipe
from hpcai500.plugins import plugin_facts
from hpcai500.recipe import recipe_hash, tables_hash, to_toml
from hpcai500.record import FIRST_PREVIOUS, Event, event_line, iterate, last_hash, line_hash, new_event, parse_journal
from hpcai500.system.process import owner_of
from hpcai500.system.software import package_code_hash
from hpcai500.toml_source import parse_toml

# ----------------------------------------------------------------------------------------------------
# The journal's format, and the campaign that it describes.
#
#     CAMPAIGN/
#         recipe.toml          resolved, with the seed of the first trial
#         campaign.jsonl       the journal: events in a hash chain, like those of a record
#         trial-01/            the record of the first attempt at trial 1
#         trial-01-attempt-2/  the record of the second one, if the first was not completed
#
# Keys of the journal, with their values:
#
#     campaign_start   {schema, benchmark, edition, recipe_hash, trials: [{trial, seed}], data, version, code_sha256,
#                       [plugin: {name, package, version, code_sha256}], [ensemble: {id, member}]}
#     attempt_start    {trial, attempt, record, command: [token], launcher, slurm_job_id}
#     attempt_resume   {trial, attempt, command, launcher, slurm_job_id}
#     attempt_stop     {trial, attempt, status: done|stopped|failed, exit_code, head, reason}
#
# `head` is the hash of the last whole event of the attempt's record (64 zeros if it has none; null if its folder was
# missing when the journal was written), so the journal vouches for the record. The record in turn has, in `init_start`,
# {campaign: {id, trial, attempt, head}}, with the hash of the line `attempt_start` as `head`. Neither can be made to
# fit another one later.


SCHEMA = "hpcai500-campaign-1"
JOURNAL = "campaign.jsonl"
RECIPE = "recipe.toml"

Status = Literal["done", "stopped", "failed", "running"]
_ENDS: tuple[Status, ...] = ("done", "stopped", "failed")
_OF_ATTEMPTS = ("attempt_start", "attempt_resume", "attempt_stop")
# The head of an empty log.
NO_EVENTS = FIRST_PREVIOUS


@dataclass(frozen=True)
class Trial:
    trial: int
    seed: int


@dataclass(frozen=True)
class Attempt:
    """One run that was begun.

    Attributes:
        trial: number of the planned run (from 1).
        attempt: number of the attempt at this trial (from 1).
        record: name of its folder within the campaign.
        status: by the journal; `running` if that has no end: the run is still running, or was killed.
        commands: the command that started it and those that resumed it, each as tokens.
        slurm_jobs: ids of the Slurm jobs that it ran in.
        head: hash of the last event of its record, once it ended; NO_EVENTS if it had none, None if its folder was
            missing.
        reason: why it ended without a result.
        start_hash: hash of the journal's line `attempt_start`.
        started_ms: UNIX time.
    """

    trial: int
    attempt: int
    record: str
    status: Status
    commands: tuple[tuple[str, ...], ...]
    slurm_jobs: tuple[str, ...]
    head: str | None
    reason: str | None
    start_hash: str
    started_ms: int

    @property
    def name(self) -> str:
        """`trial 2, attempt 1`, for messages."""
        return f"trial {self.trial}, attempt {self.attempt}"


@dataclass(frozen=True)
class Campaign:
    """A campaign on disk; the hash chain of its journal was checked.

    Attributes:
        identity: hash of the journal's first line, which has the plan.
        head: hash of the journal's last line.
        tables: the recipe, as plain tables, with the seed of the first trial.
        start: value of `campaign_start`.
        attempts: all runs that were begun, in order.
        events: the journal.
    """

    path: Path
    identity: str
    head: str
    tables: Mapping[str, Any]
    start: Mapping[str, Any]
    trials: tuple[Trial, ...]
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...] = field(repr=False)

    @property
    def benchmark(self) -> str:
        return str(self.start["benchmark"])

    @property
    def edition(self) -> str:
        """Name of the edition of the rules that the campaign was planned under."""
        return str(self.start["edition"])

    def attempts_at(self, trial: int) -> tuple[Attempt, ...]:
        return self._by_trial.get(trial, ())

    def seed(self, trial: int) -> int | None:
        """The planned seed of a trial; None if it was not planned."""
        return self._seeds.get(trial)

    def done(self) -> tuple[Attempt, ...]:
        """The attempts that are complete, in order of their trials."""
        ended = (attempt for attempt in self.attempts if attempt.status == "done")
        return tuple(sorted(ended, key=lambda attempt: attempt.trial))

    def record(self, attempt: Attempt) -> Path:
        return self.path / attempt.record

    @cached_property
    def _by_trial(self) -> Mapping[int, tuple[Attempt, ...]]:
        found: dict[int, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            found[attempt.trial].append(attempt)
        return {trial: tuple(attempts) for trial, attempts in found.items()}

    @cached_property
    def _seeds(self) -> Mapping[int, int]:
        # Of two plans of one trial, which no honest journal has, the first counts.
        return {one.trial: one.seed for one in reversed(self.trials)}


def is_campaign(folder: Path) -> bool:
    return (folder / JOURNAL).is_file()


def read_campaign(folder: Path) -> Campaign:
    """Read the campaign in `folder`.

    Raises:
        RecordError: there is none, its journal is broken, or its recipe is not the one that the journal names.
    """
    path = folder / JOURNAL
    plan = f"plan one with `hpcai500 campaign init {folder} --recipe NAME --trials N`"
    if why := why_not("folder", folder):
        raise RecordError(f"{folder}: {why}; give the folder of a campaign, or {plan}")
    try:
        content = path.read_bytes()
        recipe = (folder / RECIPE).read_bytes()
    except FileNotFoundError as error:
        raise RecordError(f"{folder}: not a campaign: {Path(str(error.filename)).name} is missing; {plan}") from error
    except OSError as error:
        raise RecordError(f"{error.filename}: cannot be read: {error.strerror}") from error
    tables = parse_toml(recipe, str(folder / RECIPE), RecordError)
    campaign = parse_campaign(content, folder, tables)
    if campaign.start["recipe_hash"] != tables_hash(tables):
        raise RecordError(f"{folder / RECIPE}: not the recipe that the campaign was planned with: its hash differs")
    return campaign


def parse_campaign(content: bytes, folder: Path, tables: Mapping[str, Any]) -> Campaign:
    """The campaign in `folder` whose journal holds `content`; its recipe, `tables`, is not checked.

    Raises:
        RecordError: the journal is broken.
    """
    path = folder / JOURNAL
    whole, events = parse_journal(content, str(path), "campaign_start")
    lines = whole.split(b"\n")
    try:
        start = events[0]["value"]
        if start["schema"] != SCHEMA:
            raise RecordError(f"{path}: expected the schema {SCHEMA}, got {start['schema']!r}")
        str(start["recipe_hash"])
        return Campaign(
            path=folder,
            identity=line_hash(lines[0]),
            head=last_hash(whole),
            tables=tables,
            start=start,
            trials=tuple(Trial(int(one["trial"]), int(one["seed"])) for one in start["trials"]),
            attempts=tuple(_attempts(events, lines)),
            events=tuple(events),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(f"{path}: an event is malformed: {type(error).__name__} {error}") from error


def _attempts(events: Sequence[Event], lines: Sequence[bytes]) -> Iterator[Attempt]:
    """All attempts in the order in which they were begun, each with its events in the journal."""
    groups: list[list[Event]] = []
    # No honest journal has two attempts with one number. If there are, later events belong to the second.
    latest: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["key"] not in _OF_ATTEMPTS:
            continue
        number = (int(event["value"]["trial"]), int(event["value"]["attempt"]))
        if event["key"] == "attempt_start":
            latest[number] = [event]
            groups.append(latest[number])
        else:
            latest[number].append(event)
    return (_attempt(group, lines) for group in groups)


def _attempt(events: Sequence[Event], lines: Sequence[bytes]) -> Attempt:
    value = events[0]["value"]
    runs = [events[0], *iterate(events, "attempt_resume")]
    # An attempt that was resumed after it had stopped runs again.
    last = events[-1]["value"] if events[-1]["key"] == "attempt_stop" else {}
    head, reason = last.get("head"), last.get("reason")
    return Attempt(
        trial=int(value["trial"]),
        attempt=int(value["attempt"]),
        record=folder_name(value["record"]),
        status=_status(last),
        commands=tuple(tuple(map(str, run["value"]["command"])) for run in runs),
        slurm_jobs=tuple(dict.fromkeys(str(job) for run in runs if (job := run["value"]["slurm_job_id"]))),
        head=None if head is None else str(head),
        reason=None if reason is None else str(reason),
        start_hash=line_hash(lines[events[0]["seq"]]),
        started_ms=events[0]["time_ms"],
    )


def _status(stop: Mapping[str, Any]) -> Status:
    if not stop:
        return "running"
    for status in _ENDS:
        if stop["status"] == status:
            return status
    raise ValueError(f"attempt_stop: expected one of {', '.join(_ENDS)} as status, got {stop['status']!r}")


def folder_name(name: Any) -> str:
    """The name of a record's folder. A journal may be untrusted: it must not name a place outside its campaign.

    Raises:
        ValueError: it does, or is not a name.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\0"} & set(name):
        raise ValueError(f"attempt_start: expected the name of a folder as record, got {name!r}")
    return name


# ----------------------------------------------------------------------------------------------------
# Heads: the hash of each line of a campaign's journal, given to the committee as soon as the line is written.
#
# A copy of a campaign has the same identity, but its own journal lines from its first attempt on, so the heads of one
# copy distinguish it from any other. A head is one line of text, to which the receiver adds the time of receipt in UTC:
#
#     HPCAI500 HEAD IDENTITY LINE HASH                           as the campaign prints it
#     HPCAI500 HEAD IDENTITY LINE HASH 2026-11-22T03:00:05Z      as the committee keeps it


# Room for 80,000 heads, those of a thousand campaigns. The file is untrusted.
_MOST_BYTES = 2**24
_MOST_SHOWN = 60
_LINE = re.compile(r"HPCAI500 HEAD ([0-9a-f]{64}) ([1-9]\d{0,8}) ([0-9a-f]{64})(?: (\S+))?", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_EXAMPLE = "2026-11-22T03:00:05Z"


@dataclass(frozen=True)
class Head:
    """The hash of one line of a campaign's journal.

    Attributes:
        campaign: the campaign's identity.
        line: number of the line in the journal (from 1).
        hash: of that line; by the chain, it covers all lines before it, too.
    """

    campaign: str
    line: int
    hash: str

    def __str__(self) -> str:
        return f"HPCAI500 HEAD {self.campaign} {self.line} {self.hash}"


# When the committee received each head (UNIX time in milliseconds), the earliest time if more than once.
GivenHeads = Mapping[Head, int]


def heads_of(campaign: Campaign) -> tuple[Head, ...]:
    """The heads of all lines of the journal but the first, whose hash is the campaign's identity."""
    hashes = [*(event["prev"] for event in campaign.events[1:]), campaign.head]
    return tuple(Head(campaign.identity, line, one) for line, one in enumerate(hashes, 1))[1:]


def last_head(campaign: Campaign, attempt: Attempt) -> Head:
    """The head of the last line about `attempt`; other attempts may have written since."""
    number = (attempt.trial, attempt.attempt)
    lines = zip(heads_of(campaign), (event["value"] for event in campaign.events[1:]), strict=True)
    return [head for head, value in lines if (value["trial"], value["attempt"]) == number][-1]


def read_heads(path: Path) -> GivenHeads:
    """The heads in a committee's file, which may be of several campaigns.

    Raises:
        UsageError: it cannot be read, is too long, has no head, or has a line that is not one.
    """
    if why := why_not("file", path):
        raise UsageError(f"--heads {path}: {why}; expected one of the lines that `hpcai500 campaign heads DIR` prints")
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--heads {path}: cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(
            f"--heads {path}: more than {_MOST_BYTES >> 20} MiB; keep the heads of each year in its own file"
        )
    heads: dict[Head, int] = {}
    # Windows editors put a byte-order mark first.
    text = content.removeprefix(codecs.BOM_UTF8).decode("ascii", errors="replace")
    for number, line in enumerate(text.split("\n"), 1):
        if words := " ".join(line.split()):
            head, received_ms = _parse(words, f"--heads {path}:{number}")
            heads[head] = min(received_ms, heads.get(head, received_ms))
    if not heads:
        raise UsageError(f"--heads {path}: no head; expected lines that `hpcai500 campaign heads DIR` prints")
    return heads


def _parse(line: str, place: str) -> tuple[Head, int]:
    found = _LINE.fullmatch(line)
    if found is None:
        shown = line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}…"
        raise UsageError(f"{place}: expected `HPCAI500 HEAD IDENTITY LINE HASH {_EXAMPLE}`, got {shown!r}")
    moment = found[4]
    if moment is None:
        raise UsageError(f"{place}: no time of receipt: add it at the end of the line, in UTC: {_EXAMPLE}")
    try:
        if not _MOMENT.fullmatch(moment):
            raise ValueError
        received_ms = round(datetime.fromisoformat(moment).timestamp() * 1000)
    except ValueError as error:
        raise UsageError(f"{place}: expected the time of receipt in UTC, as {_EXAMPLE}, got {moment[:40]!r}") from error
    return Head(found[1], int(found[2]), found[3]), received_ms


# ----------------------------------------------------------------------------------------------------
# One process at a time runs a trial: a lock for each, where the file system has locks.


# The lock of a process that runs the whole campaign; trials are numbered from 1.
ALL_TRIALS = 0


def lock_path(campaign: Path, trial: int) -> Path:
    """The file that a process locks while it runs a trial of the campaign in the folder `campaign`."""
    return campaign / f".trial-{trial:02d}.lock"


@contextmanager
def turn_at(campaign: Path, trial: int) -> Iterator[Turn]:
    """Try to hold the lock of a trial of the campaign in the folder `campaign`, until this context ends.

    A folder that cannot be written to has no locks. The file names the process, for readers that take no lock.
    """
    with ExitStack() as stack:
        try:
            turn = stack.enter_context(turn_of(lock_path(campaign, trial), holder=owner_of(os.getpid())))
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            turn = "unknown"
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            turn = "unknown"
        yield turn


# ----------------------------------------------------------------------------------------------------
# Writing: the plan once, then one event at a time.


def create_campaign(
    folder: Path,
    recipe: Recipe,
    trials: int,
    data: Path | None,
    ensemble: Mapping[str, Any] | None = None,
    beside: Collection[str] = (),
) -> Campaign:
    """Write the plan of a new campaign (recipe, runs and seeds) to `folder`, which must be empty or absent.

    Trial k has the recipe's seed plus k - 1.

    Args:
        folder: the runs are written into it, too.
        recipe: resolved, with the seed of the first trial.
        trials: how many runs.
        data: folder of the data set; None if it is generated for each run.
        ensemble: {id, member} if the trials are attempts at a member of an ensemble (`ensemble.journal`).
        beside: names that may be in the folder already, besides hidden files: locks, and what a crash left.

    Raises:
        RecordError: the folder is not empty or cannot be written.
    """
    first = recipe.model_dump(mode="json")["hyperparameters"]["seed"]
    value = {
        "schema": SCHEMA,
        "benchmark": recipe.benchmark,
        "edition": recipe.edition,
        "recipe_hash": recipe_hash(recipe),
        "trials": [{"trial": number, "seed": first + number - 1} for number in range(1, trials + 1)],
        "data": str(data.absolute()) if data else None,
        "version": __version__,
        "code_sha256": package_code_hash(),
        **({"plugin": plugin} if (plugin := plugin_facts(recipe.benchmark)) else {}),
        **({"ensemble": dict(ensemble)} if ensemble else {}),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_campaign(folder):
            raise RecordError(
                f"{folder}: already holds a campaign: continue it with `hpcai500 campaign run {folder}`, or give "
                "another folder"
            )
        if any(not entry.name.startswith(".") and entry.name not in beside for entry in folder.iterdir()):
            raise RecordError(f"{folder}: not empty; give an empty or new folder for the campaign")
        write_atomically(folder / RECIPE, to_toml(recipe).encode())
        line = event_line(new_event(FIRST_PREVIOUS, 0, "campaign_start", value))
        write_atomically(folder / JOURNAL, line + b"\n")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; fix that, or give another folder") from error
    return read_campaign(folder)


def append(folder: Path, key: str, value: Mapping[str, Any]) -> Campaign:
    """Append one event to the journal of the campaign in `folder`, sync it to disk, and return the updated campaign.

    Raises:
        RecordError: there is no campaign, or its journal cannot be written.
    """
    append_line(folder / JOURNAL, key, value)
    return read_campaign(folder)


def append_line(path: Path, key: str, value: Mapping[str, Any]) -> None:
    """Append one event to the chained journal `path`, and sync it to disk. A cut-off last line is removed.

    Raises:
        RecordError: the journal is missing, or cannot be written.
    """
    try:
        with path.open("r+b") as stream:
            # Two writers at once would fork the chain. A file system without locks cannot prevent this.
            lock(stream.fileno(), wait=True)
            content = stream.read()
            whole = content[: content.rfind(b"\n") + 1]
            event = new_event(last_hash(whole), whole.count(b"\n"), key, value)
            stream.truncate(len(whole))
            stream.seek(len(whole))
            stream.write(event_line(event) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror}; fix that, then run this again") from error
