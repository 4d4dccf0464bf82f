"""Records the cost of communication (V2.0 section 7.3, Table 12), bucket by bucket, for tables and traces."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from hpcai500.comm.communicator import Communicator
from hpcai500.methodology.communication import STAGES, RankSummary, StageTally, StepMedians, stage_table
from hpcai500.methodology.statistics import Reservoir

# ----------------------------------------------------------------------------------------------------
# Spans: times of each bucket's stages, and the parts of each step's time.


@dataclass(frozen=True)
class BucketSpan:
    """One bucket of one step, on one rank. Times by `time.perf_counter`, in seconds.

    The time between each moment and the next is a stage of V2.0 Table 12 (`stage_seconds`).

    Attributes:
        step: number of the update, from 0, over the whole run.
        bucket: number of the bucket, in the order of sending.
        backward_start: the backward pass begins.
        first_ready: the first gradient of the bucket is ready.
        last_ready: the last one is ready (or the backward pass has ended without it).
        copy_start: packing begins, after earlier buckets are done.
        sent: the bucket is packed and compressed.
        received: the sum has arrived.
        done: the sum is unpacked into the gradients.
        gradient_bytes: size of its gradients in fp32, before compression.
        sent_bytes: bytes this rank sends for it, by the topology's count, after compression.
    """

    step: int
    bucket: int
    backward_start: float
    first_ready: float
    last_ready: float
    copy_start: float
    sent: float
    received: float
    done: float
    gradient_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class StepSpan:
    """One update on one rank, numbered from 0 over the whole run; `start` is by `time.perf_counter`.

    `communication_wait_seconds` is the wait for all-reduces after the backward pass: the part that is not overlapped.
    """

    step: int
    start: float
    seconds: float
    data_wait_seconds: float
    communication_wait_seconds: float

    @property
    def compute_seconds(self) -> float:
        """The remaining time: forward and backward pass, update."""
        return self.seconds - self.data_wait_seconds - self.communication_wait_seconds


class SpanSink(Protocol):
    """Receives spans. Called from the exchange threads and from the thread of the training loop."""

    def bucket(self, span: BucketSpan) -> None:
        """A bucket is done."""

    def step(self, span: StepSpan) -> None:
        """A step is done."""


# ----------------------------------------------------------------------------------------------------
# Clock alignment: offsets between the clocks of ranks, so that one trace can show all ranks.
#
# `time.perf_counter` has a different origin on each host. No rank leaves a barrier before the last has entered it: that
# moment is, by each rank's clock, between its own entering and leaving. Two ranks' intervals for the same moment bound
# the offset between their clocks, and every further barrier narrows the bounds.


_ROUNDS = 16
# Times of entering and leaving each barrier, by the clock of one rank.
Passages = list[tuple[float, float]]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class ClockAlignment:
    """Offsets to the clock of rank 0.

    Attributes:
        offsets_seconds: for each rank, what must be added to its clock to get that of rank 0.
        errors_seconds: for each rank, the largest possible error of its offset when measured; clocks drift apart by
            some microseconds a second.
    """

    offsets_seconds: tuple[float, ...]
    errors_seconds: tuple[float, ...]


def align_clocks(communicator: Communicator, rounds: int = _ROUNDS) -> ClockAlignment:
    """Measure the offsets between all ranks' clocks; all ranks call it together and get the same result.

    Takes `rounds` barriers; the error is at most half the shortest of them, and usually less. Ranks of one host read
    the same clock, so they get the same offset if the measurement allows it.

    Raises:
        RunError: another rank is lost.
    """
    communicator.barrier()
    passages: Passages = []
    for _ in range(rounds):
        entered = time.perf_counter()
        communicator.barrier()
        passages.append((entered, time.perf_counter()))
    return alignment(communicator.gather_objects(passages), communicator.hosts)


def alignment(passages: Sequence[Passages], hosts: Sequence[str]) -> ClockAlignment:
    """The offsets that follow from `passages`, by rank."""
    bounds = [_bounds(passages[0], own) for own in passages]
    bounds[0] = (0.0, 0.0)
    shared = {host: _common([bounds[rank] for rank, other in enumerate(hosts) if other == host]) for host in set(hosts)}
    # Two machines with the same name have no common offset; then each rank's own bounds are used.
    taken = [shared[host] or own for host, own in zip(hosts, bounds, strict=True)]
    return ClockAlignment(
        tuple((low + high) / 2 for low, high in taken), tuple((high - low) / 2 for low, high in taken)
    )


def _bounds(reference: Passages, own: Passages) -> Bounds:
    """Lowest and highest offset that all barriers allow."""
    low = max(other[0] - mine[1] for other, mine in zip(reference, own, strict=True))
    high = min(other[1] - mine[0] for other, mine in zip(reference, own, strict=True))
    # Clocks drift while they are measured, which can leave an empty interval a fraction of a microsecond wide.
    return (low, high) if low <= high else (high, low)


def _common(bounds: Sequence[Bounds]) -> Bounds | None:
    """The intersection of all bounds; None if it is empty."""
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    return (low, high) if low <= high else None


# ----------------------------------------------------------------------------------------------------
# The stages of V2.0 Table 12, from the moments at which a bucket passed them.
#
# Table 12 gives the average wall-clock time of each activity of one all-reduce. Here an all-reduce is that of one
# bucket in one step on one rank, and the average is over all buckets of all steps, each with the same weight, then
# over the ranks. The stages are:
#
#     wait for data         from the start of the backward pass to the first gradient of the bucket
#     wait for other data   from there to the last gradient of the bucket
#     queuing               until earlier buckets have released resources that only one can use at a time
#     memcpy in             packing and compressing into the send buffer
#     all-reduce            until the sum has arrived: the library's work, its negotiation if it has one, and waiting
#                           for slower ranks
#     memcpy out            decompressing and unpacking into the gradients
#
# Stages of one bucket follow each other without gaps. Those of different buckets overlap each other and the backward
# pass, which is their purpose, so their sum is not a part of the step's time. Negotiation cannot be seen from outside
# the library, so it is unknown here; Horovod's own timeline shows it.


# In the order of `stage_seconds`.
MEASURED_STAGES = STAGES[1:]


def stage_seconds(span: BucketSpan) -> tuple[float, float, float, float, float, float]:
    """Seconds of each of `MEASURED_STAGES`."""
    return (
        span.first_ready - span.backward_start,
        span.last_ready - span.first_ready,
        span.copy_start - span.last_ready,
        span.sent - span.copy_start,
        span.received - span.sent,
        span.done - span.received,
    )


def moments(span: BucketSpan) -> tuple[float, ...]:
    """The times at which stages begin and end: one more than there are stages."""
    return (
        span.backward_start,
        span.first_ready,
        span.last_ready,
        span.copy_start,
        span.sent,
        span.received,
        span.done,
    )


# ----------------------------------------------------------------------------------------------------
# The timeline of one rank: totals in constant space, and all spans of the first steps.


# All steps of a short run; of a long one, enough that a median's rank is off by about a percent.
_STEP_SAMPLES = 4096


@dataclass
class BucketTotals:
    """Totals of one bucket over all steps; seconds and bytes."""

    stages: StageTally = field(default_factory=lambda: StageTally(MEASURED_STAGES))
    gradient_bytes: int = 0
    sent_bytes: int = 0


@dataclass
class StepTotals:
    """Totals of all steps; seconds. `samples` are (step, data wait, compute, communication wait)."""

    count: int = 0
    seconds: float = 0.0
    communication_wait_seconds: float = 0.0
    samples: Reservoir[tuple[float, float, float, float]] = field(default_factory=lambda: Reservoir(_STEP_SAMPLES))


class Timeline:
    """A thread-safe `SpanSink` that keeps the data of one rank for tables and traces.

    All spans of the first `trace_steps` steps are kept; a resumed run traces its own first steps. Hold `lock` to read
    `steps` and `buckets` (by number) during training.
    """

    def __init__(self, trace_steps: int) -> None:
        self.lock = threading.Lock()
        self.steps = StepTotals()
        self.buckets: dict[int, BucketTotals] = {}
        self._all_reduce_seconds = 0.0
        self._trace_steps = trace_steps
        self._step_of_sums: int | None = None
        self._sums: list[tuple[float, float]] = []
        self._traced_until: int | None = None
        self._traced_buckets: list[BucketSpan] = []
        self._traced_steps: list[StepSpan] = []

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent since the start, by the topology's count."""
        with self.lock:
            return sum(bucket.sent_bytes for bucket in self.buckets.values())

    def bucket(self, span: BucketSpan) -> None:
        with self.lock:
            totals = self.buckets.get(span.bucket)
            if totals is None:
                totals = self.buckets[span.bucket] = BucketTotals()
            totals.stages.add(stage_seconds(span))
            totals.gradient_bytes += span.gradient_bytes
            totals.sent_bytes += span.sent_bytes
            if span.step != self._step_of_sums:
                self._add_up_sums()
                self._step_of_sums = span.step
            self._sums.append((span.sent, span.received))
            if self._is_traced(span.step):
                self._traced_buckets.append(span)

    def step(self, span: StepSpan) -> None:
        with self.lock:
            steps, wait = self.steps, span.communication_wait_seconds
            steps.count += 1
            steps.seconds += span.seconds
            steps.communication_wait_seconds += wait
            steps.samples.add((span.seconds, span.data_wait_seconds, span.compute_seconds, wait))
            if self._is_traced(span.step):
                self._traced_steps.append(span)

    @property
    def all_reduce_seconds(self) -> float:
        """Time in which at least one bucket was being all-reduced. The caller must hold `lock`."""
        self._add_up_sums()
        return self._all_reduce_seconds

    def _add_up_sums(self) -> None:
        """Add the union of one step's all-reduces, several of which may run at once and end in any order."""
        busy_until = 0.0
        for sent, received in sorted(self._sums):
            self._all_reduce_seconds += max(0.0, received - max(sent, busy_until))
            busy_until = max(busy_until, received)
        self._sums.clear()

    def traced(self) -> tuple[list[StepSpan], list[BucketSpan]]:
        """The spans of the first steps."""
        with self.lock:
            return list(self._traced_steps), list(self._traced_buckets)

    def _is_traced(self, step: int) -> bool:
        if self._traced_until is None:
            self._traced_until = step + self._trace_steps
        return step < self._traced_until


# ----------------------------------------------------------------------------------------------------
# The summary of one rank's timeline, as plain data to be gathered by the first rank.


def rank_summary(timeline: Timeline, rank: int, host: str) -> RankSummary:
    """The summary of `rank`, for `Communicator.gather_objects`, then `methodology.communication.merge`."""
    with timeline.lock:
        buckets = dict(sorted(timeline.buckets.items()))
        return {
            "rank": rank,
            "host": host,
            "steps": timeline.steps.count,
            "step_seconds": timeline.steps.seconds,
            "communication_wait_seconds": timeline.steps.communication_wait_seconds,
            "all_reduce_seconds": timeline.all_reduce_seconds,
            "gradient_bytes": sum(bucket.gradient_bytes for bucket in buckets.values()),
            "sent_bytes": sum(bucket.sent_bytes for bucket in buckets.values()),
            "all_reduces": sum(bucket.stages.count for bucket in buckets.values()),
            "medians": _medians(timeline.steps),
            "stages": stage_table([bucket.stages for bucket in buckets.values()]),
            "buckets": [
                {
                    "bucket": number,
                    "gradient_bytes": bucket.gradient_bytes / bucket.stages.count,
                    "sent_bytes": bucket.sent_bytes / bucket.stages.count,
                    "stages": bucket.stages.means(),
                }
                for number, bucket in buckets.items()
            ],
        }


def _medians(steps: StepTotals) -> StepMedians | None:
    if not steps.count:
        return None
    seconds, data, compute, wait = (statistics.median(column) for column in zip(*steps.samples, strict=True))
    return {
        "step_seconds": seconds,
        "data_wait_seconds": data,
        "compute_seconds": compute,
        "communication_wait_seconds": wait,
        "own_seconds": statistics.median(sample[1] + sample[2] for sample in steps.samples),
    }


# ----------------------------------------------------------------------------------------------------
# The first steps of all ranks as a trace for chrome://tracing and ui.perfetto.dev.
#
# Format: Google's Trace Event Format, complete events. A process is a rank, and its first thread is the training loop.
# Each bucket has its own thread, because buckets overlap and slices of one thread must be nested.


# With six slices each, of some 150 bytes, a browser still opens the file.
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
    """This rank's part of the trace, for `Communicator.gather_objects`.

    With many ranks fewer steps are kept, but at least one, so that all ranks together have at most `MOST_BUCKETS`
    bucket spans.
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
    """The content of the trace file; times are microseconds since the first span.

    The lengths of data wait, compute and communication wait within a step are measured, but not their positions: they
    are drawn one after the other.
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
    """All events of one rank; `shift` is added to its clock to get seconds since the first span."""
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
    # Both ends are rounded in the same way, so that nested slices stay nested.
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
