"""`hpcai500 timeline`: what communication cost, of a record or of Horovod's own timeline file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcai500.chain import iterate
from hpcai500.errors import RecordError, UsageError
from hpcai500.files import write_atomically
from hpcai500.methodology.communication import rank_name
from hpcai500.record import Record, read_record
from hpcai500.results.communication_tables import stage_lines, straggler_lines
from hpcai500.results.horovod_timeline import HorovodTimeline, read_horovod_timeline
from hpcai500.results.show import scaled

_KEYS = {
    "steps", "all_reduces", "communication_fraction", "overlap", "bytes_per_step", "stages", "ranks", "stragglers",
}  # fmt: skip
_TRACE = "trace/communication.json"


def timeline_document(record: Path | None, horovod: Path | None) -> dict[str, Any]:
    """What `hpcai500 timeline` prints as JSON: the event `communication` of `record`, or the stages of Horovod's file.

    Raises:
        UsageError: not exactly one of them is given.
        RecordError: it is no record, or communication was not measured in it.
        DataError: Horovod's file cannot be read, is damaged, or holds no all-reduce.
    """
    if (record is None) == (horovod is None):
        raise UsageError("timeline: give a record, or Horovod's timeline file with --horovod FILE")
    if horovod is not None:
        return asdict(read_horovod_timeline(horovod))
    assert record is not None
    return _communication(read_record(record))


def timeline_lines(document: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    if "ranks" in document:
        yield from _record_lines(document)
    else:
        yield from _horovod_lines(HorovodTimeline(**document))


def export_trace(record: Path, target: Path) -> None:
    """Write the record's trace to `target`, for ui.perfetto.dev or chrome://tracing.

    Raises:
        RecordError: it has none, it is not the one that the run wrote, or `target` cannot be written.
    """
    events = read_record(record).events
    path = record / _TRACE
    written = [event["value"] for event in iterate(events, "trace") if event["value"].get("file") == _TRACE]
    if not written or not path.is_file():
        raise RecordError(
            f"{path}: no trace: the run had one process, has not got so far, or communication.trace_steps was 0"
        )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != written[-1]["sha256"]:
        raise RecordError(f"{path}: not the trace that the events name: it was changed")
    try:
        write_atomically(target, content)
    except OSError as error:
        raise RecordError(f"{target}: cannot be written: {error.strerror}") from error


def _communication(record: Record) -> dict[str, Any]:
    found = list(iterate(record.events, "communication"))
    if not found:
        raise RecordError(
            f"{record.path}: no event communication: the run had one process, has not got so far, or is of a version "
            "that did not measure it"
        )
    value = found[-1]["value"]
    if not isinstance(value, dict) or not value.keys() >= _KEYS:
        raise RecordError(f"{record.path}/events.jsonl:{found[-1]['seq'] + 1}: the event communication lacks something")
    return value


def _record_lines(value: dict[str, Any]) -> Iterator[str]:
    counts = f"{value['all_reduces']} all-reduces in {value['steps']} steps on each of {len(value['ranks'])} ranks"
    yield f"one all-reduce of a bucket, mean over {counts}"
    yield from stage_lines(value["stages"])
    yield ""
    yield "medians over the steps of each rank"
    yield from straggler_lines(value["ranks"])
    yield ""
    yield f"communication fraction  {_percent(value['communication_fraction'])} of step time is waiting for sums"
    yield f"overlap                 {_percent(value['overlap'])} of all-reduce time is hidden"
    sizes = value["bytes_per_step"]
    if sizes["gradient"] is not None:
        gradient, sent = scaled(sizes["gradient"], "B"), scaled(sizes["sent"], "B")
        yield f"bytes                   {gradient} of gradients a rank and step, {sent} sent"
    if network := value.get("network"):
        ratio = "" if network["ratio"] is None else f"{network['ratio']:.3f} of the count over {network['over']}: "
        yield f"network counters        {ratio}{network['verdict']}"
    slow = [rank for rank in value["ranks"] if rank["straggler"]]
    names = ", ".join(rank_name(rank) for rank in slow) or ("unknown" if value["stragglers"] is None else "none")
    yield f"stragglers              {names}"


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
