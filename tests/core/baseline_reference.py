"""Our JPEG decoder and its resize, again: readable, slow, from ITU-T T.81 (JPEG) and T.871 (JFIF).

Samples have the bits of libjpeg's "islow" transform; chroma is interpolated as libjpeg does ("fancy upsampling"), but
nothing is rounded behind the samples, and levels are cut to 0 to 255 once, at the output's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from baseline_header import SIDE, Header, read_header
from baseline_scan import Decoded, decode_scan
from numpy.typing import NDArray
from reference import Box, resize


def _wrap(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """What a register of `bits` bits keeps."""
    half = 1 << (bits - 1)
    return (values + half) % (1 << bits) - half


def _fixed(factor: float) -> int:
    return round(factor * (1 << 13))


def _transform(values: NDArray[np.int64], shift: int) -> NDArray[np.int64]:
    """The inverse transform of Loeffler, Ligtenberg and Moschytz along the last axis but one, as libjpeg's islow.

    Sums wrap and results are cut as in 16-bit vector units: that matters for damaged blocks only.
    """
    c = [values[..., place, :] for place in range(SIDE)]
    shared = (c[2] + c[6]) * _fixed(0.541196100)
    two = shared + c[2] * _fixed(0.765366865)
    six = shared - c[6] * _fixed(1.847759065)
    zero, four = _wrap(c[0] + c[4], 16) << 13, _wrap(c[0] - c[4], 16) << 13
    even = [zero + two, four + six, four - six, zero - two]

    three_seven, one_five = _wrap(c[3] + c[7], 16), _wrap(c[1] + c[5], 16)
    shared = (three_seven + one_five) * _fixed(1.175875602)
    three_seven = shared - three_seven * _fixed(1.961570560)
    one_five = shared - one_five * _fixed(0.390180644)
    one_seven, three_five = (c[1] + c[7]) * _fixed(0.899976223), (c[3] + c[5]) * _fixed(2.562915447)
    odd = [
        c[1] * _fixed(1.501321110) - one_seven + one_five,
        c[3] * _fixed(3.072711026) - three_five + three_seven,
        c[5] * _fixed(2.053119869) - three_five + one_five,
        c[7] * _fixed(0.298631336) - one_seven + three_seven,
    ]
    sums = [e + o for e, o in zip(even, odd, strict=True)]
    differences = [e - o for e, o in zip(even, odd, strict=True)]
    rounded = _wrap(np.stack(sums + differences[::-1], axis=-2) + (1 << (shift - 1)), 32) >> shift
    return rounded.clip(-(1 << 15), (1 << 15) - 1)


def inverse_dct(coefficients: NDArray[np.int64], factors: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Levels of blocks, (..., 8, 8): columns first, with 2 bits more than the second pass keeps."""
    columns = _transform(_wrap(coefficients * factors, 16), 13 - 2)
    samples = _transform(columns.swapaxes(-1, -2), 13 + 2 + 3).swapaxes(-1, -2)
    return (samples + 128).clip(0, 255).astype(np.uint8)


def largest_coefficient(header: Header, decoded: Decoded) -> int:
    """The largest that is left when its sign is taken, dequantised."""
    pairs = zip(header.components, decoded.coefficients, strict=True)
    return max(int(np.abs(coefficients * component.factors).max()) for component, coefficients in pairs)


def planes_of(header: Header, decoded: Decoded) -> list[NDArray[np.uint8]]:
    """The samples of each component that the image has: those that fill the last MCUs are cut."""
    planes = []
    for component, coefficients in zip(header.components, decoded.coefficients, strict=True):
        blocks = inverse_dct(coefficients, component.factors)
        rows, columns = blocks.shape[0] * SIDE, blocks.shape[1] * SIDE
        height = -(-header.height * component.down // header.components[0].down)
        width = -(-header.width * component.across // header.components[0].across)
        planes.append(blocks.swapaxes(1, 2).reshape(rows, columns)[:height, :width])
    return planes


def upsample(plane: NDArray[np.float64], pixels: int, axis: int) -> NDArray[np.float64]:
    """Each pixel is 3/4 of the sample that it lies in and 1/4 of the next one on its side; edges repeat."""
    pixel = np.arange(pixels)
    beside = np.clip(pixel // 2 + np.where(pixel % 2, 1, -1), 0, plane.shape[axis] - 1)
    return 0.75 * plane.take(pixel // 2, axis) + 0.25 * plane.take(beside, axis)


def colour_planes(header: Header, decoded: Decoded) -> NDArray[np.float64]:
    """(height, width, 1 or 3): Y, Cb and Cr of each pixel, neither rounded nor cut behind the samples."""
    full = []
    for plane in planes_of(header, decoded):
        levels = plane.astype(np.float64)
        for axis, length in enumerate((header.height, header.width)):
            if levels.shape[axis] != length:
                levels = upsample(levels, length, axis)
        full.append(levels)
    return np.stack(full, axis=-1)


def rgb(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """JFIF's conversion (T.871, section 7), cut to 0 to 255."""
    y, cb, cr = np.moveaxis(levels, -1, 0) if levels.shape[-1] == 3 else (levels[..., 0], 128.0, 128.0)
    red, blue = y + 1.402 * (cr - 128), y + 1.772 * (cb - 128)
    green = (y - 0.299 * red - 0.114 * blue) / 0.587
    return np.stack([red, green, blue], axis=-1).clip(0, 255)


def _last_tap(begin: float, length: float, limit: int, outputs: int) -> int:
    """The last pixel that a resize reads, be it with weight 0 (as `weights` of reference.py has them)."""
    scale = length / outputs
    centre = begin + (outputs - 0.5) * scale
    return min(int(centre + max(scale, 1.0) + 0.5), limit) - 1


def _chroma_reach(pixel: int, limit: int, step: int) -> int:
    """The last luma pixel of the last chroma sample that `pixel` takes from."""
    if step == 1:
        return pixel
    return min((pixel + pixel % 2) // 2, -(-limit // 2) - 1) * 2


def needed_mcus(header: Header, box: Box, size: int, *, crop_first: bool) -> tuple[int, int]:
    """MCU rows that a crop reads, and MCUs of the last of them."""
    luma = header.components[0]
    ends = []
    for begin, length, limit, step, mcu in (
        (box.y, box.height, header.height, luma.down, header.mcu_height),
        (box.x, box.width, header.width, luma.across, header.mcu_width),
    ):
        last = _last_tap(begin, length, int(begin + length) if crop_first else limit, size)
        ends.append(max(last, _chroma_reach(last, limit, step)) // mcu + 1)
    return ends[0], ends[1]


@dataclass(frozen=True)
class Reference:
    """(size, size, 3) levels, not rounded, the byte of the file behind what they need, and the largest coefficient."""

    levels: NDArray[np.float64]
    read_until: int
    largest: int


def decode(data: bytes, box: Box, size: int, *, crop_first: bool) -> Reference:
    """What our own decoder makes of a file; raises NotOursError where it leaves the file to libjpeg-turbo."""
    header = read_header(data)
    decoded = decode_scan(data, header, *needed_mcus(header, box, size, crop_first=crop_first))
    resized = resize(colour_planes(header, decoded), box, size, crop_first=crop_first)
    return Reference(rgb(resized), decoded.read_until, largest_coefficient(header, decoded))
