"""Who holds the others up: by a tenth, and beyond what chance does."""

from __future__ import annotations

import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.communication import stragglers


def twin(own_seconds: list[float]) -> list[int]:
    """The rule as its docstring says it, rank by rank."""
    slow = []
    for rank, seconds in enumerate(own_seconds):
        others = own_seconds[:rank] + own_seconds[rank + 1 :]
        if not others:
            continue
        middle = statistics.median(others)
        deviation = statistics.median(abs(other - middle) for other in others)
        if seconds > 1.1 * middle and seconds > middle + 3 * 1.4826 * deviation:
            slow.append(rank)
    return slow


@given(st.lists(st.floats(0.001, 100), max_size=30))
def test_it_is_the_rule_as_stated(own_seconds: list[float]) -> None:
    assert stragglers(own_seconds) == twin(own_seconds)


def test_of_two_ranks_a_tenth_decides() -> None:
    assert stragglers([1.0, 1.09]) == []
    assert stragglers([1.2, 1.0]) == [0]


def test_one_rank_or_none_holds_nobody_up() -> None:
    assert stragglers([]) == stragglers([5.0]) == []


def test_a_slow_node_is_found_although_it_is_half_of_the_ranks() -> None:
    assert stragglers([1.0, 1.01, 0.99, 1.02, 1.5, 1.52, 1.49, 1.51]) == [4, 5, 6, 7]


def test_where_all_ranks_spread_widely_none_stands_out() -> None:
    assert stragglers([1.0, 1.3, 0.8, 1.5, 1.1, 1.4, 0.9]) == []


def test_like_ranks_with_noise_are_no_stragglers_and_one_that_is_slow_is() -> None:
    times = (1 + 0.02 * np.random.default_rng(1).standard_normal(256)).tolist()
    assert stragglers(times) == []
    times[77] *= 1.3
    assert stragglers(times) == [77]
