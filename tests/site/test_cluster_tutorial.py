"""docs/tutorials/cluster.md, followed word for word on a Slurm of two nodes, with the image."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from builders.tutorials import follow
from hosts import ROUTER
from image import ROOT, Image
from slurm import Slurm


def test_the_tutorial_works_word_for_word(slurm: Slurm, image: Image, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    # Root of this machine needs it in front of Apptainer.
    (tmp_path / "bin" / "apptainer").symlink_to(ROOT / "scripts" / "apptainer")
    (tmp_path / "hpcai500-cpu.sif").symlink_to(image.path)
    variables = {**slurm.environment, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(command: str) -> tuple[str, int]:
        words = ["bash", "-c", f"cd {shlex.quote(str(tmp_path))} && {{ {command}\n}} 2>&1"]
        return slurm.site.attempt(ROUTER, words, 300, environment=variables)

    follow("cluster.md", run)
