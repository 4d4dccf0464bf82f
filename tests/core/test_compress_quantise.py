"""The int8 form equals its NumPy twin, feeds its errors back, and lets no broken number pass for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bucket_reference import (
    BLOCK,
    CHUNK,
    CHUNK_BYTES,
    SIZES,
    SMALLEST_PEAK,
    Floats,
    dequantise,
    flat,
    guarded,
    guards_hold,
    norms_of,
    quantise,
    quantised,
    some_tensors,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcai500 import _core

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
