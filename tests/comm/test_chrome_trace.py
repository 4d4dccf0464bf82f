"""The trace file: the format that browsers take, slices that lie inside each other, clocks that are aligned."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from hpcai500.comm import timeline as module
from hpcai500.comm.timeline import BucketSpan, ClockAlignment, RankTrace, StepSpan, Timeline, chrome_trace, rank_trace

CLOCKS = ClockAlignment((0.0, -500.0), (0.0, 2e-5))


def recorded(start: float, steps: int = 3, buckets: int = 2) -> Timeline:
    """Steps of 1/3 s; the backward pass begins in the middle, buckets overlap each other."""
    timeline = Timeline(trace_steps=steps)
    for step in range(steps):
        begin = start + step / 3
        timeline.step(StepSpan(step, begin, 1 / 3, 0.1 / 3, 0.2 / 3))
        for bucket in range(buckets):
            at = begin + 0.1 + bucket / 50
            times = (at + 0.001, at + 0.002, at + 0.002, at + 0.004, at + 0.03, at + 0.031)
            timeline.bucket(BucketSpan(step, bucket, begin + 0.1, *times, 4096, 2048))
    return timeline


@pytest.fixture
def document() -> dict[str, Any]:
    traces = [rank_trace(recorded(20.0), 0, "a", 2), rank_trace(recorded(520.0), 1, "b", 2)]
    content: dict[str, Any] = json.loads(chrome_trace(traces[::-1], CLOCKS))
    return content


def slices(document: dict[str, Any], rank: int, thread: int) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (rank, thread)]


def test_a_process_is_a_rank_and_its_threads_have_names(document: dict[str, Any]) -> None:
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in document["traceEvents"]
        if e["ph"] == "M" and e["name"] in ("process_name", "thread_name")
    }
    assert (names[1, 1], names[1, 2]) == ("communication, bucket 0", "communication, bucket 1")
    processes = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["rank 0 on a", "rank 1 on b"]
    assert names[0, 0] == "training loop"


def test_a_bucket_shows_its_stages_one_after_the_other(document: dict[str, Any]) -> None:
    first = [e for e in slices(document, 0, 2) if e["args"]["step"] == 0]
    assert [e["name"] for e in first] == [
        "wait for data", "wait for other data", "memcpy in", "all reduce", "memcpy out",
    ]  # fmt: skip
    for before, after in pairwise(first):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-3)
    assert first[3]["dur"] == pytest.approx(26_000, abs=0.01)
    assert first[3]["args"] == {"step": 0, "bucket": 1, "gradient_bytes": 4096, "sent_bytes": 2048}


def test_slices_of_a_thread_lie_inside_one_another_or_apart(document: dict[str, Any]) -> None:
    for rank in (0, 1):
        for thread in (0, 1, 2):
            open_until: list[int] = []
            for event in sorted(slices(document, rank, thread), key=lambda e: (e["ts"], -e["dur"])):
                # Whole nanoseconds: sums of decimal fractions would be off by a bit.
                begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
                while open_until and open_until[-1] <= begin:
                    open_until.pop()
                assert not open_until or begin + length <= open_until[-1]
                open_until.append(begin + length)


def test_a_step_holds_its_three_parts(document: dict[str, Any]) -> None:
    parts = [e for e in slices(document, 0, 0) if e["args"]["step"] == 1]
    assert [e["name"] for e in parts] == ["step 1", "data wait", "compute", "communication wait"]
    assert [e["dur"] for e in parts] == pytest.approx([333_333.333, 33_333.333, 233_333.333, 66_666.667], abs=0.01)


def test_clocks_are_aligned_and_time_begins_at_0(document: dict[str, Any]) -> None:
    begins = [slices(document, rank, 0)[0]["ts"] for rank in (0, 1)]
    assert begins == [0.0, 0.0]
    assert document["otherData"] == {"clock_error_seconds": 2e-5}


def test_of_many_ranks_whole_steps_are_left_out_and_the_first_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BUCKETS", 40)
    timeline = recorded(0.0, steps=5)
    assert [len(rank_trace(timeline, 0, "a", size).buckets) for size in (2, 8, 10, 1000)] == [10, 4, 4, 2]
    assert [span.step for span in rank_trace(timeline, 0, "a", 10).steps] == [0, 1]


def test_a_run_that_traced_nothing_is_an_empty_trace() -> None:
    empty = json.loads(chrome_trace([RankTrace(0, "a", (), ()), RankTrace(1, "b", (), ())], CLOCKS))
    assert [e["ph"] for e in empty["traceEvents"]] == ["M"] * 6
