"""A plug-in with its own update rule, a layer 8 of its own, and samples that hold several units. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hpcai500.layers import Hyperparameters, Recipe
from hpcai500.layers.fields import Count, Layer, Positive
from hpcai500.plugins import Plugin


class Steps(Layer):
    """Layer 7."""

    width: Count
    length: Count


class OwnHyperparameters(Hyperparameters):
    """Layer 8: one rule only, and the norm to which it clips."""

    optimizer: Literal["adamw"] = Field(description="update rule")
    gradient_norm: Positive = Field(description="largest norm of the gradient of all weights")


class ClippedRecipe(Recipe):
    """The nine layers."""

    hyperparameters: OwnHyperparameters
    workload: Steps


PLUGIN = Plugin(
    recipe=ClippedRecipe,
    recipes=Path(__file__).parent / "recipes",
    workload="hpcai500_clipped.work:build",
    make_data="hpcai500_clipped.work:make",
    model="hpcai500_clipped.work:model_of",
)
