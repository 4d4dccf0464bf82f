"""The login half of `hpcai500 micro`: which recipe, which data, then the measurement on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.launch.crew import Crew
from hpcai500.launch.made_data import data_for_measuring
from hpcai500.launch.measuring import Setting, measure, setting_for
from hpcai500.layers import RECIPE_TYPES, Recipe
from hpcai500.recipe import load_recipe
from hpcai500.streams import say
from hpcai500.system.driver import find_traces

_MODULE = "measure.micro_command"
_SMOKE = "synthetic-"
# Importing torch and walking the models, on a machine ten times slower than most.
_START_SECONDS = 180.0
# Of each kind: measurements, how many times `--seconds` each takes at most, and seconds that do not depend on it.
_LIMITS = {
    "gemm": (4, 20, 20),
    "conv": (4, 20, 20),
    "copy": (1, 10, 60),
    "allreduce": (3, 10, 60),
    "input": (2, 20, 120),
}


@dataclass(frozen=True)
class MicroRequest:
    """What the user asked for.

    Attributes:
        what: kinds of measurement.
        recipe: TOML file or shipped recipe; None takes one that fits this host.
        overrides: of it.
        data: folder of the recipe's data set.
        seconds: of each measurement.
    """

    what: Sequence[str]
    recipe: str | None = None
    overrides: Sequence[str] = ()
    data: Path | None = None
    seconds: float = 2.0


def measure_micro(crew: Crew, request: MicroRequest) -> dict[str, Any]:
    """Measure on all ranks of `crew`; the micro document (docs/micro.md).

    Raises:
        UsageError: recipe or data cannot be used, or nothing of what was asked for can be measured here.
        WrongAnswerError: a result is wrong.
    """
    if request.data and "input" not in request.what:
        raise UsageError("--data is for input: add it (`hpcai500 micro input --data DIR`), or leave --data out")
    setting = setting_for(crew, request.recipe or _fitting_recipe(), request.overrides)
    if setting.recipe.benchmark not in RECIPE_TYPES:
        raise UsageError(
            f"{request.recipe}: a recipe of {setting.recipe.benchmark}; micro measures the shapes of "
            f"{' and '.join(RECIPE_TYPES)}: a plug-in's are measured by `hpcai500 profile {setting.recipe.benchmark}`"
        )
    arguments = ["--what", ",".join(request.what), "--seconds", f"{request.seconds:g}"]
    with ExitStack() as stack:
        if "input" in request.what:
            for benchmark, folder in _data(request, setting, stack, crew).items():
                arguments += ["--data", f"{benchmark}={folder}"]
        limit_seconds = _limit_seconds(request)
        say(f"micro: {request.seconds:g} s a measurement; at most {limit_seconds:.0f} s for all, then it is ended")
        document = measure(crew, _MODULE, setting, arguments, limit_seconds)
    if not document:
        raise UsageError(f"micro {' '.join(request.what)}: nothing of it can be measured here (see above)")
    return document


def _fitting_recipe() -> str:
    """The reference where there is a device that it can run on; said, because it decides what is measured."""
    traces = find_traces()
    name = "ic/reference" if traces.any else "ic/smoke"
    say(f"micro: recipe {name}: {traces.words if traces.any else 'no NVIDIA device is here, so this is the processor'}")
    return name


def _limit_seconds(request: MicroRequest) -> float:
    """When the ranks are ended: several times what they take on a machine at rest."""
    return _START_SECONDS + sum(
        count * (factor * request.seconds + more)
        for kind, (count, factor, more) in _LIMITS.items()
        if kind in request.what
    )


def _data(request: MicroRequest, setting: Setting, stack: ExitStack, crew: Crew) -> dict[str, Path]:
    """Folders by benchmark: the recipe's alone where one is given, else of both benchmarks.

    Synthetic data are made where they are missing; what was made is removed when `stack` is closed.
    """
    recipe = setting.recipe
    if request.data:
        return {recipe.benchmark: request.data}
    recipes: list[Recipe] = [recipe]
    if request.recipe is None and recipe.problem.dataset.startswith(_SMOKE):
        recipes.append(load_recipe("ewa/smoke", ()))
    found: dict[str, Path] = {}
    for one in recipes:
        if one.problem.dataset.startswith(_SMOKE):
            found[one.benchmark] = stack.enter_context(data_for_measuring(one, is_shared=not crew.is_local))
        else:
            say(f"input {one.benchmark}: left out: it reads {one.problem.dataset}: add --data DIR")
    return found
