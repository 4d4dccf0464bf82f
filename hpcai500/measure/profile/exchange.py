"""What exchange threads did, as slices of the trace: torch's profiler watches the thread of the training loop only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from hpcai500.comm.timeline.spans import BucketSpan, StepSpan
from hpcai500.measure.profile.trace import EXCHANGE, Event

_MICROSECONDS = 1e6


class Spans:
    """Keeps the spans of buckets, of one rank."""

    def __init__(self) -> None:
        self.buckets: list[BucketSpan] = []

    def bucket(self, span: BucketSpan) -> None:
        """A bucket is done."""
        self.buckets.append(span)

    def step(self, span: StepSpan) -> None:
        """A step is done: its parts are in the trace already."""


def clock_offset() -> float:
    """What is added to `time.perf_counter` to get the seconds of `time.time`, which traces tell."""
    return time.time() - time.perf_counter()


def exchange_events(buckets: Sequence[BucketSpan], offset: float, base_nanoseconds: int, process: Any) -> list[Event]:
    """Events of `buckets` for the trace of `process` whose times count from `base_nanoseconds`; `offset` as above."""
    shift = offset - base_nanoseconds / 1e9
    numbers = sorted({span.bucket for span in buckets})
    names = [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": _thread(number), "args": {"name": _thread(number)}}
        for number in numbers
    ]
    return [*names, *(event for span in buckets for event in _events(span, shift, process))]


def _thread(bucket: int) -> str:
    return f"exchange, bucket {bucket}"


def _events(span: BucketSpan, shift: float, process: Any) -> Iterator[Event]:
    arguments = {"step": span.step, "gradient_bytes": span.gradient_bytes, "sent_bytes": span.sent_bytes}
    stages = (
        ("hpcai500:pack", span.copy_start, span.sent),
        ("hpcai500:all_reduce", span.sent, span.received),
        ("hpcai500:unpack", span.received, span.done),
    )
    for name, begin, end in stages:
        start = (begin + shift) * _MICROSECONDS
        yield {
            "ph": "X",
            "cat": EXCHANGE,
            "name": name,
            "pid": process,
            "tid": _thread(span.bucket),
            "ts": round(start, 3),
            "dur": round((end - begin) * _MICROSECONDS, 3),
            "args": arguments,
        }
