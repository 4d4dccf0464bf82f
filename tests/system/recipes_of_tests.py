"""Recipes and containers that the checks are asked about."""

from __future__ import annotations

from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe
from hpcai500.system.container import Container

IMAGE = {"name": "hpcai500-cpu", "version": "0.1.0", "content_sha256": "ca" * 32, "mpi": "Open MPI 4.1.4"}


def recipe(*overrides: str) -> Recipe:
    """The smoke recipe, changed."""
    return load_recipe("ic/smoke", overrides)


def of_two(backend: str = "horovod") -> Recipe:
    """The same for two ranks."""
    return recipe(f"communication.backend={backend}", "hardware.accelerators_per_node=2")


def inside(**changes: object) -> Container:
    """A container of our image, as `apptainer run` starts it."""
    facts: dict[str, object] = {"program": "apptainer", "path": "/apps/hpcai500.sif", "description": IMAGE} | changes
    return Container(**facts)  # type: ignore[arg-type]
