"""VFLOPS and its parts against the papers' own numbers, hand computation, and as properties."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.trials import flops_rate, penalty_coefficient, per_watt, valid_flops

quality = st.floats(0.01, 1.0)
exponent = st.integers(1, 20)

IMAGENET = 1_281_167


@pytest.mark.parametrize(
    ("minutes", "top1", "published_pflops"),
    [(1.2, 0.751, 31.41), (3.7, 0.750, 10.02), (6.6, 0.760, 6.44), (28, 0.746, 1.27), (50, 0.750, 0.75)],
    ids=["Fujitsu", "Sony", "Tencent", "Intel", "IBM"],
)
def test_the_published_ranking_comes_out_with_exponent_ten(
    minutes: float, top1: float, published_pflops: float
) -> None:
    rate = flops_rate(90 * IMAGENET, 23e9, minutes * 60)
    computed = valid_flops(rate, penalty_coefficient(top1, 0.763, 10))
    assert computed / 1e15 == pytest.approx(published_pflops, rel=0.01)


def test_the_published_v3_coefficient_of_image_classification_is_a_top1_of_0_757() -> None:
    # V3.0 section 5 states 0.96 for IC with n = 5.
    assert penalty_coefficient(0.757, 0.763, 5) == pytest.approx(0.96, abs=0.005)


def test_by_hand() -> None:
    assert flops_rate(1000, 24.3e9, 10) == pytest.approx(2.43e12)
    assert penalty_coefficient(0.5, 1.0, 3) == pytest.approx(0.125)
    assert valid_flops(8e12, 0.125) == pytest.approx(1e12)
    assert per_watt(1e12, 500) == pytest.approx(2e9)


@given(quality, exponent)
def test_the_target_itself_is_neither_penalised_nor_rewarded(target: float, n: int) -> None:
    assert penalty_coefficient(target, target, n) == 1.0


@given(st.floats(0, 1), st.floats(0, 1), quality, exponent)
def test_more_quality_never_lowers_the_coefficient(one: float, other: float, target: float, n: int) -> None:
    low, high = sorted((one, other))
    assert penalty_coefficient(low, target, n) <= penalty_coefficient(high, target, n)


@given(st.floats(0.1, 1), quality, exponent)
def test_a_larger_exponent_punishes_a_miss_more_and_rewards_a_pass_more(achieved: float, target: float, n: int) -> None:
    one, more = penalty_coefficient(achieved, target, n), penalty_coefficient(achieved, target, n + 1)
    assert more <= one if achieved <= target else more >= one


@given(st.integers(1, 10**9), st.floats(1e6, 1e13), st.floats(1e-3, 1e7), st.floats(1e-3, 1e3))
def test_flops_are_free_of_scale(samples: int, flops: float, seconds: float, scale: float) -> None:
    rate = flops_rate(samples, flops, seconds)
    assert flops_rate(samples, flops * scale, seconds * scale) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize("call", [
    lambda: flops_rate(-1, 1.0, 1.0),
    lambda: flops_rate(1, -1.0, 1.0),
    lambda: flops_rate(1, 1.0, 0.0),
    lambda: flops_rate(1, 1.0, math.inf),
    lambda: penalty_coefficient(1.1, 0.5, 5),
    lambda: penalty_coefficient(math.nan, 0.5, 5),
    lambda: penalty_coefficient(0.5, 0.0, 5),
    lambda: penalty_coefficient(0.5, 0.5, 0),
    lambda: valid_flops(-1.0, 1.0),
    lambda: per_watt(1.0, 0.0),
])  # fmt: skip
def test_numbers_that_mean_nothing_are_refused(call: Callable[[], float]) -> None:
    with pytest.raises(UsageError, match="expected"):
        call()
