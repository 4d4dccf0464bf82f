"""What oneDNN rearranges inside its operators, from what it tells: its own lines, and a real convolution."""

# ruff: noqa: E501 - lines as oneDNN prints them

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from hpcai500.measure.trace import Reorder, listening, reorders, typical

# As oneDNN 3.12 prints them for a convolution of channels first.
TOLD = """\
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0 dst:f32::blocked:aBcd16b::f0,attr-scratchpad:user,,8x16x56x56,4.5
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:f32:a:blocked:aBcd16b::f0 wei:f32:a:blocked:ABcd16b16a::f0 bia:f32:a:blocked:a::f0 dst:f32:a:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,mb8_ic16oc32_ih56oh54kh3,9.12695
onednn_verbose,v1,primitive,exec,cpu,reorder,jit_direct_copy:uni,undef,src:f32::blocked:a::f0 dst:f32::blocked:a::f0,attr-scratchpad:user,,32,0.00585938
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:acdb::f0 dst:f32::blocked:abcd::f0,attr-scratchpad:user,,8x32x54x54,1.5
"""


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
    with listening() as lines:
        layer(images).sum().backward()
    return [one for one in reorders(lines) if one.shape.startswith("8x")]


def test_a_convolution_of_channels_first_is_rearranged_inside_and_one_of_channels_last_is_not() -> None:
    assert {one.owner for one in told_by_a_convolution(torch.contiguous_format)} == {"convolution"}
    assert told_by_a_convolution(torch.channels_last) == []


def test_stdout_is_as_before_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before\n")
    with listening() as lines:
        os.write(1, b"inside\n")
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "before\nafter\n"
    assert lines == ["inside"]
