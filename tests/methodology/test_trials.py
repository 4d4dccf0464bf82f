"""VFLOPS and its parts against the papers' own numbers, and what many runs of one recipe come to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.trials import flops_rate, penalty_coefficient, per_watt, runs_to_plan, summarise, valid_flops

values = st.floats(1e-3, 1e6)
runs = st.lists(values, min_size=1, max_size=20)
many_runs = st.lists(values, min_size=3, max_size=20)
# Sums of floats are rounded, in another way for another order of magnitude.
NEARLY = 1 + 1e-12


def test_highest_and_lowest_are_dropped_and_the_variation_is_of_all() -> None:
    summary = summarise([10, 1, 4, 6, 100])
    assert (summary.mean, summary.dropped_lowest, summary.dropped_highest) == (pytest.approx(20 / 3), 1, 100)
    assert summary.variation == pytest.approx(statistics.stdev([10, 1, 4, 6, 100]) / 24.2)


def test_two_runs_are_both_kept() -> None:
    summary = summarise([2.0, 4.0])
    assert (summary.mean, summary.dropped_lowest) == (3.0, None)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused_in_a_sentence(odd: float) -> None:
    with pytest.raises(UsageError, match="expected a finite number for each run"):
        summarise([1.0, odd, 2.0])


def test_one_run_has_no_variation() -> None:
    assert summarise([5.0]).variation is None


@given(runs, st.randoms())
def test_the_order_of_runs_changes_nothing(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summarise(shuffled) == summarise(values)


@given(many_runs)
def test_the_mean_lies_between_the_extremes_that_are_kept(values: list[float]) -> None:
    kept = sorted(values)[1:-1]
    assert min(kept) <= summarise(values).mean * NEARLY
    assert summarise(values).mean <= max(kept) * NEARLY


@given(runs, st.floats(1e-6, 1e6))
def test_the_unit_of_a_metric_changes_its_mean_alike_and_its_variation_not_at_all(
    values: list[float], factor: float
) -> None:
    one, other = summarise(values), summarise([value * factor for value in values])
    assert other.mean == pytest.approx(one.mean * factor, rel=1e-9)
    if one.variation is None:
        assert other.variation is None
    else:
        assert other.variation == pytest.approx(one.variation, rel=1e-6, abs=1e-9)


@given(runs, st.integers(0, 19), st.floats(0, 1e6))
def test_a_run_that_had_been_better_never_lowers_the_mean(values: list[float], place: int, more: float) -> None:
    better = list(values)
    better[place % len(values)] += more
    assert summarise(better).mean * NEARLY >= summarise(values).mean


@given(runs, st.floats(1, 10))
def test_one_more_run_that_is_not_below_the_mean_never_lowers_it(values: list[float], ratio: float) -> None:
    mean = summarise(values).mean
    assert summarise([*values, mean * ratio * NEARLY]).mean * (1 + 1e-9) >= mean


@given(many_runs, values)
def test_neither_the_best_nor_the_worst_run_moves_the_mean(values: list[float], far: float) -> None:
    ordered = sorted(values)
    further = [ordered[0] / (1 + far), *ordered[1:-1], ordered[-1] + far]
    assert summarise(further).mean == summarise(values).mean


@given(values, st.integers(2, 20))
def test_runs_that_are_equal_do_not_vary(value: float, number: int) -> None:
    summary = summarise([value] * number)
    assert summary.mean == pytest.approx(value, rel=1e-12)
    assert summary.variation == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("least", "planned"), [(10, 12), (5, 7), (None, 3)])
def test_more_runs_are_planned_than_the_least_and_as_many_as_it_are_kept(least: int | None, planned: int) -> None:
    assert runs_to_plan(least) == planned
    if least is not None:
        assert planned > least
        assert len(range(planned)[1:-1]) == least


def test_no_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one run"):
        summarise([])


# --- VFLOPS and its parts, by hand, by the papers' numbers, and as properties.


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


@pytest.mark.parametrize(
    ("printed", "target", "exponent", "quality"), [(0.96, 0.763, 5, 0.7568), (0.44, 0.35, 10, 0.3224)]
)
def test_the_papers_coefficients_come_out_of_qualities_just_below_the_targets(
    printed: float, target: float, exponent: int, quality: float
) -> None:
    """Fig. 5 prints them without the qualities; section 3.5 has the exponents."""
    assert round(penalty_coefficient(quality, target, exponent), 2) == printed
    assert quality < target


def test_by_hand() -> None:
    assert flops_rate(1000, 24.3e9, 10) == pytest.approx(2.43e12)
    assert penalty_coefficient(0.5, 1.0, 3) == pytest.approx(0.125)
    assert penalty_coefficient(1.0, 0.5, 3) == pytest.approx(8)
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
