"""The progress of a run: RECORD/progress.json, which the run keeps up to date for `watch` and `status`.

It is small and always complete, so that the status of thousands of members can be shown without reading their logs. It
is not used for scoring. Records of older versions lack it: the end of their log gives the same (`Progress.fold`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpcai500.errors import RecordError
from hpcai500.files import write_unsynced
from hpcai500.methodology.events import (
    VALUES,
    Amount,
    Checkpoint,
    Count,
    EpochStop,
    Evaluation,
    Event,
    InitStart,
    Model,
    Number,
    Place,
    Resume,
    Text,
    Value,
    World,
)
from hpcai500.streams import say

PROGRESS = "progress.json"
# The pause between two writes during an epoch; events are written at once. Thousands of members share one metadata
# server, so their pauses grow from the shortest one, which shows progress in the first minute, to the longest one.
SHORTEST_SECONDS, _LONGEST_SECONDS = 2.0, 30.0
_LONGEST_REASON = 600
_KEYS = (
    "init_start", "model", "run_start", "run_resume", "prediction_start", "epoch_start", "interrupted", "epoch_stop",
    "eval_start", "eval_accuracy", "checkpoint",
)  # fmt: skip


class _Divergence(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)
    what: Text
    epoch: int
    step: int


class Progress(BaseModel):
    """The progress of a run, computed from the events of its record; times are UNIX milliseconds.

    Attributes:
        owner: token of the process that writes the record (`system.process`); "" if unknown.
        campaign: value of `init_start.campaign`; None if that event was not read.
        epoch: the current one, from 1.
        epochs_done: epochs trained and evaluated.
        step: updates done in this epoch.
        steps: updates in an epoch.
        loss: of a recent step, or the mean of the last epoch.
        quality: of the last evaluation.
        images_per_second: over the last epoch of training.
        pace_seconds: from the beginning of the last epoch to that of the next, evaluation and checkpoint included.
        can_go_on: whether there is a checkpoint.
        diverged: which number was not finite, and where.
        last_ms: time of the last event or step.
        alive_ms: when the process wrote this.
        beat_seconds: after which it writes again at the latest.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, defer_build=True)

    schema_: Literal["hpcai500-progress-1"] = Field(
        default="hpcai500-progress-1", validation_alias="schema", serialization_alias="schema"
    )
    owner: Text = ""
    campaign: dict[str, Any] | None = None
    hosts: tuple[Text, ...] = ()
    phase: Literal["starting", "training", "evaluating", "ended"] = "starting"
    epoch: Number | None = None
    epochs_done: Count = 0
    step: Count = 0
    steps: Count | None = None
    loss: float | None = None
    quality: float | None = None
    images_per_second: Amount | None = None
    pace_seconds: Amount | None = None
    can_go_on: bool = False
    diverged: Text | None = None
    error: Text | None = None
    epoch_began_ms: Count | None = None
    last_ms: Count | None = None
    alive_ms: Count | None = None
    beat_seconds: Amount | None = None

    def fold(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Add the next events of the record.

        Raises:
            RecordError: the value of an event does not fit its key.
        """
        for event in events:
            key, value = event["key"], event.get("value")
            try:
                self.last_ms = _moment_ms(event)
                if key in _KEYS:
                    self._take(key, VALUES[key].model_validate(value))
                else:
                    self._take_other(key, value)
            except ValidationError as error:  # a ValueError, too
                first = error.errors(include_url=False, include_context=False)[0]
                where = ".".join(map(str, first["loc"])) or "value"
                raise RecordError(f"line {event['seq'] + 1} of its events, {key}: {where}: {first['msg']}") from error
            except ValueError as error:
                raise RecordError(f"line {event['seq'] + 1} of its events, {key}: {error}") from error

    def _take(self, key: str, value: Value) -> None:
        match value:
            case InitStart():
                # Another process resumes where the last one ended.
                self.campaign, self.phase, self.error = value.campaign, "starting", None
            case Model():
                self.steps = value.steps_per_epoch
            case Resume():
                self.hosts, self.epoch, self.step = tuple(value.hosts), value.epoch, value.step
                self.epochs_done, self.can_go_on = value.epoch - 1, True
            case World():
                self.hosts = tuple(value.hosts)
            case Place():
                self.phase, self.epoch, self.step = "training", value.epoch, value.step
                if key == "epoch_start":
                    self.epochs_done = value.epoch - 1
                    self.epoch_began_ms = None if value.step else self.last_ms
            case EpochStop():
                self.step = self.steps = value.steps
                self.loss = self.loss if value.loss is None else value.loss
                rate = value.samples / value.seconds if value.seconds else math.inf
                self.images_per_second = rate if math.isfinite(rate) else None
            case Evaluation():
                self.quality, self.epochs_done = value.value, value.epoch
            case Checkpoint():
                self._save(value)
            case _ if key == "eval_start":
                self.phase = "evaluating"

    def _save(self, value: Checkpoint) -> None:
        self.can_go_on = True
        if self.epoch is not None and value.epoch > self.epoch:
            if self.epoch_began_ms is not None and self.last_ms is not None:
                self.pace_seconds = max(0, self.last_ms - self.epoch_began_ms) / 1000
            self.epoch, self.step = value.epoch, 0

    def _take_other(self, key: str, value: Any) -> None:
        if key == "diverged":
            found = _Divergence.model_validate(value)
            self.diverged = f"diverged: {found.what} at epoch {found.epoch}, step {found.step}"[:_LONGEST_REASON]
        elif key == "run_error":
            self.phase = "ended"
            reason = value.get("reason") if isinstance(value, Mapping) else None
            self.error = None if reason is None else str(reason)[:_LONGEST_REASON]
        elif key == "run_stop":
            self.phase = "ended"


def parse_progress(content: bytes, path: str) -> Progress:
    """The progress in the file `path`.

    Raises:
        RecordError: it contains something else.
    """
    try:
        return Progress.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise RecordError(f"{path}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from error


class ProgressFile:
    """Keeps RECORD/progress.json up to date while a process writes the record in `folder`.

    Args:
        owner: token of this process.
        events: those that are in the record already.
        is_one_of_many: whether many runs write such files at the same time.
    """

    def __init__(self, folder: Path, owner: str, events: Iterable[Event] = (), *, is_one_of_many: bool = False) -> None:
        self._pause_seconds, self._growth = SHORTEST_SECONDS, 1.5 if is_one_of_many else 1.0
        self._path = folder / PROGRESS
        self._progress = Progress(owner=owner)
        self._written_seconds = -math.inf
        self._is_kept, self._has_warned = True, False
        with self._only_warning():
            self._progress.fold(events)

    def take(self, event: Event) -> None:
        """Add the next event of the record."""
        if self._is_kept:
            with self._only_warning():
                self._progress.fold([event])
                self._write()

    def step(self, done: int, loss: float | None = None) -> None:
        """Note that `done` updates of this epoch are done; written only after a pause since the last write."""
        self._progress.step, self._progress.last_ms = done, time.time_ns() // 1_000_000
        if loss is not None and math.isfinite(loss):
            self._progress.loss = loss
        self.beat()

    def beat(self) -> float:
        """Show that the process lives, if the pause since the last write is over; returns the seconds until it is.

        Nothing is written before the first event.
        """
        left = self._written_seconds + self._pause_seconds - time.monotonic()
        if self._is_kept and -math.inf < left <= 0:
            self._pause_seconds = min(_LONGEST_SECONDS, self._growth * self._pause_seconds)
            with self._only_warning():
                self._write()
            left = self._pause_seconds
        return left if left > 0 else self._pause_seconds

    def _write(self) -> None:
        self._written_seconds = time.monotonic()
        self._progress.alive_ms, self._progress.beat_seconds = time.time_ns() // 1_000_000, self._pause_seconds
        write_unsynced(self._path, self._progress.model_dump_json(by_alias=True).encode() + b"\n")

    @contextmanager
    def _only_warning(self) -> Iterator[None]:
        """Turn errors into one warning: only the record matters, and this file must not end a run."""
        try:
            yield
        except OSError as error:
            self._warn(f"cannot be written: {error.strerror}")
        except (ValueError, RecordError) as error:
            self._is_kept = False
            self._warn(f"no longer kept: {error}")

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            say(f"warning: {self._path}: {why}; `watch` and `status` show less of this run")
        self._has_warned = True


def _moment_ms(event: Mapping[str, Any]) -> int:
    moment = int(event["time_ms"])
    if not 0 <= moment < 2**53:
        raise ValueError(f"time_ms is not a valid time: {moment}")
    return moment
