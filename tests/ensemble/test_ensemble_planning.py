"""From a request to a plan: recipe, ranks, seeds and folders are held against each other before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcai500.ensemble.planning import Planned, PlanRequest, plan_ensemble
from hpcai500.errors import RecipeError, UsageError


def plan(folder: Path, *overrides: str, **changes: Any) -> Planned:
    asked: dict[str, Any] = {"recipe": "ic/smoke", "members": 2, "data": folder} | changes
    return plan_ensemble(PlanRequest(folder / "my é", overrides=overrides, **asked))


def test_members_of_several_ranks_talk_and_those_of_one_do_not(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert plan(tmp_path / "one").ensemble.recipe().communication.backend == "local"
    (tmp_path / "two").mkdir()
    recipe = plan(tmp_path / "two", degree=2, per_node=2).ensemble.recipe()
    assert (recipe.communication.backend, recipe.world_size) == ("torch", 2)


def test_settings_that_only_go_with_the_ranks_of_the_plan_are_taken(tmp_path: Path) -> None:
    settings = ("programming.parallel_mode=model", "programming.stages=2", "communication.backend=torch")
    recipe = plan(tmp_path, *settings, degree=2, per_node=2).ensemble.recipe()
    assert (recipe.programming.stages, recipe.world_size) == (2, 2)


def test_settings_that_do_not_go_with_the_ranks_of_the_plan_are_refused_and_not_changed(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="`torch` is for two ranks or more"):
        plan(tmp_path, "communication.backend=torch")
    assert list(tmp_path.iterdir()) == []


def test_the_last_member_has_a_seed_too(tmp_path: Path) -> None:
    last = 2**63 - 1
    with pytest.raises(UsageError, match="2 members take one each"):
        plan(tmp_path, f"hyperparameters.seed={last}")
    assert plan(tmp_path, f"hyperparameters.seed={last - 1}").places[-1].seed == last


@pytest.mark.parametrize("stage", ["scratch", "~/scratch", ""])
def test_a_stage_that_every_node_would_refuse_is_refused_at_once(tmp_path: Path, stage: str) -> None:
    with pytest.raises(UsageError, match=r"give a folder of each node from the root on"):
        plan(tmp_path, stage=stage)
    assert list(tmp_path.iterdir()) == []


def test_what_is_to_be_typed_next_is_one_word_for_the_shell(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    (line,) = (line for line in planned.lines() if line.startswith("next"))
    assert f"hpcai500 ensemble run '{planned.ensemble.path}' " in line
