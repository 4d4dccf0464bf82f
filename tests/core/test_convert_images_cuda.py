"""On a CUDA device, converted images have the CPU's bits, on the caller's stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from image_cases import FORMATS, NAMES, SHAPES, assert_same_bits, hostile, in_format, moments

from hpcai500 import _core
from hpcai500.data.device_batches import convert_images

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA"),
]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("shape", [*SHAPES, (3, 3, 224, 224), (2, 16, 192, 288), (2, 7, 64, 64)])
@pytest.mark.parametrize("dtype", list(NAMES))
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("target", FORMATS)
def test_the_device_has_the_cpus_bits(shape: Any, dtype: torch.dtype, source: Any, target: Any) -> None:
    images, (mean, std) = in_format(hostile(shape), source), moments(shape[1])
    for values in (images, images.half(), images.bfloat16(), images.nan_to_num().clamp(0, 255).to(torch.uint8)):
        there = values.to(DEVICE)
        assert_same_bits(
            convert_images(there, mean, std, dtype, target).cpu(), convert_images(values, mean, std, dtype, target)
        )


def test_an_address_that_is_only_aligned_to_its_items() -> None:
    memory = torch.randn(2 * 16 * 64 + 1, device=DEVICE)
    images = memory[1:].view(2, 16, 8, 8)
    out = torch.empty(2 * 16 * 64 + 1, dtype=torch.float16, device=DEVICE)[1:].view(2, 16, 8, 8)
    convert_images(images, *moments(16), out=out)
    assert_same_bits(out.cpu(), convert_images(images.cpu(), *moments(16), dtype=torch.float16))


def test_work_goes_on_the_current_stream() -> None:
    stream = torch.cuda.Stream(DEVICE)
    images = torch.randn(2, 16, 64, 64, device=DEVICE)
    stream.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        images.fill_(2.0)
        found = convert_images(images, [1.0] * 16, [2.0] * 16, torch.float16, torch.channels_last)
    stream.synchronize()
    assert (found == 0.5).all()
