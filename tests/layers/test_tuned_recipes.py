"""The shipped recipes for a CUDA device change nothing that the rules keep for the level free."""

from __future__ import annotations

import pytest

from hpcai500.methodology.rules import judge
from hpcai500.recipe import load_recipe, reference_recipe, rulebook


@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
def test_a_tuned_recipe_is_of_the_level_system_and_can_be_ranked(benchmark: str) -> None:
    recipe = load_recipe(f"{benchmark}/tuned")
    judgement = judge(recipe.model_dump(mode="json"), rulebook("v2.0", benchmark))
    assert judgement.level == "system"
    assert {change.field for change in judgement.forcing} == {"framework.cuda_graphs", "framework.fused_optimizer"}
    assert {change.layer for change in judgement.changes} <= {8, 5, 4}
    assert recipe.problem == reference_recipe(benchmark).problem
    assert recipe.workload == reference_recipe(benchmark).workload


@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
def test_without_its_framework_options_it_is_of_the_level_hardware(benchmark: str) -> None:
    plain = load_recipe(f"{benchmark}/tuned", ["framework.cuda_graphs=false", "framework.fused_optimizer=false"])
    assert judge(plain.model_dump(mode="json"), rulebook("v2.0", benchmark)).level == "hardware"
