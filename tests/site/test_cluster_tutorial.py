"""docs/tutorials/cluster.md, followed word for word on a Slurm of two nodes, with the image."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.tutorials import follow
from hosts import ROUTER
from image import ROOT, Image
from slurm import Slurm


@pytest.fixture
def data(images: Path) -> Iterator[Path]:
    """A folder that no container shows by itself, with the set that the tutorial has in /data."""
    folder = Path(tempfile.mkdtemp(prefix="data-", dir="/srv"))
    try:
        shutil.copytree(images, folder / "imagenet")
        yield folder
    finally:
        shutil.rmtree(folder)


def test_the_tutorial_works_word_for_word(slurm: Slurm, image: Image, data: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    # Root of this machine needs it in front of Apptainer.
    (tmp_path / "bin" / "apptainer").symlink_to(ROOT / "scripts" / "apptainer")
    (tmp_path / "hpcai500-cpu.sif").symlink_to(image.path)
    variables = {**slurm.environment, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(command: str) -> tuple[str, int]:
        command = command.replace("/data", str(data))
        words = ["bash", "-c", f"cd {shlex.quote(str(tmp_path))} && {{ {command}\n}} 2>&1"]
        return slurm.site.attempt(ROUTER, words, 300, environment=variables)

    follow("cluster.md", run)
