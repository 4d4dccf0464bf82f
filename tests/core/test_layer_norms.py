"""The norms of all layers, against float64, at magnitudes whose squares no float has."""

from __future__ import annotations

import numpy as np
import pytest
from bucket_reference import norms_of, some_tensors
from hypothesis import given
from hypothesis import strategies as st

from hpcai500 import _core


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
