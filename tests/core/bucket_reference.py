"""NumPy twins of the bucket kernels, and tensors to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcai500 import _core

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BLOCK, CHUNK, CHUNK_BYTES = 256, 4096, 4160
SMALLEST_PEAK = np.float32(2.0**-119)
ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}

# Sizes around a vector, a line, a block, a chunk and a task, and none.
SIZES = [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 1000, 4095, 4096, 4097, 262144, 262145]


def memory_order(tensor: Floats) -> Floats:
    """A dense tensor's elements as they lie in memory."""
    axes = sorted(range(tensor.ndim), key=lambda axis: -tensor.strides[axis])
    return tensor.transpose(axes).reshape(-1)


def flat(tensors: Sequence[Floats]) -> Floats:
    """All elements, in the order of the buffer."""
    return np.concatenate([np.empty(0, np.float32), *map(memory_order, tensors)])


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Upper halves, rounded to nearest even; NaN keeps its own and becomes quiet."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    """The same upper half, and a lower half of zeros."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def pack(tensors: Sequence[Floats], wire: str, scale: float) -> NDArray[Any]:
    """What pack() writes."""
    with np.errstate(all="ignore"):
        values = flat(tensors) * np.float32(scale)
        return to_bfloat16(values) if wire == "bfloat16" else values.astype(ITEMS[wire])


def unpack(buffer: NDArray[Any], wire: str, scale: float) -> Floats:
    """What unpack() writes, one tensor after the other."""
    with np.errstate(all="ignore"):
        values = from_bfloat16(buffer) if wire == "bfloat16" else buffer.astype(np.float32)
        return values * np.float32(scale)


def quantise(values: Floats) -> tuple[Bytes, Floats]:
    """The buffer of values (scaled, residual added), and the new residual."""
    padded = np.zeros(-(-len(values) // CHUNK) * CHUNK, np.float32)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, BLOCK)
    with np.errstate(all="ignore"):
        largest = np.abs(blocks).max(axis=1, initial=0)
        broken = ~(largest < np.finfo(np.float32).max)  # NaN compares as false
        tiny = ~broken & (largest < SMALLEST_PEAK)
        codable = ~broken & ~tiny
        scales = np.where(codable, largest / np.float32(127), np.where(broken, np.float32(np.nan), np.float32(0)))
        inverse = np.where(codable, np.float32(127) / largest, np.float32(0))
        codes = np.where(codable[:, None], np.rint(blocks * inverse[:, None]), np.float32(0)).astype(np.int8)
        rests = blocks - codes.astype(np.float32) * scales[:, None]
    rests = np.where(broken[:, None], np.float32(0), rests)
    heads = scales.astype("<f4").reshape(-1, CHUNK // BLOCK).view(np.uint8)
    chunks = np.concatenate([heads, codes.reshape(-1, CHUNK).view(np.uint8)], axis=1)
    return chunks.reshape(-1), rests.reshape(-1)[: len(values)]


def dequantise(buffer: Bytes, count: int, scale: float) -> Floats:
    """What dequantise() writes, one tensor after the other."""
    chunks = buffer.reshape(-1, CHUNK_BYTES)
    scales = np.ascontiguousarray(chunks[:, :64]).view("<f4").reshape(-1, 1)
    codes = np.ascontiguousarray(chunks[:, 64:]).view(np.int8).reshape(-1, BLOCK)
    with np.errstate(all="ignore"):
        return (codes.astype(np.float32) * scales * np.float32(scale)).reshape(-1)[:count]


def norms_of(tensors: Sequence[Floats]) -> NDArray[np.float64]:
    """L2 norms in float64."""
    with np.errstate(all="ignore"):
        return np.array([np.sqrt(np.square(t.astype(np.float64)).sum()) for t in tensors], np.float64)


def some_tensors(seed: int, sizes: Sequence[int] = SIZES) -> list[Floats]:
    """Gradients of odd sizes and magnitudes, some with channels last, one of which lies on no line's begin."""
    random = np.random.default_rng(seed)
    tensors = [(random.standard_normal(n) * 10.0 ** random.integers(-6, 3)).astype(np.float32) for n in sizes]
    tensors.append(random.standard_normal((3, 5, 2, 7)).astype(np.float32).transpose(0, 3, 1, 2))
    tensors.append(np.asfortranarray(random.standard_normal((9, 4)).astype(np.float32)))
    tensors.append(random.standard_normal(1001).astype(np.float32)[1:])
    return tensors


def guarded(count: int, item: Any, misaligned: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """`count` items that begin `misaligned` items after a line's begin, and the memory around them, full of marks."""
    size = np.dtype(item).itemsize
    memory = np.full((count + 256) * size + 64, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64
    around = memory[start : start + (count + 256) * size].view(item)
    return around[64 + misaligned : 64 + misaligned + count], around


def guards_hold(inner: NDArray[Any], around: NDArray[Any], misaligned: int = 0) -> bool:
    """Whether nothing outside guarded()'s items was written."""
    begin = 64 + misaligned
    outside = np.concatenate([around[:begin].view(np.uint8), around[begin + len(inner) :].view(np.uint8)])
    return bool((outside == 0xA5).all())


def quantised(tensors: Sequence[Floats], scale: float = 1.0, residual: Floats | None = None) -> Bytes:
    """The buffer that the kernel makes."""
    out = np.empty(_core.quantised_bytes(sum(t.size for t in tensors)), np.uint8)
    _core.quantise(tensors, out, scale=scale, threads=2, residual=residual)
    return out
