"""pack and unpack give what NumPy gives, bit for bit, and touch nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bucket_reference import (
    ITEMS,
    Floats,
    flat,
    from_bfloat16,
    guarded,
    guards_hold,
    memory_order,
    norms_of,
    pack,
    some_tensors,
    to_bfloat16,
    unpack,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcai500 import _core

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
