"""Many runs of one recipe: what is dropped, what is averaged, what varies."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.trials import summarise

runs = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)


def test_highest_and_lowest_are_dropped_and_the_variation_is_of_all() -> None:
    summary = summarise([10, 1, 4, 6, 100])
    assert (summary.mean, summary.dropped_lowest, summary.dropped_highest) == (pytest.approx(20 / 3), 1, 100)
    assert summary.variation == pytest.approx(statistics.stdev([10, 1, 4, 6, 100]) / 24.2)


def test_two_runs_are_both_kept() -> None:
    summary = summarise([2.0, 4.0])
    assert (summary.mean, summary.dropped_lowest) == (3.0, None)


def test_one_run_has_no_variation() -> None:
    assert summarise([5.0]).variation is None


@given(runs, st.randoms())
def test_the_order_of_runs_changes_nothing(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summarise(shuffled) == summarise(values)


@given(runs)
def test_the_mean_lies_between_lowest_and_highest(values: list[float]) -> None:
    assert min(values) <= summarise(values).mean * (1 + 1e-12)
    assert summarise(values).mean <= max(values) * (1 + 1e-12)


def test_no_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one run"):
        summarise([])
