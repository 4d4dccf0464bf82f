"""What a step of a recipe is made of, as the in-job half counts or measures it; for plans of what is not run yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.launch.crew import Crew, crew_of
from hpcai500.launch.measuring import Setting, measure
from hpcai500.layers import Recipe
from hpcai500.placement import Placement
from hpcai500.recipe import load_recipe

_COMMAND = "measure.step_command"
# What is counted does not depend on these, and the machine that counts may have none of it.
_ANYWHERE = (
    "accelerator.device=cpu",
    "accelerator.precision=fp32",
    "communication.backend=local",
    "communication.topology=flat",
    "communication.algorithm=default",
    "communication.torus_columns=0",
    "hardware.nodes=1",
    "hardware.accelerators_per_node=1",
)


def planned_recipe(name: str, overrides: Sequence[str], nodes: int, per_node: int) -> Recipe:
    """The recipe `name` with `overrides`, for that many nodes whatever it states itself.

    Raises:
        UsageError: it cannot be used.
    """
    size = [f"hardware.nodes={nodes}", f"hardware.accelerators_per_node={per_node}"]
    if nodes * per_node == 1:
        return load_recipe(name, [*overrides, *size, "communication.backend=local"])
    return load_recipe(name, ["communication.backend=torch", *overrides, *size])


def planned_layout(name: str, overrides: Sequence[str], nodes: int, per_node: int) -> tuple[int, int]:
    """Nodes and accelerators a node that `overrides` state, or the recipe does, or these.

    Raises:
        UsageError: there is no such recipe, or what is stated is no number.
    """
    stated = dict(text.replace(" ", "").split("=", 1) for text in overrides if "=" in text)
    hardware = load_recipe(name).hardware
    if hardware.nodes * hardware.accelerators_per_node > 1:
        nodes, per_node = hardware.nodes, hardware.accelerators_per_node
    return _count(stated, "hardware.nodes", nodes), _count(stated, "hardware.accelerators_per_node", per_node)


def count_step(placement: Placement, name: str, overrides: Sequence[str], classes: int | None = None) -> dict[str, Any]:
    """The document of `hpcai500.measure.step_command` without times: FLOPs and gradients, counted by one process here.

    Raises:
        UsageError: a launcher has started several of this command, which is about ranks that are not there.
        HpcAi500Error: it could not be counted.
    """
    if not placement.is_alone:
        raise UsageError(
            f"{placement.launcher} has started {placement.size} copies of this command, which predicts and runs no "
            "ranks: start it once, without a launcher"
        )
    settings = [*overrides, *_ANYWHERE]
    arguments = ["--steps", "0", *(["--classes", str(classes)] if classes else [])]
    return measure(crew_of(placement, None), _COMMAND, Setting(name, settings, load_recipe(name, settings)), arguments)


def time_steps(crew: Crew, setting: Setting, steps: int, seconds: float) -> dict[str, Any]:
    """The same with `steps` steps timed on every rank of `crew`, which is open; no more after `seconds`.

    Raises:
        HpcAi500Error: they could not be timed.
    """
    return measure(crew, _COMMAND, setting, ["--steps", str(steps), "--seconds", str(seconds)])


def _count(stated: dict[str, str], field: str, otherwise: int) -> int:
    text = stated.get(field, str(otherwise))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--set {field}={text}: expected a whole number of 1 or more")
    return int(text)
