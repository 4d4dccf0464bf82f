"""What `hpcai500 doctor` looks at: the machine, and what a benchmark's command would run on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import RecipeError, UsageError
from hpcai500.launch.crew import crew_of
from hpcai500.layers import Recipe
from hpcai500.placement import find_placement
from hpcai500.recipe import load_recipe
from hpcai500.system.checks import Check
from hpcai500.system.doctor import Subject, examine


@dataclass(frozen=True)
class Patient:
    """What the user named on the command line, as for a run; nothing of it need be there."""

    benchmark: str | None = None
    recipe: str | None = None
    data: Path | None = None
    out: Path | None = None
    overrides: Sequence[str] = ()


def examine_command(patient: Patient) -> list[Check]:
    """The checks of `patient` on this machine.

    Raises:
        UsageError: its recipe cannot be used.
    """
    recipe = _recipe(patient)
    if recipe and patient.benchmark not in (None, recipe.benchmark):
        raise UsageError(
            f"{patient.recipe}: a recipe of {recipe.benchmark}; run `hpcai500 doctor {recipe.benchmark} …`"
        )
    arguments = _as_run(sys.argv[1:], recipe)
    return examine(Subject(recipe, patient.data, patient.out or Path("runs"), arguments))


def _recipe(patient: Patient) -> Recipe | None:
    """The recipe that the command would run."""
    if patient.benchmark is None and patient.recipe is None:
        if patient.overrides:
            raise UsageError("--set changes a recipe: name a benchmark too, `hpcai500 doctor ic --set …`")
        return None
    name = patient.recipe or f"{patient.benchmark}/{'reference' if patient.data else 'smoke'}"
    try:
        fitted = crew_of(find_placement(os.environ), None).fit(name, patient.overrides)
    except UsageError as error:
        # Of a launcher that tells nonsense, the checks say more; but a recipe for many ranks needs their number.
        try:
            return load_recipe(name, patient.overrides)
        except RecipeError:
            raise error from None
    return load_recipe(name, [*patient.overrides, *fitted])


def _as_run(arguments: Sequence[str], recipe: Recipe | None) -> list[str]:
    """The arguments of the run that `doctor ARGUMENTS` asks about; of doctor itself where there is none."""
    if recipe is None or arguments[:1] != ["doctor"]:
        return list(arguments)
    rest = [argument for argument in arguments[1:] if argument != "--json"]
    return rest if rest[:1] == [recipe.benchmark] else [recipe.benchmark, *rest]
