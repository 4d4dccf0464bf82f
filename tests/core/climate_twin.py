"""What the climate reader computes, again, from the definitions; and inputs of its fuzz target, climate_fuzz.cpp."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from builders.data import fields
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
        # Here, so that scripts/fuzz can take the inputs without it.
        import torch

        bits: NDArray[np.uint16] = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
        return bits
    with np.errstate(over="ignore"):
        return values.astype(ITEMS[dtype])


def rolled_and_cropped(image: NDArray[Any], roll: int, left: int, width: int) -> NDArray[Any]:
    """The columns left..left + width of an image that was turned around the globe."""
    return np.roll(image, roll, axis=-1)[..., left : left + width]


_FILTERS = ("deflate", "shuffle", "fletcher32", "lzf")
_MOST = (4, 4, 16, 40)
_ABSENT = b"\xff\xff\xff"


def fletcher32(data: bytes) -> bytes:
    """HDF5's checksum: two sums of 16-bit words, high byte first, modulo 65535 with 65535 in the place of 0."""
    words = np.frombuffer(data + b"\0" * (len(data) % 2), ">u2").astype(object)
    first, second = 0, 0
    for word in words:
        first += int(word)
        second += first
    sums = [(total - 1) % 65535 + 1 if total else 0 for total in (first, second)]
    return (sums[1] << 16 | sums[0]).to_bytes(4, "little")


def lzf(data: bytes) -> bytes:
    """LZF: literals, and for each run of a byte that repeats, a copy of what is one byte back."""
    out = bytearray()
    for byte, group in itertools.groupby(data):
        count = len(list(group))
        out += bytes([0, byte])
        count -= 1
        while count > 0:
            if count < 3:
                out += bytes([0, byte])
                count -= 1
                continue
            length = min(count, 264)
            extra = length - 2
            out += bytes([extra << 5, 0]) if extra < 7 else bytes([7 << 5, extra - 7, 0])
            count -= length
    return bytes(out)


def encode(raw: bytes, filters: Sequence[str], mask: int = 0) -> bytes:
    """What HDF5's filters make of a chunk, without those of the mask."""
    for number, name in enumerate(filters):
        if mask >> number & 1:
            continue
        if name == "deflate":
            raw = zlib.compress(raw)
        elif name == "shuffle":
            raw = (
                np.frombuffer(raw[: len(raw) // 4 * 4], np.uint8).reshape(-1, 4).T.tobytes() + raw[len(raw) // 4 * 4 :]
            )
        elif name == "fletcher32":
            raw += fletcher32(raw)
        else:
            raw = lzf(raw)
    return raw


def case(
    shape: tuple[int, ...],
    chunk: tuple[int, ...] | None,
    filters: Sequence[str],
    *,
    target: int = 1,
    masks: Sequence[int] = (0,),
    absent: Sequence[int] = (),
) -> bytes:
    """One input; chunks take the masks in turn."""
    images = fields(shape)
    extents = chunk or shape
    count = len(filters) + (130 - 130 % 5 if chunk is None else 0)
    header = bytes(extent - 1 for extent in (*shape, *extents))
    header += bytes([count, *(_FILTERS.index(name) for name in filters), *[0] * (4 - len(filters))])
    header += bytes([target, 7 % shape[3], 3 % shape[3], 20, shape[1] - 1])
    assert all(extent <= most for extent, most in zip((*shape, *extents), _MOST * 2, strict=True))
    if chunk is None:
        return header + bytes(3) + images.tobytes()
    grid = [-(-n // side) for n, side in zip(shape, chunk, strict=True)]
    padded = np.zeros([cells * side for cells, side in zip(grid, chunk, strict=True)], "<f4")
    padded[tuple(map(slice, shape))] = images
    table, contents = b"", b""
    for number, cell in enumerate(np.ndindex(*grid)):
        corner = tuple(slice(at * side, (at + 1) * side) for at, side in zip(cell, chunk, strict=True))
        mask = masks[number % len(masks)]
        data = encode(padded[corner].tobytes(), filters, mask)
        address = _ABSENT if number in absent else len(contents).to_bytes(3, "little")
        table += address + len(data).to_bytes(3, "little") + bytes([mask])
        contents += data
    return header + table + contents


def cases() -> dict[str, bytes]:
    """Inputs of every kind, by name."""
    shape, chunk = (4, 3, 8, 24), (2, 1, 5, 16)
    chains = [
        ("deflate",),
        ("shuffle",),
        ("lzf",),
        ("fletcher32",),
        ("shuffle", "deflate"),
        ("shuffle", "lzf", "fletcher32"),
        ("deflate", "shuffle", "lzf", "fletcher32"),
    ]
    result = {"-".join(chain): case(shape, chunk, chain, target=at % 4) for at, chain in enumerate(chains)}
    result["contiguous"] = case(shape, None, (), target=2)
    result["raw"] = case(shape, (1, 3, 8, 24), (), target=0)
    result["masks"] = case(shape, chunk, ("shuffle", "deflate"), masks=(0, 1, 2, 3))
    result["absent"] = case(shape, chunk, ("deflate",), absent=(0, 5, 6))
    result["one-value"] = case((1, 1, 1, 1), (1, 1, 1, 1), ("deflate",))
    result["larger-chunks"] = case((2, 2, 3, 5), (4, 4, 8, 16), ("shuffle", "deflate"), target=3)
    result["short"] = b"\1\2\3"
    result["empty"] = b""
    return result
