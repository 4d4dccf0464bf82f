"""An ensemble in the CPU image under a real Slurm: containers are the unit, and Slurm's commands stay on the host."""

from __future__ import annotations

import os
from pathlib import Path

from builders.runs import TINY
from ensembles import SITE, OnSlurm
from hosts import ROUTER
from image import ROOT, Image
from slurm import Slurm

# Root of this machine needs it in front of Apptainer; users of a site call Apptainer itself.
APPTAINER = ROOT / "scripts" / "apptainer"


def inside(slurm: Slurm, image: Image, folder: Path, *words: str | Path) -> str:
    """What `hpcai500 ensemble WORDS` printed in the image, as people call it where they log in."""
    command: list[str | Path] = [
        APPTAINER,
        "--quiet",
        "exec",
        "--bind",
        folder,
        "--pwd",
        folder,
        image.path,
        "hpcai500",
        "ensemble",
    ]
    return slurm.site.run(ROUTER, [*command, *words])


def test_an_ensemble_of_containers_is_written_inside_submitted_outside_and_collected(
    slurm: Slurm, image: Image, images: Path, tmp_path: Path
) -> None:
    # What is bound lies in one folder.
    folder = images.parent
    ensemble, site = folder / f"ensemble-{os.getpid()}", folder / f"site-{os.getpid()}.toml"
    container = f'[container]\ncommand = "{APPTAINER}"\nimage = "{image.path}"\n'
    site.write_text(SITE.replace('[container]\ncommand = "none"\n', container))
    settings = [word for text in (*TINY, "accelerator.device=cpu", "problem.epochs=30") for word in ("--set", text)]
    shape = ["--members", "2", "--degree", "1", "--node-accelerators", "1"]
    inside(slurm, image, folder, "plan", ensemble, "--recipe", "ic/smoke", *shape, "--data", images, *settings)
    line = inside(slurm, image, folder, "submit", ensemble, "--site", site).splitlines()[-1]
    assert line == f"bash {ensemble}/slurm/submit.sh"
    # Nothing but bash, Slurm and Apptainer is needed where the line is typed.
    slurm.call(*line.split())
    on = OnSlurm(slurm, ensemble)
    (event,) = [event["value"] for event in on.ensemble.events if event["key"] == "submit"]
    array, collector = event["jobs"]
    on.wait_until_they_train([0])
    slurm.call("scancel", "--signal=USR1", "--batch", f"{array}_0")
    assert on.wait(collector, timeout=240) == "COMPLETED", on.everything
    assert on.history(0, "interrupted", "run_resume", "run_stop") == ["interrupted", "run_resume", "run_stop"]
    assert on.history(1, "run_start", "run_stop") == ["run_start", "run_stop"]
    assert on.failures(0) == []
    assert "HPCAI500 RESULT PASS" in on.collected
    assert [job.state for job in on.jobs()] == ["ended", "ended"]
