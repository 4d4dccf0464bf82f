"""What csrc/core computes, again: readable, slow, from the definitions. The tests hold the two equal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al. (SC 2011): four words for a counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _MASK, (first >> 32) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def draw(seed: int, epoch: int, sample: int, block: int) -> tuple[int, int, int, int]:
    """The four words of one draw of a sample: key = seed, counter = sample, epoch, block (low words first)."""
    return philox4x32((sample & _MASK, sample >> 32, epoch, block), (seed & _MASK, seed >> 32))


@dataclass(frozen=True)
class Box:
    """x, y, width, height in source pixels, and the flip."""

    x: float
    y: float
    width: float
    height: float
    flip: bool


def random_box(
    width: int,
    height: int,
    *,
    seed: int,
    epoch: int,
    sample: int,
    area: tuple[float, float] = (0.05, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip_probability: float = 0.5,
) -> Box:
    """torchvision's RandomResizedCrop on the draws of one sample.

    Try t uses block t: words 0-3 are area, ratio, column and row. The flip is word 0 of block 10.
    """
    flip = draw(seed, epoch, sample, 10)[0] / 2**32 < flip_probability
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(10):
        words = draw(seed, epoch, sample, attempt)
        target = float(width * height) * (area[0] + (area[1] - area[0]) * (words[0] / 2**32))
        aspect = math.exp(low + (high - low) * (words[1] / 2**32))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Box(words[2] * (width - w + 1) >> 32, words[3] * (height - h + 1) >> 32, w, h, flip)
    w, h = width, height
    if width / height < ratio[0]:
        h = min(max(round(width / ratio[0]), 1), height)
    elif width / height > ratio[1]:
        w = min(max(round(height * ratio[1]), 1), width)
    return Box((width - w) // 2, (height - h) // 2, w, h, flip)


def centre_box(width: int, height: int, *, size: int, resize_shorter: int) -> Box:
    """The middle size x size of the image whose shorter side was resized to `resize_shorter`."""
    side = min(width, height) * size / resize_shorter
    return Box((width - side) / 2, (height - side) / 2, side, side, flip=False)


def weights(begin: float, end: float, length: int, outputs: int) -> NDArray[np.float64]:
    """(outputs, length) weights of Pillow's antialiased bilinear resize of [begin, end) to `outputs` pixels."""
    scale = (end - begin) / outputs
    support = max(scale, 1.0)
    table = np.zeros((outputs, length))
    for output in range(outputs):
        centre = begin + (output + 0.5) * scale
        first = max(int(centre - support + 0.5), 0)
        last = min(int(centre + support + 0.5), length)
        positions = np.arange(first, last)
        values = np.maximum(0, 1 - np.abs((positions - centre + 0.5) / support))
        table[output, first:last] = values / values.sum()
    return table


def resize(pixels: NDArray[np.uint8], box: Box, size: int, *, crop_first: bool) -> NDArray[np.float64]:
    """(size, size, 3) levels, not rounded. `crop_first` cuts the box (whole pixels) before it filters."""
    if crop_first:
        x, y, w, h = (int(value) for value in (box.x, box.y, box.width, box.height))
        pixels, box = pixels[y : y + h, x : x + w], Box(0, 0, w, h, box.flip)
    rows = weights(box.y, box.y + box.height, pixels.shape[0], size)
    columns = weights(box.x, box.x + box.width, pixels.shape[1], size)
    result = np.einsum("yh,hwc,xw->yxc", rows, pixels.astype(np.float64), columns, optimize=True)
    return result[:, ::-1] if box.flip else result


def normalise(levels: NDArray[np.float64], mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float64]:
    """(level - mean) / std per channel, channels last."""
    return (levels - np.array(mean)) / np.array(std)


def pillow_resize(image: Image.Image, box: Box, size: int, *, crop_first: bool) -> NDArray[np.uint8]:
    """The same by Pillow itself: crop().resize(), or resize(box=...)."""
    edges = (box.x, box.y, box.x + box.width, box.y + box.height)
    if crop_first:
        resized = image.crop(tuple(int(edge) for edge in edges)).resize((size, size), Image.Resampling.BILINEAR)
    else:
        resized = image.resize((size, size), Image.Resampling.BILINEAR, box=edges)
    pixels = np.asarray(resized)
    return pixels[:, ::-1] if box.flip else pixels


# JFIF's (ITU-T T.871) conversion: each row is the share of Y, Cb - 128 and Cr - 128 in red, green and blue.
JFIF = np.array([[1, 0, 1.402], [1, -0.344136286, -0.714136286], [1, 1.772, 0]])


def late_clamp_bounds() -> NDArray[np.float64]:
    """By how much red, green and blue may differ where colours are cut to 0 to 255 after a resize instead of before.

    A resize is a mean with weights of 0 or more. Of unlimited values v from -a to 255 + b, the cut mean and the mean of
    the cut values differ most where some are 255 + b and all others 0, and just as many that the mean is 255: then by
    255 b / (255 + b). With -a and 255 it is 255 a / (255 + a).
    """
    chroma = np.array([-128.0, 127.0])
    reach = JFIF[:, 1:, None] * chroma
    above, below = reach.max(axis=2).sum(axis=1), -reach.min(axis=2).sum(axis=1)
    beyond = np.maximum(above, below)
    return 255 * beyond / (255 + beyond)
