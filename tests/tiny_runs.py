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
    "workload.width=4",
    "workload.image_size=32",
    "workload.evaluation_resize=36",
    "os.threads=1",
    "os.input_threads=2",
)


def train_arguments(images: Path, out: Path, *settings: str) -> list[str]:
    """Command line of one tiny run."""
    changes = [token for text in (*TINY, *settings) for token in ("--set", text)]
    return ["--recipe", "ic/smoke", "--data", str(images), "--out", str(out), *changes]


def last_weights(record: Path) -> dict[str, Any]:
    """Model state of the newest checkpoint."""
    newest = max((record / "checkpoints").glob("epoch-*.pt"))
    state: dict[str, Any] = torch.load(newest, weights_only=True)["model"]
    return state


def same_weights(one: Path, other: Path) -> bool:
    """Whether two records ended with the same weights, bit for bit."""
    left, right = last_weights(one), last_weights(other)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
