"""Images are converted as the host's loaders convert them: to the bit in float32, rounded once more to a short type.

On a CUDA device they have the CPU's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from builders.memory import room_for
from climate_twin import cast, normalised

from hpcai500 import _core
from hpcai500.data.device_batches import convert_images, require_cuda_build
from hpcai500.errors import EnvironmentLacksError

FORMATS = [torch.contiguous_format, torch.channels_last]
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
SHAPES = [(2, 16, 24, 36), (3, 3, 7, 5), (1, 1, 9, 9), (2, 5, 1, 1), (2, 24, 3, 11), (1, 256, 2, 3), (2, 40, 65, 67)]


def hostile(shape: tuple[int, ...]) -> torch.Tensor:
    """Values as of a channel of climate, with a few that are subnormal, infinite, NaN, or too large for float16."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(7)) * 300
    odd = torch.tensor([0.0, -0.0, 1e-40, -1e-45, float("inf"), float("-inf"), float("nan"), 3e38, 66000.0, 6e-8])
    count = min(len(odd), values.numel())
    values.view(-1)[-count:] = odd[:count]
    return values


def moments(channels: int) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(channels)
    return generator.normal(0, 50, channels).tolist(), generator.uniform(0.1, 90, channels).tolist()


def in_format(images: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    return images.contiguous(memory_format=memory_format)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal, signs of zero included; a NaN may be any NaN."""
    nan = expected.isnan()
    assert found.isnan().equal(nan)
    bits = torch.int16 if expected.element_size() == 2 else torch.int32
    assert found[~nan].contiguous().view(bits).equal(expected[~nan].contiguous().view(bits))


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


def test_a_callers_flushed_subnormals_are_its_own() -> None:
    # Work for the caller and for the threads that help it.
    images = torch.full((40, 1, 64, 64), 3e-39)
    assert torch.set_flush_denormal(True)
    try:
        found = [convert_images(images), convert_images(images, [0.0], [1e39])]
    finally:
        torch.set_flush_denormal(False)
    assert found[0].equal(images)
    assert_same_bits(found[1], twin(images, [0.0], [1e39], torch.float32))


def test_the_caller_works_alone_where_no_thread_can_be_started() -> None:
    images = np.random.default_rng(0).random((500, 1, 1, 1), np.float32)
    out = np.zeros_like(images)
    with room_for(16 << 20):
        _core.convert_images(images, out, threads=500)
    assert np.array_equal(out, images)


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


# ----------------------------------------------------------------------------------------------------
# On a CUDA device, with the CPU's bits, on the caller's stream.


DEVICE = torch.device("cuda", 0)


def on_device(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs a device, and a build that can use it."""
    built = pytest.mark.skipif(
        not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA"
    )
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(built(test)))


@on_device
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


@on_device
def test_an_address_that_is_only_aligned_to_its_items() -> None:
    memory = torch.randn(2 * 16 * 64 + 1, device=DEVICE)
    images = memory[1:].view(2, 16, 8, 8)
    out = torch.empty(2 * 16 * 64 + 1, dtype=torch.float16, device=DEVICE)[1:].view(2, 16, 8, 8)
    convert_images(images, *moments(16), out=out)
    assert_same_bits(out.cpu(), convert_images(images.cpu(), *moments(16), dtype=torch.float16))


@on_device
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
