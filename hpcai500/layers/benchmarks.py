"""The recipes of the benchmarks that come with hpcai500."""

from __future__ import annotations

from typing import ClassVar

from hpcai500.layers.ewa import ExtremeWeather
from hpcai500.layers.ic import ImageClassification
from hpcai500.layers.recipe import Recipe
from hpcai500.layers.training import ClimateProblem


class IcRecipe(Recipe):
    """A recipe of Image Classification."""

    strata: ClassVar[tuple[str, ...]] = ("none", "class")
    loaders: ClassVar[tuple[str, ...]] = ("native", "dali", "memory")

    workload: ImageClassification


class EwaRecipe(Recipe):
    """A recipe of Extreme Weather Analytics."""

    votes: ClassVar[tuple[str, ...]] = ("weighted-boxes", "nms")
    strata: ClassVar[tuple[str, ...]] = ("none", "year")

    problem: ClimateProblem
    workload: ExtremeWeather


# A new benchmark begins with its table and a line here; CONTRIBUTING.md lists what else it needs.
RECIPE_TYPES: dict[str, type[Recipe]] = {"ic": IcRecipe, "ewa": EwaRecipe}
