"""Gradients of convolutions against matrix products in float64; oneDNN's AVX2 fault, by itself where AVX2 is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure import convolutions
from hpcai500.measure.convolutions import (
    Convolution,
    Setting,
    convolutions_of,
    largest_error,
    to_memory_format,
    wrong_gradients,
)
from hpcai500.recipe import load_recipe

CPU = torch.device("cpu")
SHAPES = [
    Convolution(3, 16, (7, 7), (2, 2), (3, 3)),
    Convolution(8, 12, (1, 1), (2, 2)),
    Convolution(12, 8, (3, 1), (1, 2), (1, 0), groups=4),
    Convolution(8, 8, (3, 3), dilation=(2, 2), padding=(2, 2)),
]
HURT = [Convolution(channels, 8, (1, 1), (2, 2)) for channels in (3, 4, 5, 6, 7)]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("arithmetic", "most"), [("fp32", 1e-4), ("bf16", 4e-2)])
def test_right_gradients_are_those_of_matrix_products(arithmetic: str, most: float, channels_last: bool) -> None:
    setting = Setting("cpu", arithmetic, channels_last, torch.get_num_threads())
    for shape in SHAPES:
        errors = largest_error(shape, setting)
        assert max(errors.values()) < most, (shape, errors)
        assert max(errors.values()) > 0


def test_each_shape_of_a_model_is_compared_once_in_another_process() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding="same"), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1, bias=False))
    shapes = convolutions_of(model)
    assert shapes == (Convolution(3, 8, (3, 3), padding=(1, 1)), Convolution(8, 8, (1, 1)))
    done: list[int] = []
    assert wrong_gradients(shapes, Setting("cpu", "fp32", True, 1), lambda: done.append(1)) == []
    assert len(done) == 2


BY_AVX2 = f"""
from hpcai500.measure.convolutions import *
print(bool(known_fault([Convolution(4, 8, (1, 1), (2, 2))], Setting("cpu", "fp32", True, 1))))
for channels_last in (True, False):
    found = wrong_gradients([Convolution(c, 8, (1, 1), (2, 2)) for c in {[one.channels for one in HURT]}],
        Setting("cpu", "fp32", channels_last, 1))
    print(len(found), *found, sep="|")
"""


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="this processor has no AVX2")
def test_a_fault_that_crashes_or_corrupts_is_named_and_contiguous_memory_does_not_have_it() -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    ended = subprocess.run([sys.executable, "-c", BY_AVX2], env=environment, capture_output=True, text=True, check=True)
    known, last, first = ended.stdout.splitlines()
    assert known == "True"
    assert int(last.partition("|")[0]) >= 1, last
    assert " to 8 channels, 1x1, stride 2 " in last
    assert first == "0"


def test_a_model_that_would_meet_the_fault_is_not_trained_in_nhwc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "_computes_by_avx2", lambda: True)
    recipe, other = load_recipe("ic/smoke"), load_recipe("ic/smoke", ["framework.channels_last=false"])
    # The compiler lays images out in NHWC by itself.
    compiled = load_recipe("ic/smoke", ["framework.channels_last=false", "framework.compile=true"])
    for refused in (recipe, compiled):
        with pytest.raises(
            EnvironmentLacksError,
            match=r"4 to 8 channels, 1x1, stride 2 .* framework.channels_last=false --set framework.compile=false",
        ):
            to_memory_format(nn.Conv2d(4, 8, 1, stride=2), refused, CPU)
    to_memory_format(nn.Conv2d(4, 8, 1, stride=2), other, CPU)
    to_memory_format(nn.Conv2d(4, 8, 1, stride=2), recipe, CPU, trains=False)
    for sound in (nn.Conv2d(8, 8, 1, stride=2), nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, stride=2)):
        to_memory_format(sound, recipe, CPU)
        assert sound.weight.is_contiguous(memory_format=torch.channels_last)
