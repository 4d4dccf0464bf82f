"""Confidence intervals of few runs: against published tables, against SciPy, and as laws."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hpcai500.errors import UsageError
from hpcai500.methodology.statistics import difference_interval, mean_interval, student_t_quantile

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
