"""Bandwidths of an all-reduce by their definitions, and the link that explains its times."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.communication import RingCost, algorithm_bandwidth, bus_bandwidth, fit_error, fit_ring

ranks = st.integers(min_value=2, max_value=10_000)
sizes = [16 * 4**power for power in range(13)]
costs = st.builds(RingCost, st.floats(min_value=1e-7, max_value=1e-2), st.floats(min_value=1e6, max_value=1e12))


def test_bandwidths_are_those_of_the_nccl_tests() -> None:
    # 8 ranks, 1 GB in 10 ms: its documentation's factor for an all-reduce is 2 (n - 1) / n.
    assert algorithm_bandwidth(1e9, 0.01) == 1e11
    assert bus_bandwidth(1e9, 0.01, 8) == pytest.approx(1.75e11)


@given(st.floats(min_value=1, max_value=1e12), st.floats(min_value=1e-9, max_value=1e3), ranks)
def test_bus_bandwidth_is_the_algorithms_for_two_and_less_than_twice_it_for_any(size: float, s: float, n: int) -> None:
    assert bus_bandwidth(size, s, 2) == pytest.approx(algorithm_bandwidth(size, s))
    assert algorithm_bandwidth(size, s) <= bus_bandwidth(size, s, n) * (1 + 1e-12)
    assert bus_bandwidth(size, s, n) < 2 * algorithm_bandwidth(size, s)


@given(costs, ranks)
def test_a_long_message_has_the_links_rate_as_its_bus_bandwidth(cost: RingCost, n: int) -> None:
    size = 1e6 * n * max(1.0, cost.latency_seconds * cost.bytes_per_second)
    assert bus_bandwidth(size, cost.seconds(size, n), n) == pytest.approx(cost.bytes_per_second, rel=1e-5)


@given(costs, st.integers(min_value=2, max_value=512))
def test_times_of_a_ring_give_its_link_back(cost: RingCost, n: int) -> None:
    measured = [(size, cost.seconds(size, n)) for size in [0, *sizes, 10**15]]
    found = fit_ring(n, measured)
    assert found.latency_seconds == pytest.approx(cost.latency_seconds, rel=1e-6)
    assert found.bytes_per_second == pytest.approx(cost.bytes_per_second, rel=1e-6)
    assert fit_error(found, n, measured) < 1e-6


def test_noise_a_busy_neighbour_and_a_size_with_an_algorithm_of_its_own_do_not_bend_the_link() -> None:
    cost, noise = RingCost(5e-6, 1e10), random.Random(7)
    measured = [(size, cost.seconds(size, 4) * noise.uniform(0.95, 1.05)) for size in sizes]
    measured[3] = measured[3][0], measured[3][1] * 20
    measured[9] = measured[9][0], measured[9][1] / 5
    found = fit_ring(4, measured)
    assert found.latency_seconds == pytest.approx(5e-6, rel=0.1)
    assert found.bytes_per_second == pytest.approx(1e10, rel=0.1)


@given(st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=len(sizes), max_size=len(sizes)), ranks)
def test_whatever_is_measured_the_link_is_possible(times: list[float], n: int) -> None:
    try:
        found = fit_ring(n, list(zip(sizes, times, strict=True)))
    except UsageError:
        return
    assert found.latency_seconds >= 0
    assert found.bytes_per_second > 0


@pytest.mark.parametrize(
    ("n", "measured", "reason"),
    [
        (4, [(16, 1.0)], "two sizes"),
        (4, [(16, 1.0), (16, 2.0)], "two sizes"),
        (4, [(16, 1.0), (64, 0.0)], "positive time"),
        (1, [(16, 1.0), (64, 2.0)], "two ranks"),
        (4, [(0, 1.0), (0.0, 1.0), (1, 1e-9)], "does not grow"),
    ],
)
def test_what_cannot_be_fitted_is_said(n: int, measured: list[tuple[float, float]], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        fit_ring(n, measured)
