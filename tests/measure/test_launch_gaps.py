"""Launch gaps, read out of traces as torch's profiler writes them on a CUDA device; these traces are made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from trace_events import event

from hpcai500.measure.launch_gaps import launch_table
from hpcai500.measure.trace import read_trace

GEMM, SUM = "ampere_sgemm_128x64_nn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
ENGINE = 2


def started(number: int, name: str, called: float, start: float, seconds: float, **more: Any) -> list[Any]:
    """A kernel or copy, and the call that started it, which takes 0.1 s."""
    stream, thread, category = more.get("stream", 7), more.get("thread", 1), more.get("category", "kernel")
    call = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync"}[category]
    return [
        event(call, called, 0.1, "cuda_runtime", thread, correlation=number),
        event(name, start, seconds, category, stream, correlation=number),
    ]


def step(start: float, seconds: float) -> Any:
    return event("hpcai500:step", start, seconds, "user_annotation")


def table(events: list[Any], step_seconds: float = 10.0) -> dict[str, Any]:
    found = launch_table(read_trace(events), step_seconds)
    assert found is not None
    return found


def host_bound() -> list[Any]:
    """Kernels of one second that are started every two and a half, in a step of ten."""
    return [
        step(0, 10),
        event("aten::convolution", 2.2, 2.4),
        event("aten::mm", 2.4, 2.1),
        *started(1, GEMM, 0, 0.2, 1),
        *started(2, "second", 2.5, 2.7, 1),
        *started(3, "third", 5, 5.2, 1),
        *started(4, "fourth", 7.5, 7.7, 1),
    ]


def test_a_device_that_is_through_before_the_next_launch_waits_for_the_host() -> None:
    found = table(host_bound())
    assert (found["bound"], found["gaps"], found["launches"], found["works"]) == ("host", 3, 4, 4)
    assert found["seconds"] == pytest.approx(8.5)
    assert found["compute_seconds"] == pytest.approx(4)
    assert found["idle_seconds"] == pytest.approx(4.5)
    assert found["idle_share"] == pytest.approx(4.5 / 8.5)
    assert found["idle_share_without_profiler"] == pytest.approx(0.6)
    assert found["idle_seconds_by_cause"] == pytest.approx({"host": 4.5, "input": 0, "device": 0})
    assert found["launch_seconds"] == pytest.approx(0.4)
    assert found["host_seconds"] == pytest.approx(10)


def test_the_longest_gaps_tell_what_ran_before_and_after_and_what_the_host_did() -> None:
    events = [*host_bound(), event("Optimizer.step#SGD.step", 6.5, 3, "user_annotation")]
    rows = sorted(table(events)["longest"], key=lambda row: float(row["t"]))
    assert [(row["before"], row["after"]) for row in rows] == [
        (GEMM, "second"),
        ("second", "third"),
        ("third", "fourth"),
    ]
    assert [row["seconds"] for row in rows] == pytest.approx([1.5] * 3)
    # Midway between the end of the kernel before and the next launch: 1.85, 4.35 and 6.85.
    assert [row["host"] for row in rows] == ["python", "aten::convolution > aten::mm", "Optimizer.step#SGD.step"]
    assert [row["t"] for row in rows] == pytest.approx([1, 3.5, 6])


def test_a_wait_within_an_operator_is_told_by_its_call() -> None:
    events = [
        step(0, 10),
        *started(1, GEMM, 0, 0.2, 1),
        event("aten::item", 0.3, 2),
        event("cudaStreamSynchronize", 0.4, 1.8, "cuda_runtime"),
        *started(2, "second", 3, 3.2, 1),
    ]
    found = table(events)
    assert found["longest"][0]["host"] == "aten::item > cudaStreamSynchronize"
    assert found["synchronisations"] == 1
    assert found["host_seconds"] == pytest.approx(10 - 1.8)


def test_a_device_that_waits_for_a_batch_is_bound_by_input() -> None:
    events = [
        step(0, 10),
        *started(1, GEMM, 0, 0.2, 1),
        event("hpcai500:input", 1, 5, "user_annotation"),
        event("aten::empty", 1.5, 0.5),
        *started(2, "second", 6.5, 6.7, 1),
    ]
    found = table(events)
    assert found["bound"] == "input"
    assert found["idle_seconds_by_cause"] == pytest.approx({"host": 0.7, "input": 4.8, "device": 0})
    assert (found["longest"][0]["cause"], found["longest"][0]["host"]) == ("input", "hpcai500:input")
    assert found["host_seconds"] == pytest.approx(5)


def test_works_that_were_queued_have_gaps_of_the_devices_own() -> None:
    events = [step(0, 2), *started(1, GEMM, 0, 0.2, 4), *started(2, "second", 0.5, 4.5, 5)]
    found = table(events, step_seconds=9.4)
    assert found["bound"] == "device"
    assert found["idle_seconds_by_cause"] == pytest.approx({"host": 0, "input": 0, "device": 0.3})
    assert (found["longest"][0]["cause"], found["longest"][0]["host"]) == ("device", None)


def test_a_host_that_is_late_only_under_the_profiler_bounds_nothing() -> None:
    assert table(host_bound(), step_seconds=4.1)["bound"] == "device"
    assert table(host_bound(), step_seconds=4.5)["bound"] == "host"


def test_streams_overlap_and_each_moment_counts_once() -> None:
    events = [
        step(0, 1),
        *started(1, GEMM, 0, 0, 4),
        *started(2, SUM, 0.1, 2, 4, stream=8),
        *started(3, "Memcpy HtoD (Pinned -> Device)", 0.2, 5, 3, stream=9, category="gpu_memcpy"),
        *started(4, GEMM, 0.3, 9, 1),
    ]
    found = table(events)
    kinds = ("compute", "communication", "copy", "idle")
    assert [found[f"{kind}_seconds"] for kind in kinds] == pytest.approx([5, 2, 2, 1])
    assert found["gaps"] == 1
    assert found["longest"][0]["before"].startswith("Memcpy")


def test_the_backward_pass_is_started_by_another_thread_and_belongs_to_its_step() -> None:
    events = [
        step(0, 4),
        *started(1, GEMM, 0, 0.2, 1),
        event("ConvolutionBackward0", 1.5, 1, thread=ENGINE),
        *started(2, "wgrad", 2, 2.2, 1, thread=ENGINE),
    ]
    found = table(events)
    assert found["launches"] == 2
    assert found["longest"][0]["host"] == "ConvolutionBackward0"


def test_a_graph_is_one_launch_of_many_works() -> None:
    graph = event("cudaGraphLaunch", 0, 0.1, "cuda_runtime", correlation=5)
    kernels = [event(f"kernel {n}", 0.2 + n, 1, "kernel", 7, correlation=5, **{"graph node id": n}) for n in range(6)]
    found = table([step(0, 1), graph, *kernels], step_seconds=6)
    assert (found["launches"], found["works"], found["gaps"]) == (1, 6, 0)
    assert found["bound"] == "device"


def test_a_gap_between_two_works_of_one_graph_is_the_devices_own() -> None:
    """The call returns when all is queued: after the first kernels have begun."""
    before, graph = started(1, "before", 0, 0.2, 1), event("cudaGraphLaunch", 2, 4, "cuda_runtime", correlation=5)
    kernels = [
        event(f"kernel {n}", start, 1, "kernel", stream, correlation=5)
        for n, (start, stream) in enumerate([(2.5, 7), (4.5, 7), (4.7, 8), (6.7, 7)])
    ]
    found = table([step(0, 8), *before, graph, *kernels])
    # Up to its first kernel the device waited for the host.
    assert found["idle_seconds_by_cause"] == pytest.approx({"host": 1.3, "input": 0, "device": 2.0})
    rows = {row["after"]: (row["cause"], row["host"]) for row in found["longest"]}
    assert rows["kernel 1"] == rows["kernel 3"] == ("device", None)
    assert rows["kernel 0"][0] == "host"


def test_what_was_started_outside_of_steps_is_left_out() -> None:
    before, after = started(8, "barrier", -5, -4.5, 1), started(9, "settling", 30, 30.5, 1)
    assert table([*before, *host_bound(), *after])["seconds"] == pytest.approx(8.5)


def test_the_lane_is_the_middle_step_in_small_parts() -> None:
    steps = [
        line
        for number in range(3)
        for line in (
            step(10 * number, 10),
            *started(10 + number, GEMM, 10 * number, 10 * number + 1, 4),
            *started(20 + number, SUM, 10 * number + 2, 10 * number + 5, 2, stream=8),
        )
    ]
    found = table(steps)
    assert found["lane_seconds"] == pytest.approx(10)
    lane = found["lane"]
    assert len(lane) == 300
    assert lane[0] == [0, 1, 0, 0]
    assert lane[150] == [pytest.approx(5), 0, 1, 0]
    assert lane[250] == [pytest.approx(8.333333), 0, 0, 0]
    assert sum(row[1] for row in lane) / 300 == pytest.approx(0.4)
    assert sum(row[2] for row in lane) / 300 == pytest.approx(0.2)


def test_a_trace_without_a_device_or_without_steps_has_no_table() -> None:
    assert launch_table(read_trace([step(0, 1), event("aten::mm", 0, 1)]), 1.0) is None
    assert launch_table(read_trace(started(1, GEMM, 0, 0.2, 1)), 1.0) is None


def test_marks_of_waits_for_input_are_no_kernels_and_no_operators() -> None:
    trace = read_trace([step(0, 9), event("hpcai500:input", 1, 5, "user_annotation"), event("aten::mm", 2, 1)])
    assert [one.name for one in trace.host] == ["hpcai500:step", "aten::mm"]
    assert [one.name for one in trace.inputs] == ["hpcai500:input"]
