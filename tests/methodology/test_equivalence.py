"""When a repetition is the same: by the interval of the difference, never for lack of runs."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcai500.errors import UsageError
from hpcai500.methodology.statistics import (
    INCONCLUSIVE,
    NOT_REPLICATED,
    REPLICATED,
    equivalence,
    quality_tolerance,
    spread,
)

runs = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=10)
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


@given(runs, runs, tolerances, st.integers(-40, 40))
def test_the_verdict_is_free_of_scale(one: list[float], other: list[float], tolerance: float, exponent: int) -> None:
    scaled = [[value * 2.0**exponent for value in side] for side in (one, other)]
    before, after = equivalence(one, other, tolerance), equivalence(*scaled, tolerance)
    assert after.verdict == before.verdict
    assert after.ratio == pytest.approx(before.ratio)


@given(runs, runs, tolerances, st.floats(0.5, 0.98))
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
