"""All ranks' first steps as a trace that chrome://tracing and ui.perfetto.dev show.

Format: Google's Trace Event Format, complete events. A process is a rank, its first thread the training loop; below it
each bucket has a thread, because buckets overlap each other and a thread's slices may only lie inside one another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hpcai500.comm.timeline.clocks import ClockAlignment
from hpcai500.comm.timeline.recorder import Timeline
from hpcai500.comm.timeline.spans import BucketSpan, StepSpan
from hpcai500.comm.timeline.stages import MEASURED_STAGES, moments

# Six slices each, of some 150 bytes: what a browser still opens.
MOST_BUCKETS = 50_000
_MICROSECONDS = 1e6

Slice = dict[str, Any]


@dataclass(frozen=True)
class RankTrace:
    """The spans of one rank's first steps, by its own clock."""

    rank: int
    host: str
    steps: tuple[StepSpan, ...]
    buckets: tuple[BucketSpan, ...]


def rank_trace(timeline: Timeline, rank: int, host: str, world_size: int) -> RankTrace:
    """What this rank gives to the trace, for `Communicator.gather_objects`.

    Of many ranks fewer steps are kept, whole ones and at least one, so that all together have `MOST_BUCKETS` buckets.
    """
    steps, buckets = timeline.traced()
    a_step = sum(span.step == buckets[0].step for span in buckets) if buckets else 1
    kept_steps = max(1, MOST_BUCKETS // (world_size * a_step))
    first = min([span.step for span in steps] + [span.step for span in buckets], default=0)
    return RankTrace(
        rank,
        host,
        tuple(span for span in steps if span.step < first + kept_steps),
        tuple(span for span in buckets if span.step < first + kept_steps),
    )


def chrome_trace(traces: Sequence[RankTrace], clocks: ClockAlignment) -> bytes:
    """The trace file of all `traces`; `clocks` was measured when the ranks met.

    Times are microseconds since the first span. How long data wait, compute and communication wait took within a step
    of the training loop is measured; their place is not: they are drawn one after the other.
    """
    ordered = sorted(traces, key=lambda trace: trace.rank)
    starts = [_first_moment(trace) + clocks.offsets_seconds[trace.rank] for trace in ordered if _has_spans(trace)]
    origin = min(starts, default=0.0)
    events = [event for trace in ordered for event in _rank_events(trace, clocks.offsets_seconds[trace.rank] - origin)]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"clock_error_seconds": max(clocks.errors_seconds, default=0.0)},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _has_spans(trace: RankTrace) -> bool:
    return bool(trace.steps or trace.buckets)


def _first_moment(trace: RankTrace) -> float:
    return min((*(span.start for span in trace.steps), *(span.backward_start for span in trace.buckets)))


def _rank_events(trace: RankTrace, shift: float) -> Iterator[Slice]:
    """Everything of one rank; `shift` turns its clock into seconds since the trace's begin."""
    yield _named("process_name", trace.rank, 0, f"rank {trace.rank} on {trace.host}")
    yield {"ph": "M", "name": "process_sort_index", "pid": trace.rank, "args": {"sort_index": trace.rank}}
    yield _named("thread_name", trace.rank, 0, "training loop")
    for bucket in sorted({span.bucket for span in trace.buckets}):
        yield _named("thread_name", trace.rank, bucket + 1, f"communication, bucket {bucket}")
    for step in trace.steps:
        yield from _step_events(step, trace.rank, shift)
    for span in trace.buckets:
        yield from _bucket_events(span, trace.rank, shift)


def _step_events(span: StepSpan, rank: int, shift: float) -> Iterator[Slice]:
    parts = {
        "data wait": span.data_wait_seconds,
        "compute": span.compute_seconds,
        "communication wait": span.communication_wait_seconds,
    }
    begin = span.start + shift
    last = begin + span.seconds
    yield _slice(f"step {span.step}", rank, 0, begin, last, {"step": span.step})
    for name, seconds in parts.items():
        end = min(begin + seconds, last)
        if seconds > 0:
            yield _slice(name, rank, 0, begin, end, {"step": span.step})
        begin = end


def _bucket_events(span: BucketSpan, rank: int, shift: float) -> Iterator[Slice]:
    arguments = {
        "step": span.step,
        "bucket": span.bucket,
        "gradient_bytes": span.gradient_bytes,
        "sent_bytes": span.sent_bytes,
    }
    for name, (begin, end) in zip(MEASURED_STAGES, pairwise(moments(span)), strict=True):
        if end > begin:
            yield _slice(name.replace("_", " "), rank, span.bucket + 1, begin + shift, end + shift, arguments)


def _slice(name: str, rank: int, thread: int, begin: float, end: float, arguments: dict[str, Any]) -> Slice:
    # Both ends rounded alike: what lies inside another slice still does.
    start, stop = round(begin * _MICROSECONDS, 3), round(end * _MICROSECONDS, 3)
    return {
        "ph": "X",
        "name": name,
        "cat": "communication" if thread else "training",
        "pid": rank,
        "tid": thread,
        "ts": start,
        "dur": round(stop - start, 3),
        "args": arguments,
    }


def _named(kind: str, rank: int, thread: int, name: str) -> Slice:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}
