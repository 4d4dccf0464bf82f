"""Buckets of gradients in the core: casts, the int8 form and norms, against NumPy twins."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bucket_reference import (
    BLOCK,
    CHUNK,
    CHUNK_BYTES,
    ITEMS,
    SIZES,
    SMALLEST_PEAK,
    Floats,
    dequantise,
    flat,
    from_bfloat16,
    guarded,
    guards_hold,
    memory_order,
    norms_of,
    pack,
    quantise,
    quantised,
    some_tensors,
    to_bfloat16,
    unpack,
)
from builders.instruction_sets import on_each
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcai500 import _core
from hpcai500.comm import kernels

# --- pack and unpack give what NumPy gives, bit for bit, and touch nothing else.


WIRES = ["float32", "float16", "bfloat16"]
NAN_MAGNITUDE = {2: 0x7C00, 4: 0x7F800000}


def assert_same(got: NDArray[Any], expected: NDArray[Any], wire: str) -> None:
    """Equal bits; a NaN may be any NaN of its sign."""
    if wire == "bfloat16":
        got, expected = from_bfloat16(got), from_bfloat16(expected)
    nan = np.isnan(expected)
    assert np.array_equal(nan, np.isnan(got))
    assert np.array_equal(np.signbit(got), np.signbit(expected))
    assert got[~nan].tobytes() == expected[~nan].tobytes()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("misaligned", [0, 1, 13])
@pytest.mark.parametrize("threads", [1, 3])
def test_odd_sizes_layouts_and_places_equal_numpy(wire: str, misaligned: int, threads: int) -> None:
    tensors = some_tensors(5)
    count, scale = sum(t.size for t in tensors), 0.37
    out, around = guarded(count, ITEMS[wire], misaligned)
    norms = np.empty(len(tensors))
    _core.pack(tensors, out, wire=wire, scale=scale, threads=threads, norms=norms)
    assert_same(out, pack(tensors, wire, scale), wire)
    assert guards_hold(out, around, misaligned)
    np.testing.assert_allclose(norms, norms_of(tensors), rtol=1e-12)
    without = np.empty_like(out)
    _core.pack(tensors, without, wire=wire, scale=scale, threads=threads)
    assert without.tobytes() == out.tobytes()

    memory, surroundings = guarded(count, np.float32, misaligned)
    targets = np.split(memory, np.cumsum([t.size for t in tensors])[:-1])
    _core.unpack(out, targets, wire=wire, scale=scale, threads=threads, norms=norms)
    assert_same(memory, unpack(out, wire, scale), "float32")
    assert guards_hold(memory, surroundings, misaligned)
    np.testing.assert_allclose(norms, norms_of(targets), rtol=1e-12)


def test_every_half_is_read_as_numpy_reads_it() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    target = np.empty(1 << 16, np.float32)
    _core.unpack(halves.view(np.float16), [target], wire="float16", scale=1.0, threads=1)
    assert_same(target, halves.view(np.float16).astype(np.float32), "float32")
    again = np.empty(1 << 16, np.float16)
    _core.pack([target], again, wire="float16", scale=1.0, threads=1)
    assert_same(again, halves.view(np.float16), "float16")


def test_every_bfloat16_is_read_and_written() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    target, again = np.empty(1 << 16, np.float32), np.empty(1 << 16, np.uint16)
    _core.unpack(bits, [target], wire="bfloat16", scale=1.0, threads=1)
    assert_same(target, from_bfloat16(bits), "float32")
    _core.pack([target], again, wire="bfloat16", scale=1.0, threads=1)
    assert_same(again, bits, "bfloat16")


def around_every_half() -> Floats:
    """Each half, the middle to the next one, and the floats beside both."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1].astype(np.float64) + halves[1:]) / 2
    values = np.concatenate([halves, middles.astype(np.float32), np.float32([65519.996, 65520, 65536, 3.4e38])])
    beside = [values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(-np.inf))]
    return np.concatenate([*beside, *(-part for part in beside)])


def test_rounding_between_all_halves_is_numpys() -> None:
    values = around_every_half()
    out = np.empty(len(values), np.float16)
    _core.pack([values], out, wire="float16", scale=1.0, threads=2)
    assert_same(out, pack([values], "float16", 1.0), "float16")
    assert np.isinf(out).any()


def test_bfloat16_is_torchs_but_for_the_sign_of_nan() -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
    out = np.empty(len(values), np.uint16)
    _core.pack([values], out, wire="bfloat16", scale=1.0, threads=2)
    assert_same(out, to_bfloat16(values), "bfloat16")
    torchs = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(out[~np.isnan(values)], torchs[~np.isnan(values)])


@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=70), max_size=5),
    st.sampled_from(WIRES),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(1, 3),
)
def test_any_bits_and_any_scale_equal_numpy(bits: list[list[int]], wire: str, scale: float, threads: int) -> None:
    tensors = [np.array(one, np.uint32).view(np.float32) for one in bits]
    count = sum(t.size for t in tensors)
    out, norms = np.empty(count, ITEMS[wire]), np.empty(len(tensors))
    _core.pack(tensors, out, wire=wire, scale=scale, threads=threads, norms=norms)
    assert_same(out, pack(tensors, wire, scale), wire)
    np.testing.assert_allclose(norms, norms_of(tensors), rtol=1e-12)
    target = np.empty(count, np.float32)
    _core.unpack(out, [target], wire=wire, scale=scale, threads=threads)
    assert_same(target, unpack(out, wire, scale), "float32")


@pytest.mark.parametrize("wire", WIRES)
def test_what_the_gradients_were_comes_back_within_the_types_precision(wire: str) -> None:
    precision = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[wire]
    tensors = [np.random.default_rng(1).uniform(1e-3, 2, 5000).astype(np.float32)]
    out, target = np.empty(5000, ITEMS[wire]), np.empty(5000, np.float32)
    # Powers of two, as loss scalers have: the scale itself costs nothing.
    _core.pack(tensors, out, wire=wire, scale=1024.0, threads=1)
    _core.unpack(out, [target], wire=wire, scale=1 / 1024, threads=1)
    assert (np.abs(target - tensors[0]) <= precision * tensors[0]).all()


def test_channels_last_gradients_keep_their_memorys_order() -> None:
    gradient = torch.randn(8, 3, 5, 5).contiguous(memory_format=torch.channels_last).numpy()
    target = torch.empty(8, 3, 5, 5).contiguous(memory_format=torch.channels_last).numpy()
    out = np.empty(gradient.size, np.float32)
    _core.pack([gradient], out, wire="float32", scale=1.0, threads=1)
    assert np.array_equal(out, gradient.transpose(0, 2, 3, 1).ravel())
    assert np.array_equal(memory_order(gradient), out)
    _core.unpack(out, [target], wire="float32", scale=1.0, threads=1)
    assert np.array_equal(target, gradient)


def test_a_callers_flushed_subnormals_are_its_own() -> None:
    values = np.array([1e-40, -3e-39, 1e-45, 5.0], np.float32)
    out, bits, norms = np.empty(4, np.float32), np.empty(4, np.uint16), np.empty(1)
    assert torch.set_flush_denormal(True)
    try:
        _core.pack([values], out, wire="float32", scale=0.5, threads=1)
        _core.pack([values], bits, wire="bfloat16", scale=1.0, threads=1)
        _core.layer_norms([values[:3]], norms, threads=1)
        assert torch.tensor(1e-40).mul(1).item() == 0
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(out, values * np.float32(0.5))
    assert np.array_equal(bits, to_bfloat16(values))
    assert norms[0] > 0


def test_a_longer_buffers_rest_is_left_alone() -> None:
    out = np.full(10, 7, np.float16)
    _core.pack([np.ones(4, np.float32), np.ones(0, np.float32)], out, wire="float16", scale=2.0, threads=1)
    assert out.tolist() == [2.0] * 4 + [7.0] * 6
    assert flat([]).size == 0
    _core.pack([], out, wire="float16", scale=1.0, threads=1)
    assert out.tolist() == [2.0] * 4 + [7.0] * 6


# --- The int8 form equals its twin, feeds its errors back, and lets no broken number pass for one.


LARGEST = np.finfo(np.float32).max


def one_nan(values: Floats) -> NDArray[np.uint32]:
    """The bits, with one NaN for all."""
    bits: NDArray[np.uint32] = np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)
    return bits


def same_floats(a: Floats, b: Floats) -> bool:
    """Equal bits but for those of NaN."""
    return np.array_equal(one_nan(a), one_nan(b))


@pytest.mark.parametrize("count", SIZES)
def test_a_bucket_of_one_tensor_equals_the_twin(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    size = _core.quantised_bytes(count)
    assert size == -(-count // CHUNK) * CHUNK_BYTES
    out, around = guarded(size, np.uint8)
    _core.quantise([values], out, scale=0.5, threads=2)
    assert np.array_equal(out, quantise(values * np.float32(0.5))[0])
    assert guards_hold(out, around)
    target, surroundings = guarded(count, np.float32, count % 3)
    _core.dequantise(out, [target], scale=3.0, threads=2)
    assert np.array_equal(target, dequantise(out, count, 3.0))
    assert guards_hold(target, surroundings, count % 3)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("misaligned", [0, 5])
def test_blocks_that_tensors_share_equal_the_twin(threads: int, misaligned: int) -> None:
    tensors = some_tensors(8)
    count, scale = sum(t.size for t in tensors), 1.7
    rest, around = guarded(count, np.float32, misaligned)
    rest[:] = np.random.default_rng(3).standard_normal(count).astype(np.float32) * np.float32(1e-3)
    expected, expected_rest = quantise(flat(tensors) * np.float32(scale) + rest)
    out, norms = np.empty(len(expected), np.uint8), np.empty(len(tensors))
    _core.quantise(tensors, out, scale=scale, threads=threads, residual=rest, norms=norms)
    assert np.array_equal(out, expected)
    assert np.array_equal(rest, expected_rest)
    assert guards_hold(rest, around, misaligned)
    np.testing.assert_allclose(norms, norms_of(tensors), rtol=1e-12)

    memory = np.ones(count, np.float32)
    targets = np.split(memory, np.cumsum([t.size for t in tensors])[:-1])
    _core.dequantise(out, targets, scale=0.3, threads=threads, accumulate=True, norms=norms)
    assert np.array_equal(memory, np.ones(count, np.float32) + dequantise(out, count, 0.3))
    np.testing.assert_allclose(norms, norms_of(targets), rtol=1e-12)
    _core.dequantise(out, targets, scale=0.3, threads=threads, norms=norms)
    assert np.array_equal(memory, dequantise(out, count, 0.3))
    np.testing.assert_allclose(norms, norms_of(targets), rtol=1e-12)


odd = st.sampled_from(
    [np.nan, np.inf, -np.inf, LARGEST, -LARGEST, 1e-45, 1e-38, SMALLEST_PEAK, 2.0**-120, -0.0, 0.0, 1e30, 127.5]
)
numbers = st.one_of(odd, st.floats(width=32), st.integers(0, 2**32 - 1).map(lambda b: np.uint32(b).view(np.float32)))


@given(st.lists(numbers, max_size=40), st.lists(numbers, max_size=40), st.integers(0, 300), st.floats(-4, 4, width=32))
def test_any_bits_equal_the_twin(first: list[Any], second: list[Any], gap: int, scale: float) -> None:
    with np.errstate(all="ignore"):
        tensors = [np.array(first, np.float32), np.zeros(gap, np.float32), np.array(second, np.float32)]
        values = flat(tensors) * np.float32(scale)
        rest = np.full(len(values), 2.0**-121, np.float32)
        expected, expected_rest = quantise(values + rest)
    out = quantised(tensors, scale, rest)
    assert same_floats(dequantise(out, len(values), 1.0), dequantise(expected, len(values), 1.0))
    assert np.array_equal(out.reshape(-1, CHUNK_BYTES)[:, 64:], expected.reshape(-1, CHUNK_BYTES)[:, 64:])
    assert np.array_equal(rest, expected_rest)
    assert np.isfinite(rest).all()


@given(st.binary(min_size=1, max_size=400), st.integers(0, CHUNK), st.booleans())
def test_any_bytes_are_a_buffer(content: bytes, count: int, accumulate: bool) -> None:
    buffer, target = np.resize(np.frombuffer(content, np.uint8), CHUNK_BYTES), np.full(count, 2, np.float32)
    _core.dequantise(buffer, [target], scale=1.5, threads=1, accumulate=accumulate)
    expected = dequantise(buffer, count, 1.5)
    with np.errstate(all="ignore"):
        assert same_floats(target, expected + np.float32(2) if accumulate else expected)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, LARGEST])
def test_a_broken_number_breaks_its_block_and_no_other(broken: float) -> None:
    values = np.random.default_rng(2).standard_normal(3 * BLOCK).astype(np.float32)
    values[BLOCK + 7] = broken
    rest, target = np.full(3 * BLOCK, 1e-3, np.float32), np.empty(3 * BLOCK, np.float32)
    _core.dequantise(quantised([values], 1.0, rest), [target], scale=1.0, threads=1)
    assert np.isnan(target[BLOCK : 2 * BLOCK]).all()
    assert np.isfinite(target[:BLOCK]).all()
    assert np.isfinite(target[2 * BLOCK :]).all()
    assert not rest[BLOCK : 2 * BLOCK].any()
    assert np.isfinite(rest).all()


def test_an_overflow_of_the_scale_is_seen() -> None:
    target = np.empty(BLOCK, np.float32)
    _core.dequantise(quantised([np.full(BLOCK, 1e30, np.float32)], 1e10), [target], scale=1.0, threads=1)
    assert np.isnan(target).all()


def test_tiny_values_are_kept_for_later() -> None:
    values = np.full(BLOCK, 2.0**-120, np.float32)
    rest, target = np.zeros(BLOCK, np.float32), np.full(BLOCK, 9, np.float32)
    _core.dequantise(quantised([values], 1.0, rest), [target], scale=1.0, threads=1)
    assert not target.any()
    assert np.array_equal(rest, values)
    # The next step's together with these are large enough.
    _core.dequantise(quantised([values], 1.0, rest), [target], scale=1.0, threads=1)
    np.testing.assert_allclose(target, 2.0**-119, rtol=1e-6)


def test_the_error_of_a_value_is_bounded_by_its_block() -> None:
    values = np.concatenate([np.random.default_rng(9).standard_normal(10 * BLOCK) * s for s in (1e-30, 1, 1e30)])
    given_values = values.astype(np.float32)
    target = np.empty(len(values), np.float32)
    _core.dequantise(quantised([given_values]), [target], scale=1.0, threads=1)
    largest = np.abs(given_values.astype(np.float64)).reshape(-1, BLOCK).max(axis=1, keepdims=True)
    error = np.abs(target.astype(np.float64) - given_values).reshape(-1, BLOCK)
    assert (error <= largest * 0.501 / 127).all()
    assert (error > largest * 0.49 / 127).any()


def test_what_rounding_takes_away_comes_later() -> None:
    # Of 0.001 beside 1.0, one step's code is 0: without feedback it would never arrive.
    gradient = np.full(BLOCK, 0.001, np.float32)
    gradient[0] = 1
    rest, total = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    steps = 400
    for _ in range(steps):
        _core.dequantise(quantised([gradient], 1.0, rest), [total], scale=1.0, threads=1, accumulate=True)
    np.testing.assert_allclose(total, gradient * steps, atol=1 / 127)
    np.testing.assert_allclose(total + rest, gradient * np.float32(steps), rtol=1e-4)
    assert not quantised([gradient])[64 + 1 : 64 + BLOCK].any()


def test_a_buffer_can_be_cut_between_chunks() -> None:
    values = np.random.default_rng(4).standard_normal(6 * CHUNK).astype(np.float32)
    whole = quantised([values])
    for shard in range(3):
        part = whole[shard * 2 * CHUNK_BYTES : (shard + 1) * 2 * CHUNK_BYTES]
        own = values[shard * 2 * CHUNK : (shard + 1) * 2 * CHUNK]
        assert np.array_equal(part, quantised([own]))


@pytest.mark.parametrize("count", [-1, 2**48 + 1])
def test_a_count_beyond_all_memory_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=r"count must be in \[0, 2\*\*48\]"):
        _core.quantised_bytes(count)


# --- The norms of all layers, against float64, at magnitudes whose squares no float has.


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_norms_of_odd_tensors_equal_float64(threads: int) -> None:
    tensors = some_tensors(11)
    norms = np.full(len(tensors), -1.0)
    _core.layer_norms(tensors, norms, threads=threads)
    np.testing.assert_allclose(norms, norms_of(tensors), rtol=1e-12)
    assert norms[0] == 0  # the tensor without elements


@pytest.mark.parametrize("magnitude", [1e-45, 1e-30, 1.0, 1e30, 3e38])
def test_no_square_overflows_or_vanishes(magnitude: float) -> None:
    tensor = np.full(10_000, magnitude, np.float32)
    norms = np.empty(1)
    _core.layer_norms([tensor], norms, threads=1)
    assert norms[0] == pytest.approx(float(np.float32(magnitude)) * 100, rel=1e-12)


def test_twenty_five_million_values_lose_nothing() -> None:
    tensor = np.tile(np.random.default_rng(0).standard_normal(100_000).astype(np.float32), 250)
    norms = np.empty(1)
    _core.layer_norms([tensor], norms, threads=2)
    exact = np.sqrt(np.square(tensor[:100_000].astype(np.longdouble)).sum() * 250)
    assert norms[0] == pytest.approx(float(exact), rel=1e-12)


def test_infinite_values_and_nan_give_what_they_give_in_numpy() -> None:
    tensors = [np.array(t, np.float32) for t in ([1, np.inf], [-np.inf, 2], [np.nan, 1], [np.inf, np.nan], [3, 4])]
    norms = np.empty(5)
    _core.layer_norms(tensors, norms, threads=2)
    assert np.array_equal(norms, [np.inf, np.inf, np.nan, np.nan, 5], equal_nan=True)


@given(st.lists(st.lists(st.floats(width=32), max_size=70), max_size=6))
def test_packing_takes_the_same_norms_along(values: list[list[float]]) -> None:
    tensors = [np.array(v, np.float32) for v in values]
    alone, packed = np.empty(len(tensors)), np.empty(len(tensors))
    _core.layer_norms(tensors, alone, threads=1)
    out = np.empty(sum(t.size for t in tensors), np.float16)
    _core.pack(tensors, out, wire="float16", scale=0.5, threads=1, norms=packed)
    assert alone.tobytes() == packed.tobytes()
    np.testing.assert_allclose(alone, norms_of(tensors), rtol=1e-12)


# --- What does not fit is refused by name before anything is written.


F4 = np.float32
PACKING = {"wire": "float16", "scale": 1.0, "threads": 1}
INT8 = {"scale": 1.0, "threads": 1}


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def unaligned(count: int, item: Any) -> Any:
    size = np.dtype(item).itemsize
    return np.zeros(count * size + 1, np.uint8)[1:].view(item)


def try_pack(sources: Any = None, out: Any = None, **changes: Any) -> None:
    sources = [np.ones(3, F4), np.ones((2, 2), F4)] if sources is None else sources
    _core.pack(sources, np.empty(7, np.float16) if out is None else out, **(PACKING | changes))


def try_unpack(source: Any = None, targets: Any = None, **changes: Any) -> None:
    targets = [np.ones(3, F4)] if targets is None else targets
    _core.unpack(np.ones(3, np.float16) if source is None else source, targets, **(PACKING | changes))


def try_quantise(out: Any = None, **changes: Any) -> None:
    _core.quantise([np.ones(300, F4)], np.empty(4160, np.uint8) if out is None else out, **(INT8 | changes))


def try_dequantise(source: Any, targets: Any, **changes: Any) -> None:
    _core.dequantise(source, targets, **(INT8 | changes))


SHARED = np.zeros(64, F4)
CASES: list[tuple[Callable[[], None], str]] = [
    (lambda: try_pack([np.ones(3, F4), np.ones(3)]), r"sources\[1\] must be float32 \(f4\), got f8"),
    (lambda: try_pack([np.ones(3, ">f4")]), r"sources\[0\] must be float32 \(f4\), got >f4"),
    (lambda: try_pack([np.ones(6, F4)[::2]]), r"sources\[0\] must be dense"),
    (lambda: try_pack([np.ones((3, 4), F4)[:, :2]]), r"sources\[0\] must be dense"),
    (lambda: try_pack([np.ones(6, F4)[::-1]]), r"sources\[0\] must be dense"),
    (lambda: try_pack([np.broadcast_to(F4(1), (3, 2))]), r"sources\[0\] must be dense"),
    (lambda: try_pack([unaligned(3, F4)]), r"sources\[0\] must be aligned to its items"),
    (lambda: try_pack(out=np.empty(6, np.float16)), r"out must have shape \(n,\), n at least 7.* got \(6,\) and f2"),
    (lambda: try_pack(out=np.empty(7, F4)), r"and type f2, got \(7,\) and f4"),
    (lambda: try_pack(out=np.empty(7, np.float16), wire="bfloat16"), r"and type u2, got \(7,\) and f2"),
    (lambda: try_pack(out=np.empty((7, 1), np.float16)), r"out must have shape \(n,\).* got \(7, 1\)"),
    (lambda: try_pack(out=np.empty(14, np.float16)[::2]), r"out must have shape \(n,\), n at least 7, without gaps"),
    (lambda: try_pack(out=unaligned(7, np.float16)), "out must be aligned to its items"),
    (lambda: try_pack(out=read_only(np.empty(7, np.float16))), "out must be writable"),
    (lambda: try_pack(wire="int4"), "wire must be float32, float16 or bfloat16, got int4"),
    (lambda: try_pack(scale=float("nan")), "scale must be finite in float32, got nan"),
    (lambda: try_pack(scale=1e39), r"scale must be finite in float32, got 1e\+39"),
    (lambda: try_pack(threads=0), "threads must be at least 1, got 0"),
    (lambda: try_pack(norms=np.empty(3)), "norms must have one item for each of the 2 tensors, got 3"),
    (lambda: try_pack(norms=np.empty(1)), r"norms must have shape \(n,\), n at least 2"),
    (lambda: try_pack(norms=np.empty(2, F4)), r"and type f8, got \(2,\) and f4"),
    (lambda: try_pack([SHARED], SHARED, wire="float32"), r"sources\[0\] overlaps out|out overlaps sources\[0\]"),
    (lambda: try_pack([SHARED[:9], SHARED[:3]], SHARED.view("f2")[15:33]), r"overlaps"),
    (lambda: try_pack([SHARED[8:]], SHARED.view("f2")[:80]), r"sources\[0\] overlaps out in memory"),
    (lambda: try_unpack(targets=[SHARED[:2], SHARED[1:2]]), r"targets\[1\] overlaps targets\[0\] in memory"),
    (lambda: try_unpack(targets=[read_only(np.ones(3, F4))]), r"targets\[0\] must be writable"),
    (lambda: try_unpack(np.ones(2, np.float16)), r"source must have shape \(n,\), n at least 3"),
    (lambda: try_unpack(np.ones(3, F4)), r"source must have .* type f2"),
    (lambda: try_quantise(np.empty(4159, np.uint8)), r"out must have shape \(n,\), n at least 4160"),
    (lambda: try_quantise(np.empty(4160, np.int8)), r"and type u1, got \(4160,\) and i1"),
    (lambda: try_quantise(residual=np.zeros(299, F4)), r"residual must have shape \(n,\), n at least 300"),
    (lambda: try_quantise(residual=read_only(np.zeros(300, F4))), "residual must be writable"),
    (lambda: try_dequantise(np.empty(4160, np.uint8), [np.ones(5000, F4)]), r"source must have .* at least 8320"),
    (lambda: _core.layer_norms([SHARED], SHARED.view("f8")[:1], threads=1), r"overlaps"),
    (lambda: _core.layer_norms([SHARED], np.empty(2), threads=1), "norms must have one item for each of the 1"),
    (lambda: _core.stream_read(np.zeros(100, np.uint8), threads=1), "source must be whole lines of 64 bytes"),
]


@pytest.mark.parametrize(("call", "message"), CASES)
def test_what_does_not_fit_is_named(call: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("tensor", [None, [1.0], 3, "tensor"])
def test_what_is_no_array_is_named(tensor: Any) -> None:
    with pytest.raises(TypeError, match=r"sources\[1\] must be a NumPy array, got <class"):
        try_pack([np.ones(3, F4), tensor])


def test_a_refused_call_writes_nothing() -> None:
    out = np.full(8, 5, np.float16)
    with pytest.raises(ValueError, match=r"sources\[1\]"):
        try_pack([np.ones(3, F4), np.ones(3)], out)
    assert (out == 5).all()


def test_sources_may_be_read_only_shared_and_in_any_sequence() -> None:
    source = read_only(np.arange(4, dtype=F4))
    out = np.empty(8, np.float16)
    try_pack((source, source), out)
    assert out.tolist() == [0, 1, 2, 3] * 2


def test_axes_of_length_one_and_empty_tensors_are_dense_whatever_their_strides() -> None:
    odd = np.lib.stride_tricks.as_strided(np.ones(3, F4), (1, 3, 1), (4000, 4, 12))
    empty = np.ones((4, 6), F4)[::2, 3:3]
    out = np.empty(3, np.float16)
    try_pack([odd, empty], out)
    assert out.tolist() == [1, 1, 1]


def test_streams_copy_and_read_whole_lines() -> None:
    memory = np.zeros(64 * 40_000 + 64, np.uint8)
    lines = memory[-memory.ctypes.data % 64 :][: 64 * 40_000]
    lines[:] = np.random.default_rng(0).integers(0, 256, len(lines), np.uint8)
    room = np.zeros(len(lines) + 64, np.uint8)
    out = room[-room.ctypes.data % 64 :][: len(lines)]
    _core.stream_copy(lines, out, threads=2)
    assert np.array_equal(lines, out)
    assert _core.stream_read(lines, threads=2) == (lines.view(np.uint32) & 0x7FFFFFFF).max()


def test_it_works_in_a_forked_child() -> None:
    source = np.ones(1_000_000, F4)
    norms = np.empty(1)
    _core.layer_norms([source], norms, threads=3)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = np.empty(1)
            _core.layer_norms([source], own, threads=3)
            code = 0 if own[0] == norms[0] == 1000 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# --- The torch face: views without copies, torch's types, and tensors that want gradients.


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator) for shape in ((64, 3, 7, 7), (64,), (), (0,), (5, 300))]
    tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
    return tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_bucket_goes_there_and_back(dtype: torch.dtype) -> None:
    sources = gradients()
    out = torch.empty(sum(t.numel() for t in sources) + 3, dtype=dtype)
    norms = torch.empty(len(sources), dtype=torch.float64)
    kernels.pack(sources, out, scale=8.0, norms=norms)
    torch.testing.assert_close(norms, torch.stack([t.double().norm() for t in sources]), rtol=1e-12, atol=0)
    first = sources[0].permute(0, 2, 3, 1).reshape(-1)
    assert out[: first.numel()].equal((first * 8).to(dtype))
    targets = [torch.full_like(t, 9) for t in sources]
    kernels.unpack(out, targets, scale=0.125, threads=1)
    for source, target in zip(sources, targets, strict=True):
        assert target.equal((source * 8).to(dtype).float() * 0.125)


def test_int8_feeds_back_what_it_lost() -> None:
    sources = gradients()
    count = sum(t.numel() for t in sources)
    out = torch.empty(kernels.quantised_bytes(count), dtype=torch.uint8)
    residual, norms = torch.zeros(count), torch.empty(len(sources), dtype=torch.float64)
    kernels.quantise(sources, out, residual=residual, norms=norms)
    targets = [torch.zeros_like(t) for t in sources]
    kernels.dequantise(out, targets)
    kernels.dequantise(out, targets, scale=-1.0, accumulate=True, norms=norms)
    assert not any(t.any() for t in targets)
    assert not norms.any()
    kernels.dequantise(out, targets)
    at = 0
    for source, target in zip(sources, targets, strict=True):
        order = (0, 2, 3, 1) if source.dim() == 4 else tuple(range(source.dim()))
        rest = residual[at : at + source.numel()]
        assert (target.permute(order).reshape(-1) + rest).allclose(source.permute(order).reshape(-1), atol=1e-6)
        at += source.numel()


def test_parameters_that_want_gradients_have_norms() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    norms = torch.empty(1, dtype=torch.float64)
    kernels.layer_norms([weight], norms)
    assert norms.item() == 5


def test_a_chunk_is_what_the_core_says() -> None:
    assert kernels.quantised_bytes(1) == kernels.quantised_bytes(kernels.QUANTISED_CHUNK)
    assert kernels.quantised_bytes(3 * kernels.QUANTISED_CHUNK) == 3 * kernels.QUANTISED_CHUNK_BYTES


def test_a_type_that_is_no_wire_is_refused() -> None:
    with pytest.raises(ValueError, match=r"out must be float32, float16 or bfloat16, got torch\.float64"):
        kernels.pack([torch.ones(2)], torch.empty(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"sources\[0\] must be dense"):
        kernels.pack([torch.ones(4)[::2]], torch.empty(2))


# --- The same bits on every processor and for any number of threads.


SCRIPT = """
import hashlib, sys
import numpy as np
from bucket_reference import ITEMS, some_tensors

random = np.random.default_rng(3)
threads = int(sys.argv[1])
digest = hashlib.sha256()
tensors = some_tensors(2)
# Any bits: all exponents, subnormal numbers, infinite ones, every kind of NaN.
tensors.append(random.integers(0, 1 << 32, 100_003, np.uint32).view(np.float32))
tensors.append(random.integers(0, 1 << 32, 5_000, np.uint32).view(np.float32))
tensors[-1][~np.isfinite(tensors[-1])] = 0
count = sum(t.size for t in tensors)
target, norms = np.empty(count, np.float32), np.empty(len(tensors))
for wire, item in ITEMS.items():
    for scale in (1.0, 0.1, 1e-30):
        out = np.empty(count, item)
        _core.pack(tensors, out, wire=wire, scale=scale, threads=threads, norms=norms)
        digest.update(out.tobytes() + norms.tobytes())
        _core.unpack(out, [target], wire=wire, scale=3 * scale, threads=threads, norms=norms[:1])
        digest.update(target.tobytes() + norms[:1].tobytes())
buffer = np.empty(_core.quantised_bytes(count), np.uint8)
for scale in (1.0, 0.1, 1e-30):
    rest = (random.standard_normal(count) * scale).astype(np.float32)
    _core.quantise(tensors, buffer, scale=scale, threads=threads, residual=rest, norms=norms)
    digest.update(buffer.tobytes() + rest.tobytes() + norms.tobytes())
    _core.dequantise(buffer, [target], scale=scale, threads=threads, norms=norms[:1])
    _core.dequantise(buffer, [target], scale=7.0, threads=threads, accumulate=True)
    digest.update(target.tobytes() + norms[:1].tobytes())
_core.layer_norms(tensors, norms, threads=threads)
print(digest.hexdigest(), hashlib.sha256(norms.tobytes()).hexdigest())
"""


def test_every_instruction_set_and_number_of_threads_gives_the_same_bits() -> None:
    printed = [text for threads in (1, 3) for text in on_each(SCRIPT, threads).values()]
    assert len(set(printed)) == 1
