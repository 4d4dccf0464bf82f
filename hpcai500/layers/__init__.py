"""The nine layers of a system under test (V2.0, Fig. 2) as the tables of a recipe.

No field has a default here: `recipes/<benchmark>/reference.toml` states every value once (`ensemble.toml` those of an
ensemble), and every other recipe is a difference from it. What a field means stands beside it.
"""

from __future__ import annotations

from hpcai500.layers.benchmarks import RECIPE_TYPES, EwaRecipe, IcRecipe
from hpcai500.layers.ensemble import Ensemble
from hpcai500.layers.ewa import ClimateChannel, ExtremeWeather
from hpcai500.layers.ic import ImageClassification
from hpcai500.layers.recipe import Recipe
from hpcai500.layers.system import Accelerator, Communication, Framework, Hardware, OperatingSystem, Programming
from hpcai500.layers.training import ClimateProblem, Hyperparameters, Problem

# The number of each table in the papers' nine-layer model, top down.
LAYER_NUMBERS: dict[str, int] = {
    "problem": 9,
    "hyperparameters": 8,
    "workload": 7,
    "programming": 6,
    "framework": 5,
    "accelerator": 4,
    "communication": 3,
    "os": 2,
    "hardware": 1,
}

__all__ = [
    "LAYER_NUMBERS",
    "RECIPE_TYPES",
    "Accelerator",
    "ClimateChannel",
    "ClimateProblem",
    "Communication",
    "Ensemble",
    "EwaRecipe",
    "ExtremeWeather",
    "Framework",
    "Hardware",
    "Hyperparameters",
    "IcRecipe",
    "ImageClassification",
    "OperatingSystem",
    "Problem",
    "Programming",
    "Recipe",
]
