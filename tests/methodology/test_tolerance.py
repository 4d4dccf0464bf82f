"""Contracted values: margin and verdict agree, do not depend on units, and never punish what is better."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.statistics import Limits, judged_interval, judged_value

amounts = st.floats(1e-6, 1e18)
lowers = st.floats(-0.99, 0.0)
uppers = st.floats(0.0, 1.0)
# Powers of two: no digit is rounded, so that the same limits are met to the last one.
scales = st.integers(-40, 40).map(lambda power: 2.0**power)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    lower, upper = draw(st.none() | lowers), draw(st.none() | uppers)
    if lower is None and upper is None:
        lower = draw(lowers)
    return Limits(draw(amounts), lower, upper)


@given(limits(), amounts)
def test_the_sign_of_the_margin_is_the_verdict(kept: Limits, measured: float) -> None:
    assert kept.holds(measured) == (kept.margin(measured) >= 0)
    outside = (kept.lowest is not None and measured < kept.lowest * (1 - 1e-6)) or (
        kept.highest is not None and measured > kept.highest * (1 + 1e-6)
    )
    inside = (kept.lowest is None or measured > kept.lowest) and (kept.highest is None or measured < kept.highest)
    assert kept.holds(measured) or not inside
    assert not (kept.holds(measured) and outside)


@given(limits(), amounts, scales)
def test_scaling_reference_and_measured_value_alike_changes_nothing(
    kept: Limits, measured: float, scale: float
) -> None:
    scaled = Limits(kept.reference * scale, kept.lower, kept.upper)
    assert scaled.margin(measured * scale) == kept.margin(measured)


@given(amounts, lowers, amounts, amounts)
def test_a_better_value_never_turns_pass_into_fail(
    reference: float, tolerance: float, measured: float, better_by: float
) -> None:
    higher, lower = Limits(reference, tolerance, None), Limits(reference, None, -tolerance)
    assert higher.holds(measured + better_by) >= higher.holds(measured)
    assert lower.holds(max(0.0, measured - better_by)) >= lower.holds(measured)
    assert higher.margin(measured + better_by) >= higher.margin(measured)


@given(st.lists(amounts, min_size=1, max_size=12), st.randoms())
def test_the_order_of_runs_changes_nothing(values: list[float], random: object) -> None:
    kept = Limits(values[0], -0.05, None)
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for statistic in ("every", "mean", "median"):
        assert math.isclose(
            judged_value(values, statistic, kept), judged_value(shuffled, statistic, kept), rel_tol=1e-12
        )


@given(st.lists(amounts, min_size=1, max_size=12))
def test_every_is_kept_only_if_each_run_keeps_it(values: list[float]) -> None:
    kept = Limits(1e3, -0.1, 0.1)
    assert kept.holds(judged_value(values, "every", kept)) == all(map(kept.holds, values))


def test_limits_themselves_are_accepted_however_they_are_written() -> None:
    for reference, lower in ((70.0, -0.1), (0.763, -0.05), (3.0, -0.3), (950e12, -0.05)):
        for fraction in (lower, -lower):
            limit = Limits(reference, lower, -lower)
            assert limit.margin(reference * (1 + fraction)) == 0.0
            assert limit.holds(reference * (1 + fraction))
    assert not Limits(100.0, -0.05, None).holds(94.9999)


def test_the_margin_is_that_of_the_nearest_limit_in_parts_of_the_reference() -> None:
    assert Limits(100.0, -0.05, None).margin(97.0) == pytest.approx(0.02)
    assert Limits(100.0, -0.05, None).margin(90.0) == pytest.approx(-0.05)
    assert Limits(100.0, -0.05, 0.01).margin(100.5) == pytest.approx(0.005)
    assert Limits(100.0, None, 0.1).margin(120.0) == pytest.approx(-0.1)


def test_a_mean_is_v2s_and_a_worst_run_is_the_one_nearest_the_limit() -> None:
    kept = Limits(10.0, -0.05, 0.2)
    values = (1.0, 10.0, 11.0, 30.0)
    assert judged_value(values, "mean", kept) == pytest.approx(10.5)
    assert judged_value(values, "median", kept) == pytest.approx(10.5)
    assert judged_value(values, "every", kept) == 30.0
    assert judged_value((9.6, 11.0), "every", kept) == 9.6


def test_intervals_are_told_only_where_they_have_the_confidence() -> None:
    low, high = judged_interval((9.0, 10.0, 11.0), "mean") or (0.0, 0.0)
    # Student's t of 2 degrees of freedom: 4.3027.
    assert (low, high) == pytest.approx((10 - 4.3027 / math.sqrt(3), 10 + 4.3027 / math.sqrt(3)), abs=1e-4)
    assert judged_interval((9.0,), "mean") is None
    assert judged_interval((1.0, 2.0, 3.0, 4.0, 5.0), "median") is None
    assert judged_interval((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), "median") == (1.0, 6.0)
    assert judged_interval((1.0, 2.0), "every") is None


def test_a_limit_within_an_interval_is_told() -> None:
    kept = Limits(100.0, -0.05, None)
    assert kept.within(94.0, 96.0)
    assert not kept.within(95.0, 99.0)
    assert not kept.within(96.0, 99.0)
