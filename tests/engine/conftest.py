"""Real, small runs: a few JPEG files, a few steps, the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders.runs import train_arguments

from hpcai500 import train


@pytest.fixture
def run(images: Path, tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Train in this process: `run("table.key=value", …)` gives the exit code and the record."""

    def start(*settings: str, name: str = "record", resume: bool = False) -> tuple[int, Path]:
        out = tmp_path / name
        arguments = ["--resume", "--out", str(out)] if resume else train_arguments(images, out, *settings)
        return train.main(arguments), out

    return start


@pytest.fixture(scope="session")
def finished(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of one tiny run in one go, for all who only look at it."""
    out = tmp_path_factory.mktemp("finished") / "record"
    assert train.main(train_arguments(images, out)) == 0
    return out
