"""What a member's logs tell of it: its campaign's journal who tries, its record how far they have come.

Both are folded event by event, so that nothing is kept but what a status shows. Whoever writes them may write anything:
what has another type than ours writes is an error of that member, and of no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpcai500.campaign.reading import SCHEMA, Status, folder_name
from hpcai500.chain import Event
from hpcai500.errors import RecordError
from hpcai500.methodology.integrity.values import (
    VALUES,
    Checkpoint,
    Company,
    EpochStop,
    Evaluation,
    InitStart,
    Model,
    Place,
    Resume,
    Value,
)

Phase = Literal["starting", "training", "evaluating", "ended"]

_LONGEST_REASON = 600


class _Process(BaseModel):
    """What `init_start` tells and no score depends on."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    process: int | None = None


class _Divergence(BaseModel):
    """`diverged`."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    what: str = Field(max_length=4096)
    epoch: int
    step: int


@dataclass(slots=True)
class JournalFacts:
    """What the journal of a member's campaign has told so far.

    Attributes:
        plan: value of `campaign_start.ensemble`; None before that was read.
        attempts: that were begun.
        runs: attempts, and how often one was gone on with.
        record: name of the last attempt's folder.
        status: of the last attempt; None before the first.
        reason: why it ended without a result.
        head: of its record, once it ended.
        began_ms: when the first attempt began (UNIX time).
        started_ms: when the last one began, or was gone on with.
        ended_ms: when it ended; None while it goes on.
    """

    plan: Any = None
    attempts: int = 0
    runs: int = 0
    record: str | None = None
    status: Status | None = None
    reason: str | None = None
    head: str | None = None
    began_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None

    def fold(self, events: Iterable[Event]) -> None:
        """Take in the events that joined.

        Raises:
            RecordError: one of them lacks something.
        """
        for event in events:
            try:
                self._take(event["key"], event["value"], _moment_ms(event))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise RecordError(f"the campaign's journal: {event['key']}: {type(error).__name__} {error}") from error

    def _take(self, key: str, value: Mapping[str, Any], time_ms: int) -> None:
        if key == "campaign_start":
            if value["schema"] != SCHEMA:
                raise ValueError(f"the schema {value['schema']!r}, not {SCHEMA}")
            self.plan = value.get("ensemble")
        elif key == "attempt_start":
            self.record, self.attempts = folder_name(value["record"]), self.attempts + 1
            self.began_ms = time_ms if self.began_ms is None else self.began_ms
            self._run(time_ms)
        elif key == "attempt_resume":
            self._run(time_ms)
        elif key == "attempt_stop":
            if value["status"] not in get_args(Status):
                raise ValueError(f"the status {value['status']!r}")
            self.status, self.ended_ms = cast(Status, value["status"]), time_ms
            self.head, self.reason = _text(value["head"]), _text(value["reason"])

    def _run(self, time_ms: int) -> None:
        self.status, self.reason, self.head, self.ended_ms = "running", None, None, None
        self.runs, self.started_ms = self.runs + 1, time_ms


@dataclass(slots=True)
class RecordFacts:
    """What the record of an attempt has told so far.

    Attributes:
        campaign: value of `init_start.campaign`; None where that was not read.
        process: id of the process that writes.
        boot: id of its machine's start.
        hosts: that it runs on.
        phase: what it does.
        epoch: that it is at (from 1).
        epochs_done: that were trained and evaluated.
        step: updates of this epoch that were done when it told last.
        steps: updates of an epoch.
        quality: that was found last.
        images_per_second: over its last epoch of training.
        pace_seconds: from the beginning of its last epoch to that of the next one, evaluation and checkpoint included.
        can_go_on: whether there is a checkpoint.
        diverged: what was no number any more.
        error: what ended it.
        last_ms: when it told something last (UNIX time).
    """

    campaign: Any = None
    process: int | None = None
    boot: str | None = None
    hosts: tuple[str, ...] = ()
    phase: Phase = "starting"
    epoch: int | None = None
    epochs_done: int = 0
    step: int = 0
    steps: int | None = None
    quality: float | None = None
    images_per_second: float | None = None
    pace_seconds: float | None = None
    can_go_on: bool = False
    diverged: str | None = None
    error: str | None = None
    last_ms: int | None = None
    _epoch_began_ms: int | None = None

    def fold(self, events: Iterable[Event]) -> None:
        """Take in the events that joined.

        Raises:
            RecordError: one of them has something else than it always has.
        """
        for event in events:
            key, value = event["key"], event.get("value")
            try:
                self.last_ms = _moment_ms(event)
                if key in VALUES:
                    self._take(key, VALUES[key].model_validate(value))
                else:
                    self._take_other(key, value)
                if key == "init_start":
                    self.process = _Process.model_validate(value).process
            except ValidationError as error:  # a ValueError, too
                first = error.errors(include_url=False, include_context=False)[0]
                where = ".".join(map(str, first["loc"])) or "value"
                raise RecordError(f"line {event['seq'] + 1} of its events, {key}: {where}: {first['msg']}") from error
            except ValueError as error:
                raise RecordError(f"line {event['seq'] + 1} of its events, {key}: {error}") from error

    def _take(self, key: str, value: Value) -> None:
        match value:
            case InitStart():
                self._begin(value)
            case Model():
                self.steps = value.steps_per_epoch
            case Resume():
                self.hosts, self.epoch, self.step = tuple(value.hosts), value.epoch, value.step
                self.epochs_done, self.can_go_on = value.epoch - 1, True
            case Company():
                self.hosts = tuple(value.hosts)
            case Place():
                self.phase, self.epoch, self.step = "training", value.epoch, value.step
                if key == "epoch_start":
                    self.epochs_done = value.epoch - 1
                    self._epoch_began_ms = None if value.step else self.last_ms
            case EpochStop():
                self.step = self.steps = value.steps
                rate = value.samples / value.seconds if value.seconds else math.inf
                self.images_per_second = rate if math.isfinite(rate) else None
            case Evaluation():
                self.quality, self.epochs_done = value.value, value.epoch
            case Checkpoint():
                self._save(value)
            case _ if key == "eval_start":
                self.phase = "evaluating"

    def _take_other(self, key: str, value: Any) -> None:
        if key == "diverged":
            told = _Divergence.model_validate(value)
            self.diverged = f"diverged: {told.what} at epoch {told.epoch}, step {told.step}"
        elif key == "run_error":
            self.phase = "ended"
            self.error = _text(value.get("reason")) if isinstance(value, Mapping) else None
        elif key == "run_stop":
            self.phase = "ended"

    def _begin(self, value: InitStart) -> None:
        """Another process goes on where the last one has ended."""
        self.campaign, self.boot, self.phase, self.error = value.campaign, value.boot_id, "starting", None

    def _save(self, value: Checkpoint) -> None:
        self.can_go_on = True
        if self.epoch is not None and value.epoch > self.epoch:
            if self._epoch_began_ms is not None and self.last_ms is not None:
                self.pace_seconds = (self.last_ms - self._epoch_began_ms) / 1000
            self.epoch, self.step = value.epoch, 0


def tells_place(events: Sequence[Event]) -> bool:
    """Whether the end of a record says how far it has come and how fast, or has its beginning."""
    return any(event["key"] in ("dataset", "model", "run_start", "epoch_stop") for event in events)


def _moment_ms(event: Event) -> int:
    moment = int(event["time_ms"])
    if not 0 <= moment < 2**53:
        raise ValueError(f"time_ms is no moment: {moment}")
    return moment


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:_LONGEST_REASON]
