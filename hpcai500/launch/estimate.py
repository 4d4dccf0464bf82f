"""What an estimate needs: a plan of the run, and its step counted for a machine elsewhere or timed on this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.launch.crew import Crew
from hpcai500.launch.measuring import Setting, setting_for
from hpcai500.launch.step_facts import count_step, planned_layout, planned_recipe, time_steps
from hpcai500.layers import Recipe
from hpcai500.machine import Machine
from hpcai500.placement import Placement
from hpcai500.streams import say

# Steps that are timed, and seconds after which no more are.
_STEPS, _SECONDS = 24, 90.0


@dataclass(frozen=True)
class EstimateRequest:
    """What the user asked for."""

    benchmark: str
    recipe: str | None = None
    overrides: Sequence[str] = ()

    @property
    def recipe_name(self) -> str:
        """The reference run is what one pays for."""
        return self.recipe or f"{self.benchmark}/reference"


def planned_on(request: EstimateRequest, machine: Machine, placement: Placement) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, for the nodes that it states or those of `machine`, and its step as it was counted.

    Raises:
        HpcAi500Error: there is no such recipe, or its step cannot be counted.
    """
    name = request.recipe_name
    nodes, per_node = planned_layout(name, request.overrides, machine.nodes, machine.accelerators_per_node)
    recipe = _checked(request, planned_recipe(name, request.overrides, nodes, per_node))
    return recipe, count_step(placement, name, request.overrides)


def planned_here(request: EstimateRequest, crew: Crew) -> Setting:
    """The recipe, for the ranks of `crew`, which is open.

    Raises:
        UsageError: there is no such recipe, or it is none for them.
    """
    setting = setting_for(crew, request.recipe_name, request.overrides)
    _checked(request, setting.recipe)
    return setting


def measured_here(setting: Setting, crew: Crew) -> dict[str, Any]:
    """A step of `setting` as the ranks of `crew` do it.

    Raises:
        HpcAi500Error: the machine lacks the recipe's device, or steps cannot be timed.
    """
    say(f"timing up to {_STEPS} steps of {setting.name} on input that is made up; the run itself is not started")
    return time_steps(crew, setting, _STEPS, _SECONDS)


def _checked(request: EstimateRequest, recipe: Recipe) -> Recipe:
    if recipe.benchmark != request.benchmark:
        raise UsageError(
            f"{request.recipe_name}: a recipe of {recipe.benchmark}; type `hpcai500 {recipe.benchmark} --estimate "
            f"--recipe {request.recipe_name}`"
        )
    if recipe.programming.stages > 1:
        raise UsageError(
            f"programming.parallel_mode: an estimate is of data parallelism, got {recipe.programming.parallel_mode}: "
            "take data, or measure a run"
        )
    return recipe
