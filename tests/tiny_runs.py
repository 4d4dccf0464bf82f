"""Command lines of tiny runs, and what their records hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

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
