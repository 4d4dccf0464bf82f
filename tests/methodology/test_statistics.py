"""Intervals of few runs, equivalence, contracted tolerances and samples in a bounded space."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from hpcai500.errors import UsageError
from hpcai500.methodology.statistics import (
    INCONCLUSIVE,
    NOT_REPLICATED,
    REPLICATED,
    Limits,
    Reservoir,
    compared_interval,
    compared_value,
    difference_interval,
    equivalence,
    least_mean_time,
    mean_interval,
    quality_tolerance,
    spread,
    student_t_quantile,
    weighted_quantile,
)

# --- Confidence intervals: against published tables, against SciPy, and as laws.


runs = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12)
probabilities = st.floats(1e-6, 1 - 1e-6)


# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: upper critical values of Student's t distribution.
@pytest.mark.parametrize(
    ("degrees", "p", "value"),
    [
        (1, 0.90, 3.078),
        (1, 0.975, 12.706),
        (2, 0.95, 2.920),
        (4, 0.975, 2.776),
        (8, 0.999, 4.501),
        (9, 0.975, 2.262),
        (18, 0.975, 2.101),
        (30, 0.99, 2.457),
        (100, 0.975, 1.984),
    ],
)
def test_quantiles_are_those_of_the_published_table(degrees: int, p: float, value: float) -> None:
    assert student_t_quantile(p, degrees) == pytest.approx(value, abs=0.0006)
    assert student_t_quantile(1 - p, degrees) == pytest.approx(-value, abs=0.0006)


@given(probabilities)
def test_one_degree_is_cauchys_distribution_and_two_have_a_closed_form(p: float) -> None:
    assert student_t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-8, abs=1e-8)
    closed = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    assert student_t_quantile(p, 2) == pytest.approx(closed, rel=1e-8, abs=1e-8)


@pytest.mark.filterwarnings("ignore:Precision loss")
@settings(max_examples=50, deadline=None)
@given(runs, runs)
def test_welchs_interval_is_scipys(one: list[float], other: list[float]) -> None:
    if statistics.variance(one) + statistics.variance(other) < 1e-3:
        return
    ours = difference_interval(one, other)
    peer = stats.ttest_ind(other, one, equal_var=False).confidence_interval(0.95)
    assert ours is not None
    assert [ours.low, ours.high] == pytest.approx([peer.low, peer.high], rel=1e-7, abs=1e-6)


def test_welchs_interval_of_a_worked_example() -> None:
    """Means 2 and 5, squared errors 1/3 and 1/3: 4 degrees of freedom, t = 2.776445."""
    interval = difference_interval([1, 2, 3], [4, 5, 6])
    assert interval is not None
    reach = 2.776445 * math.sqrt(2 / 3)
    assert [interval.mean, interval.low, interval.high] == pytest.approx([3, 3 - reach, 3 + reach])
    assert interval.contains(2)
    assert not interval.contains(0)
    assert interval.within(0, 6)
    assert not interval.within(1, 6)


def test_students_interval_of_a_worked_example() -> None:
    """Ten runs, 9 degrees of freedom, t = 2.262157."""
    interval = mean_interval(range(1, 11))
    assert interval is not None
    reach = 2.262157 * math.sqrt(55 / 6 / 10)
    assert [interval.mean, interval.low, interval.high] == pytest.approx([5.5, 5.5 - reach, 5.5 + reach])


def test_one_run_has_no_interval() -> None:
    assert mean_interval([1.0]) is None
    assert difference_interval([1.0], [1.0, 2.0]) is None
    assert difference_interval([1.0, 2.0], []) is None


def test_equal_runs_have_an_interval_without_width() -> None:
    interval = difference_interval([2.0, 2.0], [2.5, 2.5, 2.5])
    assert interval is not None
    assert (interval.low, interval.mean, interval.high) == (0.5, 0.5, 0.5)


@given(runs, runs, st.floats(0.5, 0.98))
def test_an_interval_holds_its_mean_and_grows_with_confidence(
    one: list[float], other: list[float], confidence: float
) -> None:
    narrow, wide = (difference_interval(one, other, level) for level in (confidence, (1 + confidence) / 2))
    assert narrow is not None
    assert wide is not None
    assert wide.low <= narrow.low <= narrow.mean <= narrow.high <= wide.high


@given(runs, runs, st.randoms())
def test_the_order_of_runs_changes_nothing_and_swapping_them_mirrors(
    one: list[float], other: list[float], random: object
) -> None:
    shuffled = list(one)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    interval, mirrored = difference_interval(shuffled, other), difference_interval(other, one)
    assert interval == difference_interval(one, other)
    assert interval is not None
    assert mirrored is not None
    assert [interval.low, interval.high] == pytest.approx([-mirrored.high, -mirrored.low])


@given(runs, runs, st.integers(-60, 60))
def test_the_interval_is_scale_free(one: list[float], other: list[float], exponent: int) -> None:
    scale = 2.0**exponent
    interval = difference_interval(one, other)
    scaled = difference_interval([scale * value for value in one], [scale * value for value in other])
    assert interval is not None
    assert scaled is not None
    assert scaled.low == pytest.approx(scale * interval.low, rel=1e-9, abs=scale * 1e-9)
    assert scaled.high == pytest.approx(scale * interval.high, rel=1e-9, abs=scale * 1e-9)


@given(runs)
def test_a_difference_to_itself_is_none(values: list[float]) -> None:
    interval = difference_interval(values, values)
    assert interval is not None
    assert interval.contains(0)


@pytest.mark.parametrize(("p", "degrees"), [(0, 3), (1, 3), (math.nan, 3), (0.9, 0), (0.9, math.inf)])
def test_what_is_no_probability_and_no_degree_is_refused(p: float, degrees: float) -> None:
    with pytest.raises(UsageError, match="expected"):
        student_t_quantile(p, degrees)


# --- When a repetition is the same: by the interval of the difference, never for lack of runs.


few_runs = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=10)
# Runs of which many pairs are the same within these tolerances.
alike = st.lists(st.floats(95, 105), min_size=3, max_size=10)
tolerances = st.floats(0, 0.5)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([101, 102, 100, 101, 102], REPLICATED),
        ([120, 121, 119, 120, 121], NOT_REPLICATED),
        ([80, 81, 79, 80, 81], NOT_REPLICATED),
        ([104, 105, 103, 106, 105], INCONCLUSIVE),
        # The means are equal, but a repetition that varies so much shows nothing.
        ([70, 130, 85, 115, 100], INCONCLUSIVE),
        ([100, 101], REPLICATED),
        ([100, 110], INCONCLUSIVE),
        ([100], INCONCLUSIVE),
    ],
)
def test_the_interval_must_lie_within_the_tolerance(other: list[float], verdict: str) -> None:
    assert equivalence([100, 101, 99, 100, 100], other, 0.05).verdict == verdict


def test_mean_and_variation_are_of_all_runs() -> None:
    told = spread([1.0, 2.0, 3.0])
    assert (told.runs, told.mean, told.variation) == (3, 2.0, 0.5)
    assert spread([5.0]).variation is None
    assert spread([-1.0, 1.0]).variation is None


def test_a_tolerance_of_quality_is_one_of_the_penalty_coefficient() -> None:
    assert quality_tolerance(0.05, 5) == pytest.approx(0.0098, abs=5e-5)
    assert quality_tolerance(0.05, 10) == pytest.approx(0.0049, abs=5e-5)
    assert (1 + quality_tolerance(0.05, 10)) ** 10 == pytest.approx(1.05)


@given(alike, alike, tolerances, tolerances)
def test_a_larger_tolerance_never_undoes_a_replication(
    one: list[float], other: list[float], tolerance: float, more: float
) -> None:
    assume(equivalence(one, other, tolerance).verdict == REPLICATED)
    assert equivalence(one, other, tolerance + more).verdict == REPLICATED


@given(few_runs, few_runs, tolerances, st.integers(-40, 40))
def test_the_verdict_is_free_of_scale(one: list[float], other: list[float], tolerance: float, exponent: int) -> None:
    scaled = [[value * 2.0**exponent for value in side] for side in (one, other)]
    before, after = equivalence(one, other, tolerance), equivalence(*scaled, tolerance)
    assert after.verdict == before.verdict
    assert after.ratio == pytest.approx(before.ratio)


@given(few_runs, few_runs, tolerances, st.floats(0.5, 0.98))
def test_more_confidence_never_turns_doubt_into_a_verdict(
    one: list[float], other: list[float], tolerance: float, confidence: float
) -> None:
    assume(equivalence(one, other, tolerance, confidence).verdict == INCONCLUSIVE)
    assert equivalence(one, other, tolerance, (1 + confidence) / 2).verdict == INCONCLUSIVE


@given(alike, alike, tolerances)
def test_a_replication_has_means_within_the_tolerance(one: list[float], other: list[float], tolerance: float) -> None:
    found = equivalence(one, other, tolerance)
    assume(found.verdict == REPLICATED)
    assert abs(found.other.mean - found.one.mean) <= found.limit * (1 + 1e-12) + 1e-12


def test_no_runs_and_a_negative_tolerance_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one run"):
        equivalence([], [1.0], 0.05)
    with pytest.raises(UsageError, match="tolerance: expected 0 or more"):
        equivalence([1.0], [1.0], -0.1)


# --- Contracted values: margin and verdict agree, do not depend on units, and never punish what is better.


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
            compared_value(values, statistic, kept), compared_value(shuffled, statistic, kept), rel_tol=1e-12
        )


@given(st.lists(amounts, min_size=1, max_size=12))
def test_every_is_kept_only_if_each_run_keeps_it(values: list[float]) -> None:
    kept = Limits(1e3, -0.1, 0.1)
    assert kept.holds(compared_value(values, "every", kept)) == all(map(kept.holds, values))


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
    assert compared_value(values, "mean", kept) == pytest.approx(10.5)
    assert compared_value(values, "median", kept) == pytest.approx(10.5)
    assert compared_value(values, "every", kept) == 30.0
    assert compared_value((9.6, 11.0), "every", kept) == 9.6


def test_intervals_are_told_only_where_they_have_the_confidence() -> None:
    low, high = compared_interval((8.0, 9.0, 10.0, 11.0, 12.0), "mean", positive=False) or (0.0, 0.0)
    # Student's t of 4 degrees of freedom: 2.7764.
    assert (low, high) == pytest.approx((10 - 2.7764 / math.sqrt(2), 10 + 2.7764 / math.sqrt(2)), abs=1e-4)
    assert compared_interval((9.0, 10.0, 11.0, 12.0), "mean") is None
    assert compared_interval((0.0, 1.0, 2.0, 3.0, 4.0), "mean") is None
    assert compared_interval((1.0, 2.0, 3.0, 4.0, 5.0), "median") is None
    assert compared_interval((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), "median") == (1.0, 6.0)
    assert compared_interval((1.0, 2.0), "every") is None


@given(st.lists(st.floats(1e-9, 1e9), min_size=5, max_size=12), st.floats(1e-6, 1e6))
def test_the_interval_of_a_rate_is_positive_and_has_no_unit(values: list[float], unit: float) -> None:
    low, high = compared_interval(values, "mean") or (0.0, 0.0)
    middle = math.exp(math.fsum(map(math.log, values)) / len(values))
    assert 0 < low <= middle * (1 + 1e-9)
    assert middle * (1 - 1e-9) <= high
    assert compared_interval([value * unit for value in values], "mean") == pytest.approx((low * unit, high * unit))


def test_a_time_without_failures_bounds_the_mean_time_between_them() -> None:
    assert least_mean_time(100.0) == pytest.approx(100 / 2.995732)
    assert least_mean_time(100.0, 0.5) == pytest.approx(100 / math.log(2))


def test_a_limit_within_an_interval_is_told() -> None:
    kept = Limits(100.0, -0.05, None)
    assert kept.within(94.0, 96.0)
    assert not kept.within(95.0, 99.0)
    assert not kept.within(96.0, 99.0)


# --- Of a stream, a bounded number is kept.


def test_a_reservoir_keeps_each_thing_with_the_same_probability() -> None:
    chosen = np.zeros(40)
    reservoir: Reservoir[int] = Reservoir(10)
    for start in range(4000):
        # One generator over all rounds: else each would choose alike.
        reservoir.seen, reservoir.kept = 0, []
        for number in range(40):
            reservoir.add(number)
        chosen[list(reservoir)] += 1
        assert len(reservoir.kept) == 10, start
    assert np.abs(chosen / 4000 - 0.25).max() < 0.04


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 5)), min_size=1), st.floats(0, 1))
def test_a_weighted_quantile_has_that_share_of_the_weight_at_or_below(
    values: list[tuple[float, float]], share: float
) -> None:
    found = weighted_quantile(values, share)
    whole = sum(weight for _, weight in values)
    assert sum(weight for value, weight in values if value <= found) >= share * whole - 1e-9
    assert sum(weight for value, weight in values if value < found) <= share * whole + 1e-9
