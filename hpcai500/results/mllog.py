"""Records in MLPerf's log format, for tools that read such logs: MLPerf's keys where they exist, else `hpcai500_…`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcai500.campaign.standing import ODD
from hpcai500.errors import RecordError
from hpcai500.layers import Hyperparameters
from hpcai500.methodology.passes import Timeline, better_of, last_pass, reaches
from hpcai500.recipe import global_batch, rulebook
from hpcai500.record import Event, Record
from hpcai500.results.score import score
from hpcai500.results.submission.claim import accelerators_of
from hpcai500.text import count

# ----------------------------------------------------------------------------------------------------
# One line of a log.


_MARK = ":::MLLOG "
# Prefix of keys that MLPerf does not have.
OURS = "hpcai500_"

Kind = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]


@dataclass(frozen=True)
class Line:
    """One event of a log: `time_ms` is UNIX time, `value` any JSON value, `metadata` has further facts."""

    key: str
    value: Any
    time_ms: int
    kind: Kind = "POINT_IN_TIME"
    metadata: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The line of the log, in ASCII.

        Raises:
            ValueError: a number is not finite, which JSON cannot express.
        """
        fields = {
            "namespace": "",
            "time_ms": self.time_ms,
            "event_type": self.kind,
            "key": self.key,
            "value": self.value,
            "metadata": self.metadata,
        }
        # Parsers look for the last mark in a line, so a mark inside a text (a host's name) must be escaped.
        return _MARK + json.dumps(fields, allow_nan=False).replace(":::MLL", "\\u003a::MLL")


# ----------------------------------------------------------------------------------------------------
# The start of a log: the submission and its hyper-parameters.


_PRECISION = {"bf16": "bfloat16"}
# MLPerf's name for training ResNet-50 v1.5 on ImageNet; it has none for our other tasks.
_RESNET = "resnet"
# What makes a net that one, and a set of images ImageNet.
_NET = ("model", "block", "depths", "width", "image_size")
_COUNTS = ("training_samples", "evaluation_samples", "classes")


def submission_facts(record: Record) -> Iterator[tuple[str, Any]]:
    """Keys and values about the submission.

    A record names no organisation. MLPerf's checker stops at an unknown benchmark, so the key is MLPerf's name of the
    task or absent.
    """
    tables, nodes = record.tables, record.system.get("nodes")
    benchmark = tables["benchmark"]
    yield f"{OURS}benchmark", benchmark
    if benchmark == "ic" and _is_mlperfs_task(record):
        yield "submission_benchmark", _RESNET
    yield "submission_division", "open"
    yield "submission_org", None
    yield "submission_platform", _platform(record, len(nodes)) if nodes else None
    yield "submission_status", "research"
    # No cache is cleared before a run.
    yield "cache_clear", False


def _is_mlperfs_task(record: Record) -> bool:
    """Whether a run of `ic` trained the edition's net at its resolution on the edition's images."""
    tables, rules = record.tables, rulebook(record.tables["edition"], "ic")
    net = rules.get("reference", {}).get("workload", {})
    facts: Mapping[str, Any] = next((event["value"] for event in record.events if event["key"] == "dataset"), {})
    return (
        tables["problem"]["dataset"] == rules["dataset"]
        and not facts.get("synthetic")
        and all(facts.get(name) == rules[name] for name in _COUNTS)
        and all(name in net and tables["workload"].get(name) == net[name] for name in _NET)
    )


def _platform(record: Record, nodes: int) -> str:
    """`2 nodes, accelerators: 16 x NVIDIA H100`, or `1 node, no accelerators; processors: 2 x AMD EPYC 9654`."""
    accelerators = accelerators_of(record)
    processors = re.fullmatch(r"none \((.*)\)", accelerators)
    devices = f"no accelerators; processors: {processors[1]}" if processors else f"accelerators: {accelerators}"
    return f"{count(nodes, 'node')}, {devices}"


def hyperparameters(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """MLPerf's keys for the recipe in plain `tables`, with their values."""
    policy, samples = tables["hyperparameters"], global_batch(tables)
    precision = tables["accelerator"]["precision"]
    yield "seed", policy["seed"]
    yield "global_batch_size", samples
    yield "gradient_accumulation_steps", policy["accumulation_steps"]
    yield "micro_batch_size", policy["batch_size"]
    yield "opt_name", policy["optimizer"]
    # MLPerf's base learning rate is the one after the warm-up, not the one for `base_batch`.
    yield "opt_base_learning_rate", Hyperparameters.model_construct(**policy).peak_learning_rate(samples)
    yield "opt_learning_rate_warmup_epochs", policy["warmup_epochs"]
    yield "opt_weight_decay", policy["weight_decay"]
    yield "lowest_numerical_precision_in_linear", _PRECISION.get(precision, precision)


# ----------------------------------------------------------------------------------------------------
# Events as lines of a log.


_ABORTED = "aborted"
# Event that begins a part of an epoch -> event that ends it.
_BEGINS = {"epoch_start": "epoch_stop", "eval_start": "eval_stop"}
_ENDS = frozenset(_BEGINS.values())


def mllog_lines(record: Record) -> list[str]:
    """The log of `record`, line by line; the run may have finished, failed, or been stopped and resumed.

    Raises:
        RecordError: an event is incomplete.
        WrongAnswerError: the record's result differs from what its events give.
    """
    try:
        log = _Log(record)
        lines = [line.text() for line in log.lines()]
    except ODD as error:
        raise RecordError(f"{record.path}: events or recipe are incomplete: {type(error).__name__} {error}") from error
    if record.status == "done":
        lines.append(Line(f"{OURS}result", score(record).as_json(), log.now_ms).text())
    return lines


class _Log:
    """Translates events, one after the other.

    Times are that of the first event and what elapsed since, as in a score: a clock that is set, or another machine's,
    changes neither their order nor a duration. `now_ms` is that of the last line.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._timeline = Timeline(record.events)
        self._seen: set[str] = set()
        # Open intervals: key of the event that ends one -> epoch.
        self._open: dict[str, int] = {}
        self.now_ms = 0

    def lines(self) -> Iterator[Line]:
        """All lines except the result."""
        for event in self._record.events:
            if event["key"] == "init_start":
                yield from self._broken_off()
            first = self._record.events[0]
            self.now_ms = first["time_ms"] + round(1000 * self._timeline.between(first, event))
            yield from self._translated(event)
            self._seen.add(event["key"])
        if self._record.status == "error":
            yield from self._broken_off()
            if "run_start" in self._seen and "run_stop" not in self._seen:
                yield Line("run_stop", None, self.now_ms, "INTERVAL_END", {"status": _ABORTED})

    def _translated(self, event: Event) -> Iterator[Line]:
        key: str = event["key"]
        value: Any = event.get("value")
        match key:
            case "init_start":
                yield from self._init_start(event)
            case "init_stop":
                # A log has one init_stop, before the clock starts.
                again = "init_stop" in self._seen
                yield self._line(event, f"{OURS}resume_{key}" if again else key, "INTERVAL_END", None)
            case "run_start":
                yield self._line(event, key, "INTERVAL_START", None)
                yield self._line(event, f"{OURS}company", "POINT_IN_TIME", value)
            case "run_stop":
                yield self._line(event, key, "INTERVAL_END", None, status=self._status(value["status"]))
            case "dataset":
                if "dataset" not in self._seen:
                    yield self._line(event, "train_samples", "POINT_IN_TIME", value["training_samples"])
                    yield self._line(event, "eval_samples", "POINT_IN_TIME", value["evaluation_samples"])
                yield self._line(event, f"{OURS}dataset", "POINT_IN_TIME", value)
            case "eval_accuracy":
                facts = {OURS + name: fact for name, fact in value.items() if name not in ("epoch", "value")}
                yield self._line(event, key, "POINT_IN_TIME", value["value"], epoch_num=value["epoch"], **facts)
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

    def _status(self, recorded: str) -> str:
        """That of `run_stop`: MLPerf's tools take a success for a run whose last quality is that of its target."""
        problem, qualities = self._record.tables["problem"], last_pass(self._record.events, "eval_accuracy")
        achieved = qualities[max(qualities)]["value"]["value"] if qualities else None
        is_reached = achieved is not None and reaches(achieved, problem["target_quality"], better_of(problem))
        return recorded if is_reached else _ABORTED

    def _init_start(self, event: Event) -> Iterator[Line]:
        again = "init_stop" in self._seen
        yield self._line(event, f"{OURS}resume_init_start" if again else "init_start", "INTERVAL_START", None)
        yield self._line(event, f"{OURS}init", "POINT_IN_TIME", event["value"])
        if "init_start" in self._seen:
            return
        tables = self._record.tables
        for key, fact in submission_facts(self._record):
            yield Line(key, fact, self.now_ms)
        for key, fact in hyperparameters(tables):
            yield Line(key, fact, self.now_ms)
        yield Line(f"{OURS}recipe", tables, self.now_ms)

    def _broken_off(self) -> Iterator[Line]:
        """Ends of the intervals that a failure, a signal or a crash cut off, at the last time in the record."""
        for key, epoch in self._open.items():
            yield Line(key, None, self.now_ms, "INTERVAL_END", {"epoch_num": epoch, "status": _ABORTED})
        self._open.clear()

    def _line(self, event: Event, key: str, kind: Kind, value: Any, **facts: Any) -> Line:
        """A line with its position in the record, where MLPerf's own loggers give the position in the source."""
        place = {"file": "events.jsonl", "lineno": event["seq"] + 1}
        return Line(key, value, self.now_ms, kind, {**place, **facts})
