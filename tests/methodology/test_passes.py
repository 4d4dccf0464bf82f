"""When a target quality is reached: from below, or from above where a lower quality is better."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.passes import Better, better_of, first_reaching, goal, reaches, target_checkpoint
from hpcai500.methodology.result import quality_factor, quality_of

qualities = st.floats(0, 1e9)
directions = st.sampled_from(["higher", "lower"])


def problem(target: float, better: Better) -> dict[str, Any]:
    return {"metric": "m", "target_quality": target, **({"better": better} if better == "lower" else {})}


def events(values: list[float]) -> list[dict[str, Any]]:
    """An evaluation after each epoch, and then its checkpoint."""
    found: list[dict[str, Any]] = []
    for epoch, value in enumerate(values, 1):
        for key, about in (("eval_accuracy", {"value": value}), ("checkpoint", {"file": f"{epoch}.pt"})):
            found.append({"seq": len(found), "key": key, "value": {"epoch": epoch, **about}})
    return found


@given(qualities, qualities)
def test_the_two_directions_are_mirror_images(value: float, target: float) -> None:
    assert reaches(value, target, "lower") == reaches(-value, -target, "higher") == reaches(target, value, "higher")


@given(qualities, qualities, directions)
def test_of_two_values_the_better_one_reaches_what_the_other_reaches(one: float, other: float, better: Better) -> None:
    assert reaches(one, other, better) or reaches(other, one, better)
    assert (reaches(one, other, better) and reaches(other, one, better)) == (one == other)


@given(qualities, directions)
def test_what_is_no_number_reaches_nothing(target: float, better: Better) -> None:
    assert reaches(target, target, better)
    assert not reaches(math.nan, target, better)


@given(st.lists(qualities, max_size=8), qualities, directions)
def test_the_first_at_the_target_is_the_first_that_is_as_good_and_its_checkpoint_follows(
    values: list[float], target: float, better: Better
) -> None:
    good = [epoch for epoch, value in enumerate(values, 1) if (target - value) * (1 if better == "lower" else -1) >= 0]
    table = problem(target, better)
    first, saved = first_reaching(events(values), table), target_checkpoint(events(values), table)
    assert (first and first["value"]["epoch"]) == (good[0] if good else None)
    assert (saved and saved["file"]) == (f"{good[0]}.pt" if good else None)


@given(qualities, qualities, directions)
def test_a_quality_says_the_same_and_where_a_miss_is(value: float, target: float, better: Better) -> None:
    quality = quality_of(problem(target, better), {"value": value})
    assert quality.better == better_of(problem(target, better)) == better
    assert quality.is_reached == reaches(value, target, better)
    if not quality.is_reached:
        side = "above" if value > target else "below"
        assert quality.miss == f"{side} the target {target:g}"


def test_only_a_recipe_that_says_so_has_a_lower_quality_as_the_better_one() -> None:
    assert [better_of(table) for table in ({}, {"better": "higher"}, {"better": 1}, {"better": "lower"})] == [
        "higher", "higher", "higher", "lower",
    ]  # fmt: skip


def test_results_of_older_versions_have_no_direction_and_keep_their_form() -> None:
    usual, loss = (quality_of(problem(0.5, better), {"value": 0.25}) for better in ("higher", "lower"))
    assert usual.model_dump() == {"metric": "m", "achieved": 0.25, "target": 0.5, "per_class": None}
    assert loss.model_dump() == {**usual.model_dump(), "better": "lower"}
    assert (usual.unit, loss.unit, usual.goal, loss.goal) == ("fraction", "1", "0.5", "0.5 or less")
    assert goal(2.5, "lower") == "2.5 or less"


def test_the_quality_factor_is_that_of_a_quality_that_grows() -> None:
    usual, loss = (quality_of(problem(0.5, better), {"value": 0.25}) for better in ("higher", "lower"))
    assert quality_factor(usual, {"exponent": 2}) == pytest.approx(0.25)
    assert quality_factor(loss, {"exponent": 2}) is None
    assert quality_factor(quality_of(problem(0.5, "higher"), None), {}) is None
