"""Tiny runs, of one model, of a member of an ensemble, of a model in stages: settings, command lines, weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hpcai500 import train
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe, to_toml

# 3 classes x 11 images in batches of 8: 5 steps an epoch, the last one padded.
TINY = (
    "problem.dataset=synthetic-tiny",
    "problem.epochs=3",
    "problem.target_quality=0.01",
    "hyperparameters.batch_size=8",
    "hyperparameters.warmup_epochs=1",
    "workload.width=8",
    "workload.image_size=32",
    "workload.evaluation_resize=36",
    "os.threads=1",
    "os.input_threads=2",
)


# A year of 10 images to train on in batches of 4, so 3 steps an epoch, the last one padded; a year to evaluate on.
TINY_WEATHER = (
    "problem.dataset=synthetic-tiny",
    "problem.epochs=2",
    "problem.target_quality=0.01",
    "problem.training_years=[1979, 1979]",
    "problem.evaluation_years=[1980, 1980]",
    "hyperparameters.base_learning_rate=0.002",
    "workload.width=8",
    "workload.pyramid_channels=8",
    "workload.head_width=16",
    "workload.proposals_before_nms=[30, 30]",
    "workload.proposals_after_nms=[20, 20]",
    "os.threads=1",
    "os.input_threads=2",
)


def train_arguments(images: Path, out: Path, *settings: str) -> list[str]:
    """Command line of one tiny run of Image Classification."""
    return _arguments("ic/smoke", images, out, (*TINY, *settings))


def weather_arguments(years: Path, out: Path, *settings: str) -> list[str]:
    """Command line of one tiny run of Extreme Weather Analytics."""
    return _arguments("ewa/smoke", years, out, (*TINY_WEATHER, *settings))


def _arguments(recipe: str, data: Path, out: Path, settings: tuple[str, ...]) -> list[str]:
    changes = [token for text in settings for token in ("--set", text)]
    return ["--recipe", recipe, "--data", str(data), "--out", str(out), *changes]


def last_weights(record: Path) -> dict[str, Any]:
    """Model state of the newest checkpoint."""
    newest = max((record / "checkpoints").glob("epoch-*.pt"))
    state: dict[str, Any] = torch.load(newest, weights_only=True)["model"]
    return state


def same_weights(one: Path, other: Path) -> bool:
    """Whether two records ended with the same weights, bit for bit."""
    left, right = last_weights(one), last_weights(other)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# ----------------------------------------------------------------------------------------------------
MEMBER = ("ensemble.members=2", "ensemble.out_of_bag_samples=8", "ensemble.vote_iou=0.5")
MEMBER_OF_IMAGES = (*TINY, *MEMBER, "ensemble.vote=mean")
MEMBER_OF_WEATHER = (*TINY_WEATHER, *MEMBER, "ensemble.vote=weighted-boxes")


def member_recipe(benchmark: str, *settings: str, sampling: str = "bootstrap", strata: str = "none") -> Recipe:
    """The recipe of a tiny member, changed by `settings` as given to --set."""
    tiny = MEMBER_OF_IMAGES if benchmark == "ic" else MEMBER_OF_WEATHER
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


# ----------------------------------------------------------------------------------------------------
# The epochs of the smallest member.
SHORT = ("problem.epochs=1", "hyperparameters.warmup_epochs=0", "ensemble.members=3", "ensemble.out_of_bag_samples=20")


def short_member_recipe(benchmark: str, *settings: str, seed: int = 1) -> Recipe:
    """The recipe of a tiny member of `ic` or `ewa`."""
    tiny = TINY if benchmark == "ic" else TINY_WEATHER
    changes = [*tiny, *SHORT, f"hyperparameters.seed={seed}", *settings]
    return load_recipe(f"{benchmark}/smoke", changes, edition="v3.0")


# ----------------------------------------------------------------------------------------------------
def settings_of(mode: str, stages: int, micro_batches: int = 1, ranks: int | None = None) -> tuple[str, ...]:
    """Overrides for a run of `ranks`, by default one for each stage."""
    return (
        f"programming.parallel_mode={mode}",
        f"programming.stages={stages}",
        f"programming.micro_batches={micro_batches}",
        f"hardware.accelerators_per_node={ranks or stages}",
        "communication.backend=torch",
        "communication.timeout_seconds=20",
    )
