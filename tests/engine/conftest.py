"""Real, small runs: a few JPEG files, a few steps, the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import train_arguments

from hpcai500 import train
from hpcai500.data.synthetic import SyntheticSet, make_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image set in ImageNet's layout."""
    root = tmp_path_factory.mktemp("images")
    make_images(root, SyntheticSet(classes=3, train_per_class=11, val_per_class=4), workers=1)
    return root


@pytest.fixture
def run(images: Path, tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Train in this process: `run("table.key=value", …)` gives the exit code and the record."""

    def start(*settings: str, name: str = "record", resume: bool = False) -> tuple[int, Path]:
        out = tmp_path / name
        arguments = ["--resume", "--out", str(out)] if resume else train_arguments(images, out, *settings)
        return train.main(arguments), out

    return start
