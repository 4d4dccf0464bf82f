"""What a campaign planned and what became of it, as its journal tells (V2.0 sections 3.3 and 5.3.2).

    CAMPAIGN/
        recipe.toml          resolved, with the seed of the first trial
        campaign.jsonl       the journal: events in a chain, as a record's
        trial-01/            the record of the first attempt at trial 1
        trial-01-attempt-2/  the record of another one, where the first did not come to its end

Keys of the journal, with their values:

    campaign_start   {schema, benchmark, edition, recipe_hash, trials: [{trial, seed}], data, version, code_sha256,
                      [plugin: {name, package, version, code_sha256}], [ensemble: {id, member}]}
    attempt_start    {trial, attempt, record, command: [token], launcher, slurm_job_id}
    attempt_resume   {trial, attempt, command, launcher, slurm_job_id}
    attempt_stop     {trial, attempt, status: done|stopped|failed, exit_code, head, reason}

`head` is the hash of the last whole event of the attempt's record (64 zeros where it holds none; null where its folder
was gone when the journal was written), so that the journal vouches for it. The record in its turn
carries, in `init_start`, {campaign: {id, trial, attempt, head}} with the hash of the line `attempt_start`: neither can
be made to fit another one later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcai500.chain import FIRST_PREVIOUS, Event, iterate, last_hash, line_hash, parse_events
from hpcai500.errors import RecordError
from hpcai500.recipe import tables_hash
from hpcai500.toml_source import parse_toml

SCHEMA = "hpcai500-campaign-1"
JOURNAL = "campaign.jsonl"
RECIPE = "recipe.toml"

Status = Literal["done", "stopped", "failed", "running"]
_ENDS: tuple[Status, ...] = ("done", "stopped", "failed")
_OF_ATTEMPTS = ("attempt_start", "attempt_resume", "attempt_stop")
# The head of a log without a line.
NO_EVENTS = FIRST_PREVIOUS


@dataclass(frozen=True)
class Trial:
    """One planned run."""

    trial: int
    seed: int


@dataclass(frozen=True)
class Attempt:
    """One run that was begun.

    Attributes:
        trial: which planned run (from 1).
        attempt: the how manieth at it (from 1).
        record: name of its folder within the campaign.
        status: as the journal told last; `running` where it told no end: it runs still, or was killed.
        commands: what started it and what went on with it, each as tokens.
        slurm_jobs: ids of the Slurm jobs that it ran in.
        head: hash of the last event of its record, once it ended; NO_EVENTS where it had none, None where its folder
            was gone.
        reason: why it ended without a result.
        start_hash: hash of the journal's line `attempt_start`.
        started_ms: when it was begun (UNIX time).
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
        """For sentences: `trial 2, attempt 1`."""
        return f"trial {self.trial}, attempt {self.attempt}"


@dataclass(frozen=True)
class Campaign:
    """A campaign as it lies on disk, the chain of its journal checked.

    Attributes:
        path: its folder.
        identity: hash of the journal's first line: the plan's.
        head: hash of the journal's last line.
        tables: the recipe, as plain tables, with the seed of the first trial.
        start: value of `campaign_start`.
        trials: the planned runs.
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
        """Its name."""
        return str(self.start["benchmark"])

    @property
    def edition(self) -> str:
        """Name of the edition of the rules that it was planned under."""
        return str(self.start["edition"])

    def attempts_at(self, trial: int) -> tuple[Attempt, ...]:
        """All attempts at one planned run."""
        return tuple(attempt for attempt in self.attempts if attempt.trial == trial)

    def done(self) -> tuple[Attempt, ...]:
        """The attempts that came to their end, in order of their trials."""
        ended = (attempt for attempt in self.attempts if attempt.status == "done")
        return tuple(sorted(ended, key=lambda attempt: attempt.trial))

    def record(self, attempt: Attempt) -> Path:
        """Folder of the record of an attempt."""
        return self.path / attempt.record


def is_campaign(folder: Path) -> bool:
    """Whether `folder` holds a campaign."""
    return (folder / JOURNAL).is_file()


def read_campaign(folder: Path) -> Campaign:
    """Read the campaign in `folder`.

    Raises:
        RecordError: it is none, its journal is broken, or its recipe is not the one that the journal names.
    """
    path = folder / JOURNAL
    try:
        content = path.read_bytes()
        recipe = (folder / RECIPE).read_bytes()
    except FileNotFoundError as error:
        raise RecordError(
            f"{folder}: not a campaign: {Path(str(error.filename)).name} is missing; make one with "
            f"`hpcai500 campaign init {folder} --recipe NAME --trials N`"
        ) from error
    except OSError as error:
        raise RecordError(f"{error.filename}: cannot be read: {error.strerror}") from error
    tables = parse_toml(recipe, str(folder / RECIPE), RecordError)
    # A line that a crash cut off told nothing that anyone has acted on.
    whole = content[: content.rfind(b"\n") + 1]
    events, _ = parse_events(whole, str(path))
    if not events or events[0]["key"] != "campaign_start":
        raise RecordError(f"{path}:1: expected the event campaign_start first")
    try:
        return _campaign(folder, whole, tables, events)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(f"{path}: an event lacks something: {type(error).__name__} {error}") from error


def _campaign(folder: Path, content: bytes, tables: Mapping[str, Any], events: Sequence[Event]) -> Campaign:
    start = events[0]["value"]
    if start["schema"] != SCHEMA:
        raise RecordError(f"{folder / JOURNAL}: expected the schema {SCHEMA}, got {start['schema']!r}")
    if start["recipe_hash"] != tables_hash(tables):
        raise RecordError(f"{folder / RECIPE}: not the recipe that the campaign was planned with: its hash differs")
    lines = content.split(b"\n")
    return Campaign(
        path=folder,
        identity=line_hash(lines[0]),
        head=last_hash(content),
        tables=tables,
        start=start,
        trials=tuple(Trial(int(one["trial"]), int(one["seed"])) for one in start["trials"]),
        attempts=tuple(_attempts(events, lines)),
        events=tuple(events),
    )


def _attempts(events: Sequence[Event], lines: Sequence[bytes]) -> Iterator[Attempt]:
    """All attempts in the order in which they were begun, each with what the journal told of it later."""
    told: list[list[Event]] = []
    # Of two attempts with one number, which no honest journal has, what follows is the second one's.
    latest: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["key"] not in _OF_ATTEMPTS:
            continue
        number = (int(event["value"]["trial"]), int(event["value"]["attempt"]))
        if event["key"] == "attempt_start":
            latest[number] = [event]
            told.append(latest[number])
        else:
            latest[number].append(event)
    return (_attempt(one, lines) for one in told)


def _attempt(told: Sequence[Event], lines: Sequence[bytes]) -> Attempt:
    value = told[0]["value"]
    runs = [told[0], *iterate(told, "attempt_resume")]
    # One that was gone on with after it had stopped runs again.
    last = told[-1]["value"] if told[-1]["key"] == "attempt_stop" else {}
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
        start_hash=line_hash(lines[told[0]["seq"]]),
        started_ms=told[0]["time_ms"],
    )


def _status(stop: Mapping[str, Any]) -> Status:
    if not stop:
        return "running"
    for status in _ENDS:
        if stop["status"] == status:
            return status
    raise ValueError(f"attempt_stop: expected one of {', '.join(_ENDS)} as status, got {stop['status']!r}")


def folder_name(name: Any) -> str:
    """The name of a record's folder: a journal of anyone's must not name a place outside of its campaign.

    Raises:
        ValueError: it does, or is no name.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\0"} & set(name):
        raise ValueError(f"attempt_start: expected the name of a folder as record, got {name!r}")
    return name
