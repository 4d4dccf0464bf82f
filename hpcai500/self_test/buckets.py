"""The bucket kernels against NumPy: casts into one buffer and back, the int8 form, norms, and copies past the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hpcai500 import _core
from hpcai500.self_test.checking import require, require_equal
from hpcai500.self_test.images import bfloat16_of

Floats = NDArray[np.float32]
_Wire = Literal["float32", "float16", "bfloat16"]
_ITEMS: Final[dict[_Wire, Any]] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_BLOCK, _CHUNK, _CHUNK_BYTES = 256, 4096, 4160
# Sizes around a vector, a block and a chunk, none, and one that several threads share.
_SIZES = (0, 1, 17, 255, 256, 257, 4095, 4097, 300_001)
# NumPy adds float64 squares in another order: the error of a sum grows with its length at most.
_NORM_TOLERANCE = 1e-10


def check_packing() -> str:
    """Scaled and cast into one buffer of each type, and back, with the norms of what went in and came out."""
    tensors = _tensors()
    count, norms, target = sum(t.size for t in tensors), np.empty(len(tensors)), np.empty(0, np.float32)
    for wire, item in _ITEMS.items():
        out, target = np.empty(count, item), np.empty(count, np.float32)
        _core.pack(tensors, out, wire=wire, scale=0.3, threads=2, norms=norms)
        scaled = _flat(tensors) * np.float32(0.3)
        expected = _cast(scaled, wire)
        require_equal(f"packed {wire}", out, expected)
        _require_norms(f"norms of packed {wire}", norms, tensors)
        _core.unpack(out, [target], wire=wire, scale=3.0, threads=2, norms=norms[:1])
        require_equal(f"unpacked {wire}", target, _wide(expected, wire) * np.float32(3.0))
        _require_norms(f"norm of unpacked {wire}", norms[:1], [target])
    return f"{count} values of {len(tensors)} tensors; float32, float16, bfloat16; exactly (norms to 1e-10)"


def check_quantising() -> str:
    """The int8 form with error feedback, twice, so that the residual of the first is in the second."""
    tensors = _tensors()
    count, norms = sum(t.size for t in tensors), np.empty(len(tensors))
    out = np.empty(_core.quantised_bytes(count), np.uint8)
    residual = np.zeros(count, np.float32)
    for _ in range(2):
        expected, rest = _quantised(_flat(tensors) * np.float32(1.7) + residual)
        _core.quantise(tensors, out, scale=1.7, threads=2, residual=residual, norms=norms)
        require_equal("quantised buffer", out, expected)
        require_equal("residual", residual, rest)
        _require_norms("norms of what was quantised", norms, tensors)
        target = np.ones(count, np.float32)
        _core.dequantise(out, [target], scale=0.5, threads=2, norms=norms[:1])
        require_equal("dequantised", target, values := _dequantised(expected, count, 0.5))
        _require_norms("norm of what was dequantised", norms[:1], [target])
        _core.dequantise(out, [target], scale=0.5, threads=2, accumulate=True)
        require_equal("dequantised and added", target, values + values)
    return f"{count} values, int8 with error feedback, twice; exactly (norms to 1e-10)"


def check_norms() -> str:
    """Norms of all layers, also where a square has no float32."""
    tensors = [*_tensors(), np.full(10_000, 3e38, np.float32), np.full(10_000, 1e-45, np.float32)]
    norms = np.empty(len(tensors))
    _core.layer_norms(tensors, norms, threads=2)
    _require_norms("layer norms", norms, tensors)
    return f"{len(tensors)} tensors, to 1e-10 of their norms in float64"


def check_copies() -> str:
    """The copy and the read that memory is measured by."""
    source, target = _lines(1 << 20), _lines(1 << 20)
    source[:] = np.random.default_rng(5).integers(0, 256, source.size, np.uint8)
    _core.stream_copy(source, target, threads=2)
    require_equal("copied bytes", target, source)
    largest = int((source.view("<u4") & 0x7FFFFFFF).max())
    require_equal("largest word read", _core.stream_read(source, threads=2), largest)
    return "1 MiB, exactly"


def _tensors() -> list[Floats]:
    random = np.random.default_rng(2)
    tensors = [(random.standard_normal(n) * 10.0 ** random.integers(-6, 3)).astype(np.float32) for n in _SIZES]
    tensors.append(random.standard_normal((3, 5, 2, 7)).astype(np.float32).transpose(0, 3, 1, 2))
    tensors.append(np.array([7e4, -1e30, 1e-41, -0.0], np.float32))
    return tensors


def _flat(tensors: Sequence[Floats]) -> Floats:
    """All elements as they lie in memory, one tensor after the other."""
    axes = [sorted(range(t.ndim), key=lambda axis, t=t: -t.strides[axis]) for t in tensors]  # type: ignore[misc]
    return np.concatenate([t.transpose(order).reshape(-1) for t, order in zip(tensors, axes, strict=True)])


def _cast(values: Floats, wire: _Wire) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return bfloat16_of(values) if wire == "bfloat16" else values.astype(_ITEMS[wire])


def _wide(buffer: NDArray[Any], wire: _Wire) -> Floats:
    if wire == "bfloat16":
        return (buffer.astype(np.uint32) << 16).view(np.float32)
    wide: Floats = buffer.astype(np.float32)
    return wide


def _quantised(values: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """The buffer and the residual: a block's scale is its largest magnitude / 127, its codes the nearest."""
    padded = np.zeros(-(-len(values) // _CHUNK) * _CHUNK, np.float32)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, _BLOCK)
    largest = np.abs(blocks).max(axis=1)
    codable = largest >= np.float32(2.0**-119)
    scales = np.where(codable, largest / np.float32(127), np.float32(0))
    inverse = np.where(codable, np.float32(127) / np.where(codable, largest, np.float32(1)), np.float32(0))
    codes = np.rint(blocks * inverse[:, None]).astype(np.int8)
    rest = (blocks - codes.astype(np.float32) * scales[:, None]).reshape(-1)[: len(values)]
    heads = scales.astype("<f4").reshape(-1, _CHUNK // _BLOCK).view(np.uint8)
    return np.concatenate([heads, codes.reshape(-1, _CHUNK).view(np.uint8)], axis=1).reshape(-1), rest


def _dequantised(buffer: NDArray[np.uint8], count: int, scale: float) -> Floats:
    chunks = buffer.reshape(-1, _CHUNK_BYTES)
    scales = np.ascontiguousarray(chunks[:, :64]).view("<f4").reshape(-1, 1)
    codes = np.ascontiguousarray(chunks[:, 64:]).view(np.int8).reshape(-1, _BLOCK)
    values: Floats = (codes.astype(np.float32) * scales * np.float32(scale)).reshape(-1)[:count]
    return values


def _require_norms(what: str, norms: NDArray[np.float64], tensors: Sequence[Floats]) -> None:
    expected = np.array([np.sqrt(np.square(t.astype(np.float64)).sum()) for t in tensors])
    with np.errstate(invalid="ignore"):
        off = ~((norms == expected) | (np.abs(norms - expected) <= _NORM_TOLERANCE * expected))
    shown = f"{norms[off][:1]} instead of {expected[off][:1]}"
    require(not off.any(), f"{what}: {np.count_nonzero(off)} of {len(off)} are off, the first is {shown}")


def _lines(size_bytes: int) -> NDArray[np.uint8]:
    """Memory that begins at a whole line."""
    memory = np.zeros(size_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size_bytes]
