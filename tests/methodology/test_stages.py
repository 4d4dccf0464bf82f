"""Sums and samples of stages in a bounded space: exact means, quantiles by hand and against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.communication import STAGES, StageTally, stage_table
from hpcai500.methodology.statistics import Reservoir, weighted_quantile

MEASURED = STAGES[1:]


def tally(*rows: tuple[float, ...], stages: tuple[str, ...] = MEASURED) -> StageTally:
    filled = StageTally(stages)
    for row in rows:
        filled.add(row)
    return filled


def test_the_stages_are_those_of_table_12_in_its_order() -> None:
    assert STAGES == (
        "negotiation", "wait_for_data", "wait_for_other_data", "queuing", "memcpy_in", "all_reduce", "memcpy_out",
    )  # fmt: skip


def test_a_table_by_hand() -> None:
    first = tally((1.0, 0.0, 0.0, 0.0, 5.0, 0.0), (3.0, 0.0, 0.0, 0.0, 7.0, 0.0))
    second = tally((8.0, 0.0, 0.0, 0.0, 9.0, 0.0))
    table = stage_table([first, second])
    assert table["wait_for_data"] == {"mean_seconds": 4.0, "median_seconds": 3.0, "p95_seconds": 8.0}
    assert table["all_reduce"] == {"mean_seconds": 7.0, "median_seconds": 7.0, "p95_seconds": 9.0}


def test_a_stage_that_nobody_measures_is_none_and_not_zero() -> None:
    table = stage_table([tally((1.0,) * 6)])
    assert [name for name, times in table.items() if times is None] == ["negotiation"]
    assert set(stage_table([]).values()) == {None}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=100))
def test_quantiles_are_the_order_statistics_while_all_samples_fit(values: list[float]) -> None:
    times = stage_table([tally(*[(value,) for value in values], stages=("all_reduce",))])["all_reduce"]
    assert times is not None
    assert times["mean_seconds"] == pytest.approx(np.mean(values))
    assert times["median_seconds"] == np.quantile(values, 0.5, method="inverted_cdf")
    # 0.95 as a float is a little less than 95/100, and NumPy rounds its own way at the step.
    ordered = sorted(values)
    near = round(0.95 * len(values))
    assert times["p95_seconds"] in ordered[max(0, near - 1) : near + 1]


def test_of_many_all_reduces_the_mean_stays_exact_and_the_median_near() -> None:
    values = np.random.default_rng(3).exponential(size=20_000)
    times = stage_table([tally(*[(value,) for value in values], stages=("all_reduce",))])["all_reduce"]
    assert times is not None
    assert times["mean_seconds"] == pytest.approx(values.mean(), rel=1e-9)
    below = (values < times["median_seconds"]).mean()
    assert 0.35 < below < 0.65


def test_a_bucket_with_more_all_reduces_weighs_more() -> None:
    often, seldom = tally(*[(1.0,)] * 3000, stages=("queuing",)), tally(*[(9.0,)] * 500, stages=("queuing",))
    times = stage_table([often, seldom])["queuing"]
    assert times == {"mean_seconds": pytest.approx(7500 / 3500), "median_seconds": 1.0, "p95_seconds": 9.0}


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
