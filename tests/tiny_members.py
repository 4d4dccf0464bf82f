"""Real members of tiny ensembles: their recipes, and command lines of their runs."""

from __future__ import annotations

from pathlib import Path

from tiny_runs import TINY, TINY_WEATHER

from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe, to_toml

# The epochs of the smallest member.
SHORT = ("problem.epochs=1", "hyperparameters.warmup_epochs=0", "ensemble.members=3", "ensemble.out_of_bag_samples=20")


def member_recipe(benchmark: str, *settings: str, seed: int = 1) -> Recipe:
    """The recipe of a tiny member of `ic` or `ewa`."""
    tiny = TINY if benchmark == "ic" else TINY_WEATHER
    changes = [*tiny, *SHORT, f"hyperparameters.seed={seed}", *settings]
    return load_recipe(f"{benchmark}/smoke", changes, edition="v3.0")


def member_arguments(folder: Path, recipe: Recipe, data: Path) -> list[str]:
    """Command line of the run of `recipe`, whose record is `folder`; its file lies beside it."""
    file = folder.with_suffix(".toml")
    file.write_text(to_toml(recipe))
    return ["--recipe", str(file), "--data", str(data), "--out", str(folder)]
