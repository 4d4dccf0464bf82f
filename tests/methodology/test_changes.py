"""Changes in series: the statistic against SciPy, exact probabilities, laws of the method, sizes and positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from hpcai500.errors import UsageError
from hpcai500.methodology import changes
from hpcai500.methodology.changes import LEAST_SIDE, LEAST_VALUES, Change, Series, best_split, find_changes, shift

STEP = [100.0, 101, 99.5, 100.4, 99.2, 100.9, 99.8, 100.2, 99.9, 100.7, 99.4, 100.1]
SLOWER = [0.9 * value for value in (100.3, 99.6, 100.5, 99.1, 100.8, 99.7, 101.1, 100.6, 99.3, 100.0, 98.9, 101.3)]

different = st.lists(st.floats(1.0, 1e6), min_size=LEAST_VALUES, max_size=24, unique=True)


def noisy(count: int, seed: int, step: float = 0.0, at: int | None = None) -> list[float]:
    """Values around 100 with a deviation of 1, `step` higher from index `at` on."""
    values = 100 + np.random.default_rng(seed).standard_normal(count)
    values[count if at is None else at :] += step
    return [float(value) for value in values]


def only_change(values: Sequence[float], *, relative: bool = True) -> Change:
    ((change,),) = find_changes([Series(values, relative)])
    return change


# --- The statistic.


@pytest.mark.parametrize("values", [noisy(12, 1), noisy(30, 2, 1.5, 20), [1.0, 2, 2, 3, 3, 3, 4, 5, 5, 6, 2, 1]])
def test_a_split_has_the_exact_p_value_of_scipys_rank_sum_test(values: list[float]) -> None:
    ranks = changes._doubled_ranks(values)
    scores = changes._splits(tuple(sorted(ranks.tolist()))).scores(ranks[None, :])[0]
    assert len(scores) == len(values) - 2 * LEAST_SIDE + 1
    if len(set(values)) == len(values):
        for split, score in enumerate(scores, LEAST_SIDE):
            peer = stats.mannwhitneyu(values[:split], values[split:], method="exact").pvalue
            assert 10**-score == pytest.approx(peer, rel=1e-9)
        return
    # With equal values, SciPy has no exact distribution: count the ways to choose the first three or four.
    for split, score in enumerate(scores[:2], LEAST_SIDE):
        sums = [sum(int(ranks[place]) for place in chosen) for chosen in combinations(range(len(values)), split)]
        seen = int(ranks[:split].sum())
        tail = 2 * min(sum(one <= seen for one in sums), sum(one >= seen for one in sums)) / len(sums)
        assert 10**-score == pytest.approx(min(1.0, tail), rel=1e-9)


def test_a_long_series_has_the_normal_p_value_of_scipys_rank_sum_test() -> None:
    values = noisy(120, 3, 0.7, 70)
    ranks = changes._doubled_ranks(values)
    scores = changes._splits(tuple(sorted(ranks.tolist()))).scores(ranks[None, :])[0]
    for split in (30, 60, 90):
        peer = stats.mannwhitneyu(values[:split], values[split:], method="asymptotic").pvalue
        assert 10 ** -scores[split - LEAST_SIDE] == pytest.approx(peer, rel=1e-9)


def test_the_rate_of_false_alarms_is_the_stated_one_on_a_seeded_sample() -> None:
    """Discrete p-values of independent series are at most as often small as uniform ones."""
    random = np.random.default_rng(7)
    found = [best_split(random.standard_t(2.5, 20).tolist()) for _ in range(2000)]
    p = np.sort([one.p for one in found if one])
    assert len(p) == 2000
    for rate in (0.01, 0.05, 0.2, 0.5):
        allowed = rate + 3 * math.sqrt(rate * (1 - rate) / 2000)
        assert np.mean(p <= rate) <= allowed


def test_p_values_of_permutations_are_uniform() -> None:
    """The simulated distribution against permutations that it has not seen: no correction for autocorrelation here."""
    random = np.random.default_rng(11)
    null = changes._null(24, 0.0)
    splits = changes._splits(tuple(range(2, 50, 2)))
    ranks = np.argsort(random.random((3000, 24)), axis=1) * 2 + 2
    p = [null.p(statistic) for statistic in splits.scores(ranks).max(axis=1)]
    assert stats.kstest(p, "uniform").statistic < 1.63 / math.sqrt(3000) + 1.63 / math.sqrt(10_000)


def test_the_tail_beyond_the_simulation_is_that_of_a_longer_one() -> None:
    random = np.random.default_rng(13)
    null = changes._null(20, 0.0)
    ranks = np.argsort(random.random((400_000, 20)), axis=1) * 2 + 2
    statistics = changes._splits(tuple(range(2, 42, 2))).scores(ranks).max(axis=1)
    for rate in (1e-3, 1e-4):
        limit = float(np.quantile(statistics, 1 - rate))
        exact = float(np.mean(statistics >= limit - 1e-9))
        # On the safe side, where it is not exact.
        assert exact / 1.5 < null.p(limit) < exact * 3


def test_autocorrelated_series_do_not_raise_more_alarms_than_stated() -> None:
    """AR(1) with a coefficient of 0.3, at a rate of 5 %: uncorrected, it would be 18 %."""
    random = np.random.default_rng(17)
    alarms = 0
    for _ in range(1000):
        values = [float(random.standard_normal() / math.sqrt(1 - 0.09))]
        while len(values) < 30:
            values.append(0.3 * values[-1] + float(random.standard_normal()))
        found = best_split(values)
        assert found
        alarms += found.p <= 0.05
    assert alarms <= 80


# --- Laws.


@settings(max_examples=40)
@given(different, st.floats(1e-3, 1e3), st.floats(0, 1e3))
def test_units_do_not_matter(values: list[float], factor: float, offset: float) -> None:
    moved = [value * factor + offset for value in values]
    if len(set(moved)) < len(values):
        return
    assert best_split(moved) == best_split(values)
    assert best_split([math.log(value) for value in values]) == best_split(values) or len(
        {math.log(value) for value in values}
    ) < len(values)


@settings(max_examples=40)
@given(different)
def test_worse_and_better_are_treated_alike(values: list[float]) -> None:
    assert best_split([-value for value in values]) == best_split(values)


@settings(max_examples=40)
@given(different)
@example([1.0, 4.0, 2.0, 6.0, 3.0, 5.0, 7.0, 8.0])  # two splits are equally good
def test_the_direction_of_time_does_not_change_the_p_value(values: list[float]) -> None:
    forward, backward = best_split(values), best_split(values[::-1])
    assert forward
    assert backward
    assert backward.p == pytest.approx(forward.p)


@settings(max_examples=20)
@given(st.permutations(range(4)))
def test_the_order_of_series_does_not_matter(order: list[int]) -> None:
    series = [Series(values) for values in (STEP + SLOWER, noisy(24, 1), noisy(24, 2, -5, 10), noisy(9, 3))]
    found = find_changes(series, 0.05)
    assert find_changes([series[number] for number in order], 0.05) == [found[number] for number in order]


@given(st.lists(st.floats(1.0, 10.0), max_size=LEAST_VALUES - 1))
def test_few_values_show_nothing(values: list[float]) -> None:
    assert best_split(values) is None
    assert find_changes([Series(values)]) == [()]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [LEAST_VALUES, 30, 200])
def test_a_constant_series_has_no_change(count: int) -> None:
    assert find_changes([Series([5.0] * count)]) == [()]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [30, 200])
def test_a_step_between_constant_values_is_found(count: int) -> None:
    change = only_change([5.0] * count + [6.0] * count)
    assert change.position == count
    assert change.size == pytest.approx(0.2)


def test_the_same_series_give_the_same_answer() -> None:
    assert only_change(STEP + SLOWER) == only_change(STEP + SLOWER)


# --- Positions and sizes.


def test_a_step_is_found_with_position_size_and_intervals() -> None:
    change = only_change(STEP + SLOWER)
    assert (change.position, change.shape) == (12, "step")
    assert change.earliest <= 12 <= change.latest
    assert change.size == pytest.approx(-0.1, abs=0.005)
    assert change.low < -0.1 < change.high < -0.08
    assert change.before == pytest.approx(np.median(STEP))
    assert change.after == pytest.approx(np.median(SLOWER))


def test_a_difference_is_in_the_units_of_the_values() -> None:
    change = only_change([one / 1000 for one in STEP + SLOWER], relative=False)
    assert change.size == pytest.approx(-0.01, abs=0.0005)


def test_one_outlier_is_no_change() -> None:
    values = noisy(30, 5)
    values[17] = 10.0
    assert find_changes([Series(values)]) == [()]


def test_a_change_that_is_mended_gives_two() -> None:
    values = [*noisy(20, 6), *noisy(20, 7, -8, 0), *noisy(20, 18)]
    (found,) = find_changes([Series(values)])
    assert [one.position for one in found] == [20, 40]
    assert found[0].size == pytest.approx(-0.08, abs=0.01)
    assert found[1].size == pytest.approx(0.087, abs=0.01)
    # Each between its neighbours.
    assert found[0].after == found[1].before == pytest.approx(np.median(values[20:40]))


def test_a_slow_change_is_called_a_trend() -> None:
    values = [value - place / 2 for place, value in enumerate(noisy(40, 9))]
    (found,) = find_changes([Series(values)])
    assert {one.shape for one in found} == {"trend"} or len(found) > 1
    assert only_change(noisy(40, 9, -6, 25)).shape == "step"


def test_a_shift_is_that_of_hodges_and_lehmann() -> None:
    """Differences 1 to 9 in threes; of 9 ranks, floor(4.5 - 1.96 sqrt(9 7 / 12)) = 0 are left out on each side."""
    assert shift(np.array([1.0, 2, 3]), np.array([4.0, 7, 10])) == (5.0, 1.0, 9.0)
    one, other = np.arange(20.0), np.arange(20.0) + 5
    # 200 - 1.96 sqrt(400 x 41 / 12) = 127: the differences of rank 128 and 273 of 400.
    ordered = sorted(b - a for a in one for b in other)
    assert shift(one, other) == (5.0, ordered[127], ordered[-128])


def test_the_interval_of_autocorrelated_values_is_wider() -> None:
    _, low, high = shift(np.array(STEP), np.array(SLOWER))
    _, wide_low, wide_high = shift(np.array(STEP), np.array(SLOWER), 0.5)
    assert wide_low < low
    assert high < wide_high


def test_more_series_need_stronger_evidence() -> None:
    values = noisy(24, 10, -3, 12)
    alone = best_split(values)
    assert alone
    assert alone.p < 0.05
    assert find_changes([Series(values)], 0.05) != [()]
    assert find_changes([Series(values), *(Series(noisy(24, 50 + one)) for one in range(400))], 0.05)[0] == ()


# --- Errors.


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="finite"):
        best_split([*STEP, value])


def test_a_relative_change_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="above 0"):
        find_changes([Series([*STEP, 0.0])])


@pytest.mark.parametrize("rate", [0.0, 1.0, math.nan])
def test_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        find_changes([Series(STEP)], rate)
