"""Images that are hard to convert, and what is equal of two results."""

from __future__ import annotations

import numpy as np
import torch

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
