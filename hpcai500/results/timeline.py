"""`hpcai500 timeline`: the cost of communication, from a record or from Horovod's timeline file."""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from hpcai500.errors import DataError, RecordError, UsageError
from hpcai500.files import write_atomically
from hpcai500.methodology.communication import STAGES, StageTable, StageTally, rank_name, stage_table, with_stragglers
from hpcai500.methodology.result import split_of_run
from hpcai500.record import Record, iterate, read_record
from hpcai500.text import scaled

# ----------------------------------------------------------------------------------------------------
# The tables of V2.0 section 7.3.2: the time of each stage, and which rank slows the others down.


_LABELS = {
    "negotiation": "negotiation",
    "wait_for_data": "wait for data",
    "wait_for_other_data": "wait for other data",
    "queuing": "queuing",
    "memcpy_in": "memcpy in",
    "all_reduce": "all-reduce",
    "memcpy_out": "memcpy out",
}
_COLUMNS = {
    "step ms": "step_seconds",
    "data wait": "data_wait_seconds",
    "compute": "compute_seconds",
    "comm wait": "communication_wait_seconds",
    "own": "own_seconds",
}
# Of more ranks, the slowest are shown.
_MOST_RANKS = 16
_UNKNOWN = "-"


def stage_lines(stages: StageTable) -> Iterator[str]:
    """V2.0 Table 12: milliseconds of each stage in one all-reduce, and its share of their sum."""
    means = {name: times["mean_seconds"] for name, times in stages.items() if times is not None}
    total = sum(means.values())
    yield f"{'stage':20} {'mean ms':>10} {'median ms':>10} {'p95 ms':>10} {'share':>7}"
    for name in STAGES:
        times = stages.get(name)
        if times is None:
            yield f"{_LABELS[name]:20} {_UNKNOWN:>10} {_UNKNOWN:>10} {_UNKNOWN:>10} {_UNKNOWN:>7}"
            continue
        numbers = [times["mean_seconds"], times["median_seconds"], times["p95_seconds"]]
        share = f"{means[name] / total:.1%}" if total else _UNKNOWN
        yield f"{_LABELS[name]:20} " + " ".join(f"{_milliseconds(seconds):>10}" for seconds in numbers) + f" {share:>7}"
    yield f"{'sum':20} {_milliseconds(total):>10}"


def straggler_lines(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Medians over the steps of each rank in milliseconds, stragglers marked; of many ranks only the slowest."""
    shown = sorted(ranks, key=lambda rank: -(rank["own_seconds"] or 0.0))[:_MOST_RANKS]
    width = max([len("host"), *(len(str(rank["host"])) for rank in shown)])
    titles = " ".join(f"{title:>10}" for title in _COLUMNS)
    yield f"{'rank':>6}  {'host':{width}} {titles}"
    for rank in sorted(shown, key=lambda rank: rank["rank"]):
        times = " ".join(f"{_milliseconds(rank[name]):>10}" for name in _COLUMNS.values())
        mark = "  STRAGGLER" if rank["straggler"] else ""
        yield f"{rank['rank']:>6}  {rank['host']:{width}} {times}{mark}"
    if len(ranks) > len(shown):
        yield f"the {len(shown)} slowest of {len(ranks)} ranks; --json has all of them"


def _milliseconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else f"{seconds * 1000:.3f}"


# ----------------------------------------------------------------------------------------------------
# A streaming reader of trace files, which may be large, and cut off because their writer was killed.


_CHUNK_BYTES = 1 << 20
# Longest event of a trace; longer text without an end is damaged.
_LONGEST_EVENT = 8 << 20
_OPENING = re.compile(r"\s*\[")
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s,]*")
# Longest token for which json reports the position of its start: `false`, or an escape (backslash, u and four digits).
_LONGEST_WORD = 6
_UNTERMINATED = "Unterminated string"

Event = dict[str, Any]


class JsonEvents:
    """The objects of the JSON array in the file `path`, one by one, in bounded memory; can be iterated once.

    After the last one, `cut_off` is True if the file ended inside an event, which is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_off = False
        self._text = ""
        self._at = 0
        self._event_at = 0
        self._line = 1
        self._gone = 0
        self._decoder = json.JSONDecoder()

    def __iter__(self) -> Iterator[Event]:
        """Each event.

        Raises:
            DataError: the file cannot be read, or is not an array of objects; with line and character.
        """
        try:
            with self.path.open("rb") as stream:
                yield from self._events(stream)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error

    def place(self) -> str:
        """File, line and character of the event that was read last, for error messages."""
        return self._place(self._event_at)

    def _events(self, stream: BufferedReader) -> Iterator[Event]:
        pieces = self._pieces(stream)
        self._more(pieces)
        self._skip(_OPENING)
        while True:
            self._skip(_BETWEEN)
            if self._at == len(self._text):
                if not self._more(pieces):
                    return
            elif self._text[self._at] == "]":
                self._require_end(pieces)
                return
            else:
                found = self._next(pieces)
                if found is None:
                    return
                yield found

    def _next(self, pieces: Iterator[str]) -> Event | None:
        """The event that begins here; None if the file ends inside it."""
        while True:
            try:
                event, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # More text can only fix an error at the end of the text so far, or in an open string or word.
                is_open = error.pos >= len(self._text) - _LONGEST_WORD or error.msg.startswith(_UNTERMINATED)
                if not is_open or len(self._text) - self._at > _LONGEST_EVENT:
                    raise self._damaged(error.msg, error.pos) from error
                if self._more(pieces):
                    continue
                self.cut_off = True
                return None
            if not isinstance(event, dict):
                raise self._damaged(f"expected an event, got {type(event).__name__}", self._at)
            self._event_at, self._at = self._at, end
            return event

    def _require_end(self, pieces: Iterator[str]) -> None:
        self._at += 1
        while True:
            self._skip(_SPACE)
            if self._at < len(self._text):
                raise self._damaged("text after the closing bracket", self._at)
            if not self._more(pieces):
                return

    def _skip(self, what: re.Pattern[str]) -> None:
        found = what.match(self._text, self._at)
        if found is None:
            raise self._damaged("expected an array of events, `[` first", self._at)
        self._at = found.end()

    def _more(self, pieces: Iterator[str]) -> bool:
        """Read the next piece and drop the text that was consumed; False at the end of the file."""
        piece = next(pieces, "")
        self._line += self._text.count("\n", 0, self._at)
        self._gone += self._at
        self._text = self._text[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _pieces(self, stream: BufferedReader) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        read = 0
        try:
            while content := stream.read(_CHUNK_BYTES):
                text = decoder.decode(content)
                read += len(content)
                if text:
                    yield text
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path}: not a text file in UTF-8 ({error.reason} at byte {read + error.start})"
            ) from error

    def _place(self, at: int) -> str:
        return f"{self.path}:{self._line + self._text.count(chr(10), 0, at)} (character {self._gone + at})"

    def _damaged(self, what: str, at: int) -> DataError:
        return DataError(f"{self._place(at)}: damaged, or not a timeline: {what}")


# ----------------------------------------------------------------------------------------------------
# Horovod's own timeline file (HOROVOD_TIMELINE=FILE) as the table of V2.0 Table 12.
#
# Horovod's first rank writes a trace of its tensors, each a "process". An all-reduce of one tensor is a slice
# NEGOTIATE_ALLREDUCE, then a slice ALLREDUCE with its activities inside. Fused tensors have the same activities at the
# same time; each counts, as in the paper's table (V2.0 section 7.3.2).


# With so many samples a file's median is within a percent of the true one.
_SAMPLES = 4096
_ALL_REDUCE, _NEGOTIATION = "ALLREDUCE", "NEGOTIATE_ALLREDUCE"
# Names of Horovod 0.28 (its common.h): whole here, by their beginning or end below.
_STAGE_OF = {
    "WAIT_FOR_DATA": "wait_for_data",
    "WAIT_FOR_OTHER_TENSOR_DATA": "wait_for_other_data",
    "QUEUE": "queuing",
}
_COPIES = {"MEMCPY_IN_": "memcpy_in", "MEMCPY_OUT_": "memcpy_out"}
# A hierarchical all-reduce has several collectives.
_COLLECTIVES = ("_ALLREDUCE", "_REDUCESCATTER", "_REDUCE", "_ALLGATHER", "_BCAST")


@dataclass(frozen=True)
class HorovodTimeline:
    """The content of a file.

    Attributes:
        tensors: number of tensors that were all-reduced.
        all_reduces: complete all-reduces of one tensor each.
        stages: None for a stage that does not occur (waiting for data and queuing are of GPUs only).
        other: seconds by name of other activities (setting up buffers and communicators).
        cut_off: whether the file ends inside an event, because its writer was killed.
    """

    tensors: int
    all_reduces: int
    stages: StageTable
    other: dict[str, float]
    cut_off: bool


@dataclass
class _Tensor:
    """A tensor while the file is read; `open` holds names and times in microseconds."""

    open: list[tuple[str, float]] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    all_reduces: int = 0


class _Reader:
    def __init__(self) -> None:
        self.tensors: dict[object, _Tensor] = defaultdict(_Tensor)
        self.rows = StageTally(STAGES, samples=_SAMPLES)
        self.other: dict[str, float] = defaultdict(float)
        self.seen: set[str] = set()

    def take(self, event: Event, events: JsonEvents) -> None:
        phase = event.get("ph")
        if phase not in ("B", "E"):
            return
        moment, process = event.get("ts"), event.get("pid")
        if not isinstance(moment, int | float) or not isinstance(process, int | str):
            raise DataError(
                f"{events.place()}: not an event of Horovod's timeline: ts or pid is missing or of a wrong type"
            )
        tensor = self.tensors[process]
        if phase == "B":
            tensor.open.append((str(event.get("name")), moment))
        elif tensor.open:
            # A timeline started during the run begins with the ends of open slices.
            name, begin = tensor.open.pop()
            if moment < begin:
                raise DataError(f"{events.place()}: {name} ends before it begins")
            self._end(tensor, name, (moment - begin) / 1e6)

    def _end(self, tensor: _Tensor, name: str, seconds: float) -> None:
        if name == _NEGOTIATION and not tensor.open:
            tensor.stages.clear()
            tensor.stages["negotiation"] = seconds
        elif name == _ALL_REDUCE and not tensor.open:
            self.seen |= tensor.stages.keys()
            self.rows.add(tuple(tensor.stages[stage] for stage in STAGES))
            tensor.stages.clear()
            tensor.all_reduces += 1
        elif tensor.open and tensor.open[0][0] == _ALL_REDUCE:
            stage = _stage_of(name)
            if stage:
                tensor.stages[stage] += seconds
            else:
                self.other[name] += seconds


def read_horovod_timeline(path: Path) -> HorovodTimeline:
    """The stages of all all-reduces in Horovod's timeline file at `path`; other operations are ignored.

    The mean of a stage is over all all-reduces, those without it included, so that the means add up to the time from
    the first rank's request to the result. A killed job leaves an array without an end and a last event that is cut
    off; these are not damage.

    Raises:
        DataError: the file cannot be read, is damaged (with line and character), or has no all-reduce.
    """
    events, reader = JsonEvents(path), _Reader()
    for event in events:
        reader.take(event, events)
    if not reader.rows.count:
        raise DataError(
            f"{path}: no complete all-reduce: expected a file that Horovod wrote during training with "
            "HOROVOD_TIMELINE=FILE (or horovodrun --timeline-filename FILE)"
        )
    table = stage_table([reader.rows])
    return HorovodTimeline(
        tensors=sum(tensor.all_reduces > 0 for tensor in reader.tensors.values()),
        all_reduces=reader.rows.count,
        stages={name: times if name in reader.seen else None for name, times in table.items()},
        other=dict(reader.other),
        cut_off=events.cut_off,
    )


def _stage_of(activity: str) -> str | None:
    if activity in _STAGE_OF:
        return _STAGE_OF[activity]
    for beginning, stage in _COPIES.items():
        if activity.startswith(beginning):
            return stage
    return "all_reduce" if activity.endswith(_COLLECTIVES) else None


# ----------------------------------------------------------------------------------------------------
# The command: a document from either source, as JSON and as text.


_KEYS = {
    "steps", "all_reduces", "overlap", "bytes_per_step", "stages", "ranks", "stragglers",
}  # fmt: skip
_TRACE = "trace/communication.json"


def timeline_document(record: Path | None, horovod: Path | None) -> dict[str, Any]:
    """What `hpcai500 timeline` prints as JSON: the event `communication` of `record`, or the stages of Horovod's file.

    With the event comes `communication_fraction`, the share of the record's steps that waits for sums.

    Raises:
        UsageError: not exactly one of them is given.
        RecordError: it is not a record, or communication was not measured.
        DataError: Horovod's file cannot be read, is damaged, or has no all-reduce.
    """
    if (record is None) == (horovod is None):
        raise UsageError("timeline: give a record, or Horovod's timeline file with --horovod FILE")
    if horovod is not None:
        return asdict(read_horovod_timeline(horovod))
    assert record is not None
    return _communication(read_record(record))


def timeline_lines(document: dict[str, Any]) -> Iterator[str]:
    """The document as text."""
    if "ranks" in document:
        yield from _record_lines(document)
    else:
        yield from _horovod_lines(HorovodTimeline(**document))


def export_trace(record: Path, target: Path) -> None:
    """Write the record's trace to `target`, for ui.perfetto.dev or chrome://tracing.

    Raises:
        RecordError: it has none, the trace was changed, or `target` cannot be written.
    """
    events = read_record(record).events
    path = record / _TRACE
    written = [event["value"] for event in iterate(events, "trace") if event["value"].get("file") == _TRACE]
    if not written or not path.is_file():
        raise RecordError(
            f"{path}: no trace: the run had one process, ended too early, or communication.trace_steps was 0"
        )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != written[-1]["sha256"]:
        raise RecordError(f"{path}: changed after the run: its hash is not the one in the events")
    try:
        write_atomically(target, content)
    except OSError as error:
        raise RecordError(f"{target}: cannot be written: {error.strerror}") from error


def _communication(record: Record) -> dict[str, Any]:
    found = list(iterate(record.events, "communication"))
    if not found:
        raise RecordError(
            f"{record.path}: no event communication: the run had one process, ended too early, or is of a version that "
            "did not measure it"
        )
    value = found[-1]["value"]
    if not isinstance(value, dict) or not value.keys() >= _KEYS:
        raise RecordError(f"{record.path}/events.jsonl:{found[-1]['seq'] + 1}: the event communication is incomplete")
    split = split_of_run(record.tables, record.events)
    stops = [event["value"]["seconds"] for event in iterate(record.events, "suspended")]
    return {
        **with_stragglers(value),
        "communication_fraction": split.communication if split else None,
        "suspended_seconds": math.fsum(stops),
    }


def _record_lines(value: dict[str, Any]) -> Iterator[str]:
    where = f"{value['steps']} steps on each of {len(value['ranks'])} ranks"
    if value["all_reduces"] is None:
        yield f"unknown communication in {where}: torch does that of a sharded model within its passes"
    else:
        yield f"one all-reduce of a bucket, mean over {value['all_reduces']} all-reduces in {where}"
        yield from stage_lines(value["stages"])
    yield ""
    yield "medians over the steps of each rank"
    yield from straggler_lines(value["ranks"])
    yield ""
    yield f"communication fraction  {_percent(value['communication_fraction'])} of step time waits for all-reduce"
    yield f"overlap                 {_percent(value['overlap'])} of all-reduce time is hidden"
    sizes = value["bytes_per_step"]
    if sizes["gradient"] is not None:
        yield f"bytes                   {bytes_in_words(sizes['gradient'], sizes['sent'])}"
    if network := value.get("network"):
        ratio = "" if network["ratio"] is None else f"{network['ratio']:.3f} of the count over {network['over']}: "
        yield f"network counters        {ratio}{network['verdict']}"
    if stopped := value["suspended_seconds"]:
        yield f"suspended               {stopped:.1f} s, which only the medians leave out"
    slow = [rank for rank in value["ranks"] if rank["straggler"]]
    names = ", ".join(rank_name(rank) for rank in slow) or ("unknown" if value["stragglers"] is None else "none")
    yield f"stragglers              {names}"


def bytes_in_words(gradient: float, sent: float) -> str:
    """The bytes of gradients that a rank exchanges in a step, and those that it sends for them."""
    if not gradient:
        return "no gradients are sent, as each stage is on one rank; what stages pass on is not counted"
    return f"{scaled(gradient, 'B')} of gradients a rank and step, {scaled(sent, 'B')} sent for them"


def _horovod_lines(timeline: HorovodTimeline) -> Iterator[str]:
    yield (
        f"one all-reduce of a tensor, mean over {timeline.all_reduces} all-reduces of {timeline.tensors} tensors, as "
        "Horovod's first rank saw them"
    )
    yield from stage_lines(timeline.stages)
    for name, seconds in timeline.other.items():
        yield f"not in the table: {name}, {seconds * 1000:.3f} ms in all"
    if timeline.cut_off:
        yield "the file ends inside an event: its writer was killed"


def _percent(share: float | None) -> str:
    return "unknown part" if share is None else f"{share:.1%}"
