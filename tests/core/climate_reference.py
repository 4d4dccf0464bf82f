"""What the climate reader's kernels compute, again: readable, from the definitions. The tests hold the two equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"
ITEMS = {"float32": np.float32, "float16": np.float16, BFLOAT16: np.uint16}


def scale_and_bias(mean: float, std: float) -> tuple[np.float32, np.float32]:
    """The factors of one channel, each rounded to float32."""
    return np.float32(1.0 / std), np.float32(-mean / std)


def fused(values: NDArray[np.float32], scale: np.float32, bias: np.float32) -> NDArray[np.float32]:
    """values * scale + bias with a single rounding.

    The product of two float32 is exact in longdouble (64 bits of mantissa), and the sum of it and a float32 is rounded
    there far behind the last bit of float32: only a value within 2**-40 of a tie could come out otherwise.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return (values.astype(np.longdouble) * np.longdouble(scale) + np.longdouble(bias)).astype(np.float32)


def normalised(images: NDArray[np.float32], mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float32]:
    """(N, C, H, W) normalised by channel."""
    result = np.empty_like(images)
    for channel in range(images.shape[1]):
        result[:, channel] = fused(images[:, channel], *scale_and_bias(mean[channel], std[channel]))
    return result


def cast(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """To nearest even, bfloat16 as its bits: NumPy's and torch's own conversions."""
    if dtype == BFLOAT16:
        bits: NDArray[np.uint16] = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
        return bits
    with np.errstate(over="ignore"):
        return values.astype(ITEMS[dtype])


def rolled_and_cropped(image: NDArray[Any], roll: int, left: int, width: int) -> NDArray[Any]:
    """The columns left..left + width of an image that was turned around the globe."""
    return np.roll(image, roll, axis=-1)[..., left : left + width]
