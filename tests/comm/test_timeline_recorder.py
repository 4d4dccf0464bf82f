"""The recorder: what it adds up, what it keeps, and that two threads may feed it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.comm.timeline import (
    MEASURED_STAGES,
    BucketSpan,
    SpanSink,
    StepSpan,
    Timeline,
    moments,
    rank_summary,
    stage_seconds,
)
from hpcai500.methodology.communication import merge


def bucket(step: int, number: int = 0, *, at: float = 0.0, sent: float = 10.0, received: float = 14.0) -> BucketSpan:
    return BucketSpan(step, number, at, at + 1, at + 3, at + 6, at + sent, at + received, at + received + 5, 400, 100)


def step(number: int, seconds: float = 1.0, data: float = 0.25, wait: float = 0.125) -> StepSpan:
    return StepSpan(number, 0.0, seconds, data, wait)


def test_a_timeline_is_a_sink() -> None:
    sink: SpanSink = Timeline(0)
    sink.bucket(bucket(0))
    sink.step(step(0))


def test_stages_are_what_lies_between_the_moments() -> None:
    span = bucket(0, at=100.0)
    assert stage_seconds(span) == (1, 2, 3, 4, 4, 5)
    later, earlier = moments(span)[1:], moments(span)[:-1]
    assert tuple(b - a for a, b in zip(earlier, later, strict=True)) == stage_seconds(span)
    assert len(MEASURED_STAGES) == len(stage_seconds(span))


def test_a_summary_by_hand() -> None:
    timeline = Timeline(trace_steps=1)
    for number in range(3):
        timeline.bucket(bucket(number, 0, at=100.0 * number))
        timeline.bucket(bucket(number, 1, at=100.0 * number, sent=20.0, received=30.0))
        timeline.step(step(number, seconds=number + 1.0))
    summary = rank_summary(timeline, 3, "node7")
    assert (summary["rank"], summary["host"], summary["steps"], summary["all_reduces"]) == (3, "node7", 3, 6)
    assert (summary["gradient_bytes"], summary["sent_bytes"], timeline.sent_bytes) == (2400, 600, 600)
    assert (summary["step_seconds"], summary["communication_wait_seconds"]) == (6.0, 0.375)
    assert summary["all_reduce_seconds"] == pytest.approx(3 * (4 + 10))
    all_reduce = summary["stages"]["all_reduce"]
    assert all_reduce is not None
    assert all_reduce["mean_seconds"] == pytest.approx(7)
    assert summary["stages"]["negotiation"] is None
    assert [one["stages"]["memcpy_in"] for one in summary["buckets"]] == pytest.approx([4, 14])
    assert summary["medians"] == {
        "step_seconds": 2.0,
        "data_wait_seconds": 0.25,
        "compute_seconds": 1.625,
        "communication_wait_seconds": 0.125,
        "own_seconds": 1.875,
    }


def test_a_timeline_without_steps_is_all_unknown() -> None:
    value = merge([rank_summary(Timeline(5), 0, "n"), rank_summary(Timeline(5), 1, "n")])
    assert value["communication_fraction"] is value["overlap"] is value["stages"]["all_reduce"] is None


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=30))
def test_busy_time_is_the_union_of_the_sums_under_way(gaps: list[tuple[float, float]]) -> None:
    timeline, begin, intervals = Timeline(0), 0.0, []
    for number, (gap, length) in enumerate(gaps):
        begin += gap
        intervals.append((begin, begin + length))
        timeline.bucket(BucketSpan(0, number, 0, 0, 0, 0, begin, begin + length, begin + length, 0, 0))
    covered, reached = 0.0, 0.0
    for low, high in sorted(intervals):
        covered += max(0.0, high - max(low, reached))
        reached = max(reached, high)
    assert timeline.all_reduce_seconds == pytest.approx(covered)


@pytest.mark.parametrize("first", [0, 1000])
def test_all_spans_of_the_first_steps_are_kept_and_no_others(first: int) -> None:
    timeline = Timeline(trace_steps=2)
    for number in range(first, first + 5):
        timeline.bucket(bucket(number))
        timeline.step(step(number))
    steps, buckets = timeline.traced()
    assert [span.step for span in steps] == [span.step for span in buckets] == [first, first + 1]


def test_what_it_keeps_does_not_grow_with_the_run() -> None:
    timeline = Timeline(trace_steps=1)
    for number in range(6000):
        timeline.bucket(bucket(number))
        timeline.step(step(number))
    assert len(timeline.buckets[0].stages.samples.kept) == 128
    assert len(timeline.steps.samples.kept) == 4096
    assert (timeline.steps.count, timeline.buckets[0].stages.count) == (6000, 6000)


def test_no_span_is_lost_between_two_threads() -> None:
    timeline, spans = Timeline(trace_steps=0), 3000
    threads = [
        threading.Thread(target=lambda kind=kind: [kind(number) for number in range(spans)])
        for kind in (lambda n: timeline.bucket(bucket(n)), lambda n: timeline.step(step(n)),
                     lambda n: timeline.bucket(bucket(n, 1)), lambda _: timeline.sent_bytes)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (timeline.steps.count, timeline.sent_bytes) == (spans, 2 * spans * 100)
