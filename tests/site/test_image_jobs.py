"""The image in the jobs of a real Slurm of two nodes, and under ReFrame."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from batch_jobs import Batch, submit
from image import BUILT, ROOT, Image
from slurm import Slurm
from test_harness_reframe import ReFrame, reframe  # noqa: F401 - a fixture is found by its name here
from test_sbatch import LONG, SITE

from hpcai500.record import iterate

# Root of this machine needs it in front of Apptainer; users of a site call Apptainer itself.
APPTAINER = ROOT / "scripts" / "apptainer"


def start(slurm: Slurm, folder: Path, image: Image, images: Path, *settings: str, pmi: str = "none") -> Batch:
    """A job of two ranks on two nodes, in the image."""
    container = f'[container]\ncommand = "{APPTAINER}"\nimage = "{image.path}"\n'
    site = SITE.replace('[container]\ncommand = "none"\n', container)
    site = site.replace('program = "srun"', f'program = "srun"\npmi = "{pmi}"')
    return submit(slurm, folder, site, images, *settings)


def world(batch: Batch) -> dict[str, Any]:
    """Who trained, as the record says."""
    value: dict[str, Any] = next(iterate(batch.record.events, "run_start"))["value"]
    return value


def test_a_rendered_script_runs_the_image_on_two_nodes(
    slurm: Slurm, image: Image, images: Path, tmp_path: Path
) -> None:
    batch = start(slurm, tmp_path, image, images)
    assert batch.job.wait() == "COMPLETED", batch.output
    assert batch.output.rstrip().endswith("HPCAI500 RESULT PASS")
    assert world(batch)["hosts"] == ["n1", "n2"]
    # The script shows the image to what runs in it.
    made_by = json.loads((batch.path / "system.json").read_text())["installation"]["image"]
    with BUILT.open("rb") as file:
        assert made_by["file_sha256"] == hashlib.file_digest(file, "sha256").hexdigest()
    assert made_by["name"] == "hpcai500-cpu"


def test_the_mpi_of_the_image_is_started_by_the_pmix_of_slurm(
    slurm: Slurm, image: Image, images: Path, tmp_path: Path
) -> None:
    """The hybrid model: Slurm's PMIx outside, the image's Open MPI inside."""
    batch = start(slurm, tmp_path, image, images, "communication.backend=horovod", pmi="pmix")
    assert batch.job.wait() == "COMPLETED", batch.output
    assert world(batch)["world_size"] == 2
    assert "MPI" in world(batch)["library"]


def test_a_warned_job_in_the_image_stops_with_a_checkpoint_comes_back_and_ends(
    slurm: Slurm, image: Image, images: Path, tmp_path: Path
) -> None:
    batch = start(slurm, tmp_path, image, images, LONG)
    batch.wait_until_it_trains()
    batch.job.signal("USR1", "--batch")
    assert batch.job.wait(timeout=240) == "COMPLETED", batch.output
    keys = ["interrupted", "run_resume", "run_stop"]
    assert batch.history(*keys) == keys
    assert batch.output.rstrip().endswith("HPCAI500 RESULT PASS")


def test_reframe_runs_the_image(
    reframe: ReFrame,  # noqa: F811
    image: Image,
    images: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apptainer").symlink_to(APPTAINER)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ran = reframe.here(reframe.command("ic", images, image=image.path), PATH=path)
    assert (ran.exit_code, ran.case["result"]) == (0, "pass"), ran.output
    assert ran.figures["flops"][0] > 0
