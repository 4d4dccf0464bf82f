"""What is read out of a profiler's trace, and what oneDNN tells beside it."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trace_events import CHANNELS_FIRST, CHANNELS_LAST, IMAGES, event, tensors

from hpcai500.comm.timeline import BucketSpan
from hpcai500.errors import RunError
from hpcai500.measure.sampling import busy_windows
from hpcai500.measure.trace import (
    Reorder,
    Work,
    breakdown,
    exchange_events,
    onednn_lines,
    read_trace,
    reorders,
    typical,
    works_of,
    write_trace,
)
from hpcai500.methodology.kernel_classes import CLASSES

# --- Own times, classes, layouts that change, and when a device was busy.


FIRST, LAST = (IMAGES, CHANNELS_FIRST, "float"), (IMAGES, CHANNELS_LAST, "float")


def works(events: list[Any], device: str = "cpu") -> list[Work]:
    return works_of(read_trace(events), device).kernels


def seconds_by_class(events: list[Any], device: str = "cpu") -> dict[str, float]:
    rows = breakdown(works(events, device), [], 1)["classes"]
    return {name: row["seconds"] for name, row in rows.items() if row["calls"]}


def test_an_operator_is_counted_without_those_that_it_calls() -> None:
    events = [
        event("aten::conv2d", 0, 10),
        event("aten::mkldnn_convolution", 1, 8),
        event("aten::add_", 3, 2),
        event("aten::relu", 20, 1),
    ]
    assert seconds_by_class(events) == pytest.approx({"convolution": 8, "element-wise": 3})


def test_a_wrap_around_an_operator_of_its_class_is_no_call_of_its_own() -> None:
    events = [event("aten::conv2d", 0, 10), event("aten::mkldnn_convolution", 1, 8), event("aten::mm", 11, 1)]
    rows = breakdown(works(events), [], 1)["classes"]
    assert (rows["convolution"]["calls"], rows["GEMM"]["calls"]) == (1, 1)


def test_views_and_allocations_are_the_hosts_and_no_kernels() -> None:
    found = works_of(read_trace([event("aten::view", 0, 2), event("aten::add", 3, 1)]), "cpu")
    assert [work.name for work in found.kernels] == ["aten::add"]
    assert found.host_seconds == pytest.approx(2)


def test_threads_do_not_lie_in_each_other_and_collectives_beside_them_are_left_out() -> None:
    events = [
        event("aten::add", 0, 4),
        event("aten::mul", 1, 1, thread=2),
        event("gloo:all_reduce", 0, 9, "user_annotation"),
    ]
    assert seconds_by_class(events) == pytest.approx({"element-wise": 5})


def test_operators_that_no_rule_knows_are_told_by_name() -> None:
    found = breakdown(works([event("aten::frobnicate", 0, 1), event("aten::mm", 1, 3)]), [], 1)
    assert found["unclassified_share"] == pytest.approx(0.25)
    assert [row["name"] for row in found["unclassified"]] == ["aten::frobnicate"]
    assert sum(row["share"] for row in found["classes"].values()) == pytest.approx(0.75)
    assert list(found["classes"]) == list(CLASSES)


def test_a_copy_that_changes_the_layout_is_called_out_with_who_wanted_it() -> None:
    events = [
        event("hpcai500::roi_align", 0, 10),
        event("aten::contiguous", 1, 6),
        event("aten::clone", 2, 4),
        event("aten::copy_", 3, 2, **tensors(LAST, FIRST)),
        event("aten::copy_", 20, 1, **tensors(FIRST, FIRST)),
    ]
    layout = breakdown(works(events), [], 2)["layout"]
    (row,) = layout["conversions"]
    assert (row["from"], row["source"], row["target"]) == ("hpcai500::roi_align", "NCHW", "NHWC")
    assert (row["shape"], row["calls"], row["hidden"]) == ("8x16x4x4", 1, False)
    assert row["seconds"] == pytest.approx(2)


def test_layouts_changed_inside_a_convolution_are_taken_from_it() -> None:
    hidden = [Reorder("convolution", "NCHW", "blocks aBcd16b", "8x16x4x4", 0.5)]
    found = breakdown(works([event("aten::mkldnn_convolution", 0, 4), event("aten::mm", 5, 4)]), hidden, 2)
    rows = found["classes"]
    assert rows["convolution"]["seconds"] == pytest.approx(3)
    assert rows["transformation"]["seconds"] == pytest.approx(1)
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert found["layout"]["hidden_share"] == pytest.approx(1 / 8)
    assert found["layout"]["conversions"][0]["hidden"]


def test_hidden_changes_are_never_longer_than_what_they_lie_in() -> None:
    hidden = [Reorder("convolution", "NCHW", "blocks aBcd16b", "8x16x4x4", 3.0)] * 2
    found = breakdown(works([event("aten::mkldnn_convolution", 0, 4)]), hidden, 2)
    assert found["classes"]["convolution"]["seconds"] == pytest.approx(0)
    assert found["layout"]["seconds"] == pytest.approx(4)


def test_arithmetic_of_synchronised_norms_is_theirs_and_their_talk_is_communication() -> None:
    events = [
        event("_NormaliseBackward", 0, 10),
        event("aten::mul", 1, 2),
        event("hpcai500:all_reduce", 4, 3, "user_annotation"),
    ]
    assert seconds_by_class(events) == pytest.approx({"batch normalisation": 7, "all-reduce": 3})


def cuda_trace() -> list[Any]:
    """A step as CUPTI tells it: operators that start kernels, and kernels on two streams."""
    launched = {"External id": 1}, {"External id": 2}, {"External id": 3}
    return [
        event("aten::convolution", 0, 1, **launched[0]),
        event("aten::to", 2, 1),
        event("aten::copy_", 2, 1, **{**tensors(LAST, FIRST), **launched[1]}),
        event("aten::copy_", 4, 1, **{**tensors(FIRST, (IMAGES, CHANNELS_FIRST, "c10::Half")), **launched[2]}),
        event("sm80_xmma_fprop_implicit_gemm_tf32f32", 1, 4, "kernel", 7, **launched[0]),
        event("void at::native::elementwise_kernel<direct_copy_kernel_cuda>", 5, 2, "kernel", 7, **launched[1]),
        event("void at::native::elementwise_kernel<direct_copy_kernel_cuda>", 7, 1, "kernel", 7, **launched[2]),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4, 6, "kernel", 8),
        event("Memcpy HtoD (Pinned -> Device)", 0, 1, "gpu_memcpy", 9),
        event("hpcai500:step", 0, 11, "gpu_user_annotation", 7),
    ]


def test_on_a_device_its_kernels_count_and_copies_by_the_operator_that_started_them() -> None:
    assert seconds_by_class(cuda_trace(), "cuda") == pytest.approx(
        {"convolution": 4, "transformation": 2, "element-wise": 1, "all-reduce": 6, "memcpy": 1}
    )
    (row,) = breakdown(works(cuda_trace(), "cuda"), [], 1)["layout"]["conversions"]
    assert (row["source"], row["target"]) == ("NCHW", "NHWC")


def test_utilisation_is_the_part_of_each_window_with_a_kernel_in_it() -> None:
    assert busy_windows([(0.0, 1.0), (0.5, 1.5), (3.0, 3.5)], 4.0, 1.0) == [
        [0.0, pytest.approx(1)],
        [1.0, pytest.approx(0.5)],
        [2.0, pytest.approx(0)],
        [3.0, pytest.approx(0.5)],
    ]
    busy = busy_windows([(work.start, work.start + work.seconds) for work in works(cuda_trace(), "cuda")], 10, 5)
    assert [fraction for _, fraction in busy] == pytest.approx([1, 1])
    assert busy_windows([], 1.0, 0.5) == [[0.0, 0.0], [0.5, 0.0]]


def bucket(number: int, *moments: float) -> BucketSpan:
    start, sent, received, done = moments
    return BucketSpan(0, number, 0.0, 0.0, start, start, sent, received, done, gradient_bytes=8, sent_bytes=4)


def test_exchange_threads_become_slices_and_overlapping_sums_count_once() -> None:
    spans = [bucket(0, 1.0, 2.0, 6.0, 7.0), bucket(1, 2.0, 3.0, 8.0, 9.0)]
    events = exchange_events(spans, 4.4e6, 0, process=7)
    found = works_of(read_trace(events), "cpu").kernels
    assert {work.kind for work in found} == {"memcpy", "all-reduce"}
    # From the first that is sent to the last that is received, though each takes 4 and 5.
    assert sum(work.seconds for work in found if work.kind == "all-reduce") == pytest.approx(6)
    rows = breakdown(found, [], 1)["classes"]
    assert (rows["all-reduce"]["calls"], rows["memcpy"]["calls"]) == (2, 4)
    names = [slice_["args"]["name"] for slice_ in events if slice_["ph"] == "M"]
    assert names == ["exchange, bucket 0", "exchange, bucket 1"]
    starts = [slice_["ts"] for slice_ in events if slice_.get("tid") == names[0] and slice_["ph"] == "X"]
    assert [later - one for one, later in pairwise(starts)] == pytest.approx([1e6, 4e6])


def test_a_trace_that_does_not_fit_is_told_with_its_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "no-such-folder" / "trace.json.gz"
    with pytest.raises(RunError, match=r"trace.json.gz: cannot write the trace: .*give another --out"):
        write_trace(path, {"traceEvents": []})


# --- What oneDNN rearranges inside its operators: its own lines, and a real convolution.


# As oneDNN 3.12 prints them for a convolution of channels first.
TOLD = """\
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0 dst:f32::blocked:aBcd16b::f0,attr-scratchpad:user,,8x16x56x56,4.5
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:f32:a:blocked:aBcd16b::f0 wei:f32:a:blocked:ABcd16b16a::f0 bia:f32:a:blocked:a::f0 dst:f32:a:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,mb8_ic16oc32_ih56oh54kh3,9.12695
onednn_verbose,v1,primitive,exec,cpu,reorder,jit_direct_copy:uni,undef,src:f32::blocked:a::f0 dst:f32::blocked:a::f0,attr-scratchpad:user,,32,0.00585938
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:acdb::f0 dst:f32::blocked:abcd::f0,attr-scratchpad:user,,8x32x54x54,1.5
"""  # noqa: E501


def test_its_lines_tell_what_was_rearranged_for_whom() -> None:
    assert reorders(TOLD.splitlines()) == [
        Reorder("convolution", "NCHW", "blocks aBcd16b", "8x16x56x56", pytest.approx(4.5e-3)),
        Reorder("convolution", "NHWC", "NCHW", "8x32x54x54", pytest.approx(1.5e-3)),
    ]


@pytest.mark.parametrize("line", ["", "hello", "onednn_verbose,v1,primitive,exec,cpu,reorder", "onednn_verbose,exec,"])
def test_other_lines_are_passed_over(line: str) -> None:
    assert reorders([line]) == []


def test_of_several_steps_the_median_counts_once() -> None:
    one = Reorder("convolution", "NCHW", "NHWC", "1x2", 1.0)
    other = Reorder("convolution", "NCHW", "NHWC", "1x2", 9.0)
    assert typical([[one, one], [one, other], [one, other]]) == [one, one]
    assert typical([]) == []


def told_by_a_convolution(memory_format: torch.memory_format) -> list[Reorder]:
    layer = nn.Conv2d(16, 32, 3).to(memory_format=memory_format)  # type: ignore[call-overload]
    images = torch.randn(8, 16, 24, 24).to(memory_format=memory_format)
    with onednn_lines() as lines:
        layer(images).sum().backward()
    return [one for one in reorders(lines) if one.shape.startswith("8x")]


def test_a_convolution_of_channels_first_is_rearranged_inside_and_one_of_channels_last_is_not() -> None:
    assert {one.owner for one in told_by_a_convolution(torch.contiguous_format)} == {"convolution"}
    assert told_by_a_convolution(torch.channels_last) == []


def test_stdout_is_as_before_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before\n")
    with onednn_lines() as lines:
        os.write(1, b"inside\n")
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "before\nafter\n"
    assert lines == ["inside"]
