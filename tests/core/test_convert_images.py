"""Images are converted as the host's loaders convert them: to the bit in float32, rounded once more to a short type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from climate_reference import cast, normalised
from image_cases import FORMATS, NAMES, SHAPES, assert_same_bits, hostile, in_format, moments

from hpcai500 import _core
from hpcai500.data.device_batches import convert_images, require_cuda_build
from hpcai500.errors import EnvironmentLacksError


def twin(images: torch.Tensor, mean: list[float] | None, std: list[float] | None, dtype: torch.dtype) -> torch.Tensor:
    """What NumPy and torch make of it, from the definition."""
    values = images.float().contiguous().numpy()
    if mean is not None and std is not None:
        values = normalised(values, np.array(mean), np.array(std))
    short = torch.from_numpy(cast(values, NAMES[dtype]))
    return short.view(torch.bfloat16) if dtype == torch.bfloat16 else short


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", list(NAMES))
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("target", FORMATS)
def test_images_equal_the_loaders_twin(shape: Any, dtype: torch.dtype, source: Any, target: Any) -> None:
    images, (mean, std) = hostile(shape), moments(shape[1])
    found = convert_images(in_format(images, source), mean, std, dtype, target)
    assert found.is_contiguous(memory_format=target)
    assert_same_bits(found, twin(images, mean, std, dtype))


@pytest.mark.parametrize("type_of_images", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("dtype", list(NAMES))
def test_every_type_is_converted_with_and_without_moments(type_of_images: torch.dtype, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    levels = torch.randint(0, 256, (2, 3, 31, 17), generator=generator)
    images = in_format(levels.to(type_of_images), torch.channels_last)
    for mean, std in ((None, None), moments(3)):
        found = convert_images(images, mean, std, dtype, torch.channels_last)
        assert_same_bits(found, twin(images, mean, std, dtype))


def test_out_takes_the_result_in_its_type_and_layout() -> None:
    images, (mean, std) = hostile((2, 16, 8, 12)), moments(16)
    out = torch.empty(4, 16, 8, 12, dtype=torch.float16, memory_format=torch.channels_last)
    found = convert_images(images, mean, std, out=out[:2])
    assert found.data_ptr() == out.data_ptr()
    assert_same_bits(out[:2], twin(images, mean, std, torch.float16))


def test_no_image_is_no_error() -> None:
    assert convert_images(torch.empty(0, 3, 4, 4), dtype=torch.float16).shape == (0, 3, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"images": torch.empty(2, 3, 4)}, "shape"),
        ({"images": torch.empty(2, 3, 4, 8)[..., ::2]}, "contiguous"),
        ({"images": torch.empty(2, 3, 4, 4, dtype=torch.float64)}, "float32"),
        ({"dtype": torch.uint8}, "out must be float32"),
        ({"mean": [1.0, 2.0, 3.0]}, "mean and std"),
        ({"mean": [0.0] * 2, "std": [1.0] * 2}, "each of the 3 channels"),
        ({"mean": [0.0] * 3, "std": [1.0, 0.0, 1.0]}, "std above 0"),
        ({"mean": [0.0, float("nan"), 0.0], "std": [1.0] * 3}, "finite"),
        ({"images": torch.empty(1, 257, 1, 1)}, "at most 256"),
        ({"out": torch.empty(2, 3, 4, 5)}, "out must have shape"),
    ],
)
def test_what_cannot_be_converted_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        convert_images(**{"images": torch.empty(2, 3, 4, 4), **arguments})


def test_memory_that_is_read_is_not_written() -> None:
    images = torch.zeros(2, 3, 4, 4)
    with pytest.raises(ValueError, match="overlap"):
        convert_images(images, out=images)


def test_a_build_without_cuda_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "cuda_architectures", list)
    with pytest.raises(EnvironmentLacksError, match=r"make build again, or set accelerator\.conversion=host"):
        require_cuda_build()
