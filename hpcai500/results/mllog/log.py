"""A record's events as a log in MLPerf's format: its words where it has one, `hpcai500_` before all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcai500.campaign.outcome import ODD
from hpcai500.chain import Event
from hpcai500.errors import RecordError
from hpcai500.record import Record
from hpcai500.results.mllog.line import OURS, Kind, Line
from hpcai500.results.mllog.preamble import hyperparameters, submission_facts
from hpcai500.results.score import score_record

_ABORTED = "aborted"
# What is done in an epoch, by the events that begin and end it.
_BEGINS = {"epoch_start": "epoch_stop", "eval_start": "eval_stop"}
_ENDS = frozenset(_BEGINS.values())


def mllog_lines(record: Record) -> list[str]:
    """The log of `record`, line by line: of one that is done, that failed, or that was stopped and gone on with.

    Raises:
        RecordError: an event lacks something that it should have.
        WrongAnswerError: the record's result is not what its events give.
    """
    try:
        lines = [line.text() for line in _Log(record).lines()]
    except ODD as error:
        raise RecordError(f"{record.path}: events or recipe lack something: {type(error).__name__} {error}") from error
    return [*lines, *(line.text() for line in _result(record))]


class _Log:
    """Translates events, one after the other."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._seen: set[str] = set()
        # Of what has begun and not ended: the event that ends it, with its number of the epoch.
        self._open: dict[str, int] = {}
        self._now_ms = 0

    def lines(self) -> Iterator[Line]:
        """All lines but those of the result."""
        for event in self._record.events:
            if event["key"] == "init_start":
                yield from self._broken_off()
            self._now_ms = event["time_ms"]
            yield from self._translated(event)
            self._seen.add(event["key"])
        if self._record.status == "error":
            yield from self._broken_off()
            if "run_start" in self._seen and "run_stop" not in self._seen:
                yield Line("run_stop", None, self._now_ms, "INTERVAL_END", {"status": _ABORTED})

    def _translated(self, event: Event) -> Iterator[Line]:
        key: str = event["key"]
        value: Any = event.get("value")
        match key:
            case "init_start":
                yield from self._init_start(event)
            case "init_stop":
                # There is one of it, before the clock starts.
                again = "init_stop" in self._seen
                yield self._line(event, f"{OURS}resume_{key}" if again else key, "INTERVAL_END", None)
            case "run_start":
                yield self._line(event, key, "INTERVAL_START", None)
                yield self._line(event, f"{OURS}company", "POINT_IN_TIME", value)
            case "run_stop":
                yield self._line(event, key, "INTERVAL_END", None, status=value["status"])
            case "dataset":
                if "dataset" not in self._seen:
                    yield self._line(event, "train_samples", "POINT_IN_TIME", value["training_samples"])
                    yield self._line(event, "eval_samples", "POINT_IN_TIME", value["evaluation_samples"])
                yield self._line(event, f"{OURS}dataset", "POINT_IN_TIME", value)
            case "eval_accuracy":
                yield self._evaluation(event)
            case _ if key in _BEGINS:
                self._open[_BEGINS[key]] = value["epoch"]
                yield self._line(event, key, "INTERVAL_START", None, epoch_num=value["epoch"])
            case _ if key in _ENDS:
                self._open.pop(key, None)
                if len(value) > 1:
                    facts = {name: fact for name, fact in value.items() if name != "epoch"}
                    yield self._line(event, f"{OURS}epoch", "POINT_IN_TIME", facts, epoch_num=value["epoch"])
                yield self._line(event, key, "INTERVAL_END", None, epoch_num=value["epoch"])
            case _:
                yield self._line(event, OURS + key, "POINT_IN_TIME", value)

    def _init_start(self, event: Event) -> Iterator[Line]:
        again = "init_stop" in self._seen
        yield self._line(event, f"{OURS}resume_init_start" if again else "init_start", "INTERVAL_START", None)
        yield self._line(event, f"{OURS}init", "POINT_IN_TIME", event["value"])
        if "init_start" in self._seen:
            return
        tables = self._record.tables
        for key, fact in submission_facts(self._record):
            yield Line(key, fact, self._now_ms)
        for key, fact in hyperparameters(tables):
            yield Line(key, fact, self._now_ms)
        yield Line(f"{OURS}recipe", tables, self._now_ms)

    def _evaluation(self, event: Event) -> Line:
        value = event["value"]
        facts = {OURS + name: fact for name, fact in value.items() if name not in ("epoch", "value")}
        return self._line(event, "eval_accuracy", "POINT_IN_TIME", value["value"], epoch_num=value["epoch"], **facts)

    def _broken_off(self) -> Iterator[Line]:
        """Ends of what a failure, a signal or a crash cut off, at the last time that the record knows."""
        for key, epoch in self._open.items():
            yield Line(key, None, self._now_ms, "INTERVAL_END", {"epoch_num": epoch, "status": _ABORTED})
        self._open.clear()

    def _line(self, event: Event, key: str, kind: Kind, value: Any, **facts: Any) -> Line:
        """With the place in the record that it comes from, as MLPerf's own loggers name the place in the source."""
        place = {"file": "events.jsonl", "lineno": event["seq"] + 1}
        return Line(key, value, event["time_ms"], kind, {**place, **facts})


def _result(record: Record) -> Sequence[Line]:
    """What a complete record amounts to."""
    if record.status != "done":
        return []
    result = score_record(record.path)
    return [Line(f"{OURS}result", result.as_json(), record.events[-1]["time_ms"])]
