"""Tiny runs of one member of an ensemble: the recipe of tiny runs, with [ensemble]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tiny_runs import TINY, TINY_WEATHER

from hpcai500 import train
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe, to_toml

MEMBER = ("ensemble.members=2", "ensemble.out_of_bag_samples=8", "ensemble.vote_iou=0.5")
IMAGES = (*TINY, *MEMBER, "ensemble.vote=mean")
WEATHER = (*TINY_WEATHER, *MEMBER, "ensemble.vote=weighted-boxes")


def member_recipe(benchmark: str, *settings: str, sampling: str = "bootstrap", strata: str = "none") -> Recipe:
    """The recipe of a tiny member, changed by `settings` as given to --set."""
    tiny = IMAGES if benchmark == "ic" else WEATHER
    options = (f"ensemble.sampling={sampling}", f"ensemble.strata={strata}")
    return load_recipe(f"{benchmark}/smoke", [*tiny, *options, *settings], edition="v3.0")


def written(recipe: Recipe, path: Path) -> Path:
    """The recipe in a file: the command of a run knows no other way to an edition."""
    path.write_text(to_toml(recipe), encoding="utf-8")
    return path


def member_arguments(recipe: Recipe, data: Path, out: Path) -> Sequence[str]:
    """Command line of such a run; the recipe goes beside the record."""
    file = written(recipe, out.with_name(f"{out.name}.toml"))
    return ["--recipe", str(file), "--data", str(data), "--out", str(out)]


def train_member(recipe: Recipe, data: Path, out: Path) -> Path:
    """Train in this process; returns the record.

    Raises:
        AssertionError: the run failed.
    """
    assert train.main(list(member_arguments(recipe, data, out))) == 0
    return out
