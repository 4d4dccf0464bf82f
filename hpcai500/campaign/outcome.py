"""What the record of an attempt tells: how far it came, how it ended, and what it amounts to if it is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcai500.campaign.reading import NO_EVENTS, Attempt, Campaign, Status
from hpcai500.chain import Event, iterate, last_hash
from hpcai500.errors import HpcAi500Error, RecordError
from hpcai500.methodology.passes import last_pass, lost_evaluations
from hpcai500.methodology.result import Result, derive
from hpcai500.record import Record, read_record

# What follows `interrupted` at the end of a record: a checkpoint, and the error that says it was stopped.
_LATELY = 4
FOLDER_MISSING = "its folder is missing: restore it; without it this campaign cannot be ranked"
FOLDER_WAS_GONE = "its folder was gone before the journal told of its end: this campaign cannot be ranked"
# What reading events or tables of other types than ours may raise.
ODD = (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, IndexError)


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found."""

    epoch: int
    metric: str
    value: float


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, told by its record: what the journal shall say of it."""

    status: Status
    head: str | None
    reason: str | None


@dataclass(frozen=True)
class Outcome:
    """One attempt and what its record tells.

    Attributes:
        attempt: as the journal has it.
        head: hash of the record's last whole event; NO_EVENTS where it has none, None where its folder is not there.
        record: None where there is none yet, or it cannot be read.
        error: why it cannot be read, or gives no result although it is complete.
        epochs: that were trained and evaluated; what a restart has lost is not among them.
        latest: the last evaluation that anyone has seen, also one that a restart has lost.
        lost: evaluations of epochs that were trained again after a restart.
        diverged: what was no number any more, if the run came to that.
        result: computed from the events; None unless the record is complete.
    """

    attempt: Attempt
    head: str | None
    record: Record | None = None
    error: str | None = None
    epochs: int = 0
    latest: Evaluation | None = None
    lost: tuple[Evaluation, ...] = ()
    diverged: str | None = None
    result: Result | None = None

    @property
    def is_missing(self) -> bool:
        """Whether its folder is not there, although the journal knows of events in it, or of its absence.

        A folder without an event is nothing to miss: some ways of copying leave it behind.
        """
        return (
            self.head is None
            and self.error is None
            and self.attempt.status != "running"
            and self.attempt.head != NO_EVENTS
        )

    @property
    def seconds(self) -> float | None:
        """How long it ran: by its result, or from the clock's start to the last event."""
        if self.result:
            return self.result.seconds
        events = self.record.events if self.record else ()
        start = next(iterate(events, "run_start"), None)
        return (events[-1]["time_ms"] - start["time_ms"]) / 1000 if start else None

    @property
    def can_go_on(self) -> bool:
        """Whether there is something that would be lost if the run began anew, and that leads somewhere."""
        events = self.record.events if self.record else ()
        begun = any(iterate(events, "run_start"))
        return begun and self.diverged is None and bool(self.latest or any(iterate(events, "checkpoint")))


def read_outcome(campaign: Campaign, attempt: Attempt, rules: Mapping[str, Any]) -> Outcome:
    """What the record of `attempt` tells under `rules`; whatever is in it, nothing is raised."""
    folder = campaign.record(attempt)
    head = None
    try:
        head = record_head(folder)
        if head in (None, NO_EVENTS):
            return Outcome(attempt, head)
        record = read_record(folder)
        read = Outcome(
            attempt,
            head,
            record,
            epochs=len(last_pass(record.events, "eval_accuracy")),
            latest=_latest(record.events),
            lost=tuple(map(_evaluation, lost_evaluations(record.events))),
            diverged=_diverged(record.events),
        )
    except HpcAi500Error as error:
        return Outcome(attempt, head, error=str(error))
    except ODD as error:
        return Outcome(attempt, head, error=f"{folder}: {_lacks(error)}")
    return _scored(read, record, rules) if record.status == "done" else read


def record_head(folder: Path) -> str | None:
    """Hash of the last whole event of the record in `folder`; NO_EVENTS without any, None without a folder.

    Raises:
        RecordError: the log cannot be read.
    """
    if not folder.is_dir():
        return None
    try:
        content = (folder / "events.jsonl").read_bytes()
    except FileNotFoundError:
        return NO_EVENTS
    except OSError as error:
        raise RecordError(f"{folder / 'events.jsonl'}: cannot be read: {error.strerror}") from error
    return last_hash(content[: content.rfind(b"\n") + 1])


# Why an attempt ended that nobody had asked to end: it can be gone on with all the same, where there is a checkpoint.
KILLED = "it was killed, or its machine went down: its record has no end"


def ending(outcome: Outcome) -> Ending:
    """How an attempt that nobody runs any more has ended."""
    record = outcome.record
    if outcome.head is None:
        return Ending("failed", None, "its folder is gone")
    if record is None:
        return Ending("failed", outcome.head, outcome.error or "it ended before its first event")
    if record.status == "done":
        return Ending("done", outcome.head, None)
    if record.status == "unfinished":
        return Ending("stopped" if outcome.can_go_on else "failed", outcome.head, KILLED)
    was_asked = any(iterate(record.events[-_LATELY:], "interrupted"))
    return Ending("stopped" if was_asked else "failed", outcome.head, _reason(record))


def _scored(outcome: Outcome, record: Record, rules: Mapping[str, Any]) -> Outcome:
    try:
        return replace(outcome, result=derive(record.tables, rules, record.events))
    except HpcAi500Error as error:
        return replace(outcome, error=str(error))
    except ODD as error:
        return replace(outcome, error=f"{record.path}: {_lacks(error)}")


def _lacks(error: Exception) -> str:
    return f"events or recipe lack something: {type(error).__name__} {error}"


def _latest(events: Sequence[Event]) -> Evaluation | None:
    last = next(iterate(reversed(events), "eval_accuracy"), None)
    return _evaluation(last) if last else None


def _evaluation(event: Mapping[str, Any]) -> Evaluation:
    value = event["value"]
    return Evaluation(int(value["epoch"]), str(value.get("metric", "quality")), float(value["value"]))


def _diverged(events: Sequence[Event]) -> str | None:
    last = next(iterate(reversed(events), "diverged"), None)
    return f"{last['value']['what']} at epoch {last['value']['epoch']}, step {last['value']['step']}" if last else None


def _reason(record: Record) -> str | None:
    last = record.events[-1]
    if last["key"] == "run_error":
        return str(last["value"]["reason"])
    return "the record says ERROR" if record.status == "error" else None
