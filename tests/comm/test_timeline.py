"""The timeline: what it adds up and keeps, the clocks that it aligns, its trace file, and two real ranks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from builders.ranks import run_ranks
from hypothesis import given
from hypothesis import strategies as st
from thread_ranks import run_threads
from torch import nn

from hpcai500.comm import timeline as module
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.timeline import (
    MEASURED_STAGES,
    BucketSpan,
    ClockAlignment,
    RankTrace,
    SpanSink,
    StepSpan,
    Timeline,
    align_clocks,
    alignment,
    chrome_trace,
    moments,
    rank_summary,
    rank_trace,
    stage_seconds,
)
from hpcai500.measure.host import read_counters
from hpcai500.methodology.communication import check_traffic, merge
from hpcai500.recipe import load_recipe


def bucket(step: int, number: int = 0, *, at: float = 0.0, sent: float = 10.0, received: float = 14.0) -> BucketSpan:
    return BucketSpan(step, number, at, at + 1, at + 3, at + 6, at + sent, at + received, at + received + 5, 400, 100)


def step(number: int, seconds: float = 1.0) -> StepSpan:
    return StepSpan(number, 0.0, seconds, 0.25, 0.125)


# ----------------------------------------------------------------------------------------------------
# What it adds up and keeps.


def test_stages_are_what_lies_between_the_moments() -> None:
    span = bucket(0, at=100.0)
    assert stage_seconds(span) == (1, 2, 3, 4, 4, 5)
    assert tuple(after - before for before, after in pairwise(moments(span))) == stage_seconds(span)
    assert len(MEASURED_STAGES) == len(stage_seconds(span))


def test_a_summary_by_hand() -> None:
    timeline = Timeline(trace_steps=1)
    sink: SpanSink = timeline
    for number in range(3):
        sink.bucket(bucket(number, 0, at=100.0 * number))
        sink.bucket(bucket(number, 1, at=100.0 * number, sent=20.0, received=30.0))
        sink.step(step(number, seconds=number + 1.0))
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
    assert value["overlap"] is value["stages"]["all_reduce"] is None


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
def test_all_spans_of_the_first_steps_are_kept_and_of_the_others_a_sample(first: int) -> None:
    timeline = Timeline(trace_steps=2)
    for number in range(first, first + 6000):
        timeline.bucket(bucket(number))
        timeline.step(step(number))
    steps, buckets = timeline.traced()
    assert [span.step for span in steps] == [span.step for span in buckets] == [first, first + 1]
    assert len(timeline.buckets[0].stages.samples.kept) == 128
    assert len(timeline.steps.samples.kept) == 4096
    assert (timeline.steps.count, timeline.buckets[0].stages.count) == (6000, 6000)


def test_no_span_is_lost_between_two_threads() -> None:
    timeline, spans = Timeline(trace_steps=0), 3000
    kinds = (
        lambda number: timeline.bucket(bucket(number)),
        lambda number: timeline.step(step(number)),
        lambda number: timeline.bucket(bucket(number, 1)),
        lambda number: timeline.sent_bytes,
    )
    threads = [threading.Thread(target=lambda kind=kind: [kind(number) for number in range(spans)]) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (timeline.steps.count, timeline.sent_bytes) == (spans, 2 * spans * 100)


# ----------------------------------------------------------------------------------------------------
# Offsets between clocks: inside the bound that is promised, for simulated barriers and for a real one.


delays = st.floats(0, 0.01)


@given(st.lists(st.floats(-1e5, 1e5), min_size=2, max_size=5), st.data())
def test_the_true_offset_is_within_the_bound(clocks: list[float], data: st.DataObject) -> None:
    """`clocks`: what each host's clock shows at true time 0."""
    passages: list[list[tuple[float, float]]] = [[] for _ in clocks]
    for number in range(data.draw(st.integers(1, 6))):
        entered = [number + data.draw(delays) for _ in clocks]
        for rank, clock in enumerate(clocks):
            passages[rank].append((entered[rank] + clock, max(entered) + data.draw(delays) + clock))
    found = alignment(passages, [f"host{rank}" for rank in range(len(clocks))])
    for rank, clock in enumerate(clocks):
        truth = clocks[0] - clock
        assert abs(found.offsets_seconds[rank] - truth) <= found.errors_seconds[rank] + 1e-9
        assert found.errors_seconds[rank] <= 0.02 + 1e-9
    assert (found.offsets_seconds[0], found.errors_seconds[0]) == (0.0, 0.0)


def test_ranks_of_one_host_share_the_best_bound_and_rank_0s_host_is_exact() -> None:
    narrow, wide = [(5.0, 5.1)], [(4.5, 5.4)]
    here, near = [(0.0, 0.2)], [(0.05, 0.3)]
    found = alignment([here, near, wide, narrow], ["a", "a", "b", "b"])
    assert found.offsets_seconds[:2] == found.errors_seconds[:2] == (0.0, 0.0)
    # narrow says -5.1 to -4.8, wide -5.4 to -4.3.
    assert found.offsets_seconds[2:] == pytest.approx((-4.95, -4.95))
    assert found.errors_seconds[2:] == pytest.approx((0.15, 0.15))


def test_two_machines_of_one_name_keep_their_own_offsets() -> None:
    found = alignment([[(0.0, 0.2)], [(100.0, 100.2)]], ["localhost", "localhost"])
    assert found.offsets_seconds == pytest.approx((0.0, -100.0))


def test_a_real_barrier_finds_that_one_clock_is_one_clock() -> None:
    first, *others = run_threads(lambda communicator: align_clocks(communicator, rounds=8), ("a", "b", "c"))
    assert others == [first, first]
    assert all(abs(one) <= error for one, error in zip(first.offsets_seconds, first.errors_seconds, strict=True))


# ----------------------------------------------------------------------------------------------------
# The trace file: the format that browsers take, slices that lie inside each other.


CLOCKS = ClockAlignment((0.0, -500.0), (0.0, 2e-5))


def recorded(start: float, steps: int = 3) -> Timeline:
    """Steps of 1/3 s; the backward pass begins in the middle, two buckets overlap each other."""
    timeline = Timeline(trace_steps=steps)
    for number in range(steps):
        begin = start + number / 3
        timeline.step(StepSpan(number, begin, 1 / 3, 0.1 / 3, 0.2 / 3))
        for which in range(2):
            at = begin + 0.1 + which / 50
            times = (at + 0.001, at + 0.002, at + 0.002, at + 0.004, at + 0.03, at + 0.031)
            timeline.bucket(BucketSpan(number, which, begin + 0.1, *times, 4096, 2048))
    return timeline


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    traces = [rank_trace(recorded(20.0), 0, "a", 2), rank_trace(recorded(520.0), 1, "b", 2)]
    content: dict[str, Any] = json.loads(chrome_trace(traces[::-1], CLOCKS))
    return content


def slices(document: dict[str, Any], rank: int, thread: int) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (rank, thread)]


def test_a_process_is_a_rank_and_its_threads_have_names(document: dict[str, Any]) -> None:
    told = [e for e in document["traceEvents"] if e["ph"] == "M"]
    assert [e["args"]["name"] for e in told if e["name"] == "process_name"] == ["rank 0 on a", "rank 1 on b"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in told if e["name"] == "thread_name"}
    assert (threads[1, 1], threads[1, 2]) == ("communication, bucket 0", "communication, bucket 1")
    assert threads[0, 0] == "training loop"


def test_a_bucket_shows_its_stages_one_after_the_other_and_a_step_its_three_parts(document: dict[str, Any]) -> None:
    first = [e for e in slices(document, 0, 2) if e["args"]["step"] == 0]
    names = ["wait for data", "wait for other data", "memcpy in", "all reduce", "memcpy out"]
    assert [e["name"] for e in first] == names
    for before, after in pairwise(first):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-3)
    assert first[3]["dur"] == pytest.approx(26_000, abs=0.01)
    assert first[3]["args"] == {"step": 0, "bucket": 1, "gradient_bytes": 4096, "sent_bytes": 2048}
    parts = [e for e in slices(document, 0, 0) if e["args"]["step"] == 1]
    assert [e["name"] for e in parts] == ["step 1", "data wait", "compute", "communication wait"]
    assert [e["dur"] for e in parts] == pytest.approx([333_333.333, 33_333.333, 233_333.333, 66_666.667], abs=0.01)


@pytest.mark.parametrize("thread", [0, 1, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_slices_of_a_thread_lie_inside_one_another_or_apart(document: dict[str, Any], rank: int, thread: int) -> None:
    open_until: list[int] = []
    for event in sorted(slices(document, rank, thread), key=lambda e: (e["ts"], -e["dur"])):
        # Whole nanoseconds: sums of decimal fractions would be off by a bit.
        begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert not open_until or begin + length <= open_until[-1]
        open_until.append(begin + length)


def test_clocks_are_aligned_and_time_begins_at_0(document: dict[str, Any]) -> None:
    assert [slices(document, rank, 0)[0]["ts"] for rank in (0, 1)] == [0.0, 0.0]
    assert document["otherData"] == {"clock_error_seconds": 2e-5}


def test_of_many_ranks_whole_steps_are_left_out_and_the_first_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BUCKETS", 40)
    timeline = recorded(0.0, steps=5)
    assert [len(rank_trace(timeline, 0, "a", size).buckets) for size in (2, 8, 10, 1000)] == [10, 4, 4, 2]
    assert [span.step for span in rank_trace(timeline, 0, "a", 10).steps] == [0, 1]


def test_a_run_that_traced_nothing_is_an_empty_trace() -> None:
    empty = json.loads(chrome_trace([RankTrace(0, "a", (), ()), RankTrace(1, "b", (), ())], CLOCKS))
    assert [e["ph"] for e in empty["traceEvents"]] == ["M"] * 6


# ----------------------------------------------------------------------------------------------------
# Two real ranks, one of them slow: what their timeline says, against what is known about them.


STEPS, TRACED, WIDTH, LAYERS = 12, 3, 384, 3
SLOW_SECONDS = 0.03


def train(communicator: Communicator) -> dict[str, Any]:
    """Some steps of a small model, of which rank 1 is slow; the event `communication`, and the trace."""
    settings = load_recipe("ic/smoke", ["communication.backend=torch", "hardware.accelerators_per_node=2"])
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    timeline, clocks = Timeline(TRACED), align_clocks(communicator)
    # As many buckets as layers.
    size = (WIDTH * WIDTH + WIDTH) * 4
    reducer = Reducer(model.parameters(), communicator, settings.communication, bucket_bytes=size, sink=timeline)
    before, images = read_counters(), torch.randn(32, WIDTH)
    for number in range(STEPS):
        with timed(timeline, reducer, number) as start:
            loss = model(images).square().mean()
            if communicator.rank == 1:
                # By far slower also on a machine where everything is.
                time.sleep(SLOW_SECONDS + 4 * (time.perf_counter() - start))
            loss.backward()
    rank, host = communicator.rank, communicator.hosts[communicator.rank]
    traffic = {
        "host": host,
        "sent_bytes": timeline.sent_bytes,
        "between_hosts_bytes": reducer.sent_between_nodes * STEPS,
        "counters": read_counters().since(before),
    }
    value = merge(communicator.gather_objects(rank_summary(timeline, rank, host)))
    value["network"] = check_traffic(communicator.gather_objects(traffic), communicator.library)
    traces = communicator.gather_objects(rank_trace(timeline, rank, host, communicator.size))
    reducer.close()
    return {"value": value, "trace": chrome_trace(traces, clocks).decode(), "offsets": clocks.offsets_seconds}


@contextmanager
def timed(timeline: Timeline, reducer: Reducer, number: int) -> Iterator[float]:
    start = time.perf_counter()
    reducer.begin(number)
    yield start
    reducer.finish(())
    timeline.step(StepSpan(number, start, time.perf_counter() - start, 0.0, reducer.waited_seconds))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    first, second = run_ranks(train, 2, timeout=300)
    assert first == second, "ranks must agree on what is written down"
    return first


def test_every_all_reduce_is_in_the_table_with_the_bytes_of_a_flat_ring_over_two(found: dict[str, Any]) -> None:
    value = found["value"]
    assert (value["steps"], value["all_reduces"], len(value["buckets"])) == (STEPS, STEPS * LAYERS, LAYERS)
    times = {name: row["mean_seconds"] for name, row in value["stages"].items() if row is not None}
    assert list(value["stages"]) == ["negotiation", *times]
    assert all(seconds >= 0 for seconds in times.values())
    assert times["all_reduce"] > 0
    gradients = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
    assert value["bytes_per_step"] == {"gradient": gradients, "sent": gradients}
    assert "summed in shared memory" in value["network"]["verdict"]


def test_the_slow_rank_is_the_straggler_and_the_other_one_waits(found: dict[str, Any]) -> None:
    value = found["value"]
    fast, slow = value["ranks"]
    assert value["stragglers"] == [f"rank 1 on {slow['host']}"]
    assert slow["own_seconds"] > SLOW_SECONDS
    assert fast["communication_wait_seconds"] > slow["communication_wait_seconds"]


def test_the_trace_shows_the_first_steps_of_both_on_one_clock(found: dict[str, Any]) -> None:
    assert found["offsets"] == (0.0, 0.0)
    shown = [event for event in json.loads(found["trace"])["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["step"] for event in shown} == set(range(TRACED))
    sums: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in shown:
        if event["name"] == "all reduce":
            key = event["args"]["step"], event["args"]["bucket"]
            sums.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(sums) == TRACED * LAYERS
    for both in sums.values():
        # A sum ends nowhere before it has begun everywhere.
        assert len(both) == 2
        assert min(end for _, end in both) > max(begin for begin, _ in both)
