"""Speed-up and parallel efficiency: the paper's numbers, and what must hold for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.weak_scaling import estimate_efficiency, weak_scaling


def test_the_papers_efficiency_is_against_its_single_node_of_8() -> None:
    """V2.0 Fig. 12a and section 7.4.1: 58 TFLOPS on 8 GPUs (Table 11), 345 on 64 before compression."""
    found = weak_scaling({64: 345e12, 8: 58e12})
    assert found[64].parallel_efficiency == pytest.approx(0.74, abs=0.005)
    assert found[64].speedup == pytest.approx(5.95, abs=0.005)
    assert (found[8].speedup, found[8].parallel_efficiency) == (1.0, 1.0)


@given(st.dictionaries(st.integers(1, 4096), st.floats(1e-3, 1e6), min_size=2, max_size=8))
def test_speed_up_is_efficiency_times_how_many_more_processes(rates: dict[int, float]) -> None:
    found = weak_scaling(rates)
    assert list(found) == sorted(rates)
    for processes, scaled in found.items():
        assert scaled.speedup == pytest.approx(scaled.parallel_efficiency * processes / min(rates))


def test_perfect_scaling_is_1() -> None:
    assert {n: s.parallel_efficiency for n, s in weak_scaling({n: 7.0 * n for n in (2, 4, 6)}).items()} == {
        2: 1.0, 4: 1.0, 6: 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("rates", [{}, {4: 1.0}, {1: 1.0, 2: 0.0}, {1: 1.0, 2: float("inf")}, {0: 1.0, 1: 1.0}])
def test_what_cannot_be_compared_is_refused(rates: dict[int, float]) -> None:
    with pytest.raises(UsageError, match="scaling: expected"):
        weak_scaling(rates)


def test_an_efficiency_above_one_is_withheld_also_within_its_uncertainty() -> None:
    estimate = estimate_efficiency([0.97, 1.02, 1.03, 0.99, 1.01, 1.02])
    assert (estimate.value, estimate.interval) == (None, (0.97, 1.03))
    assert str(estimate.note).startswith("above 1")
