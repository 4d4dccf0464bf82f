"""The ReFrame check under the real ReFrame: on this machine, and through sbatch on two real Slurm nodes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.ranks import clean_environment
from builders.runs import TINY, TINY_WEATHER
from hosts import ROUTER
from slurm import Slurm

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "recipes" / "harness" / "reframe"
PROGRAMS = Path(sys.executable).parent
TINIEST = {"ic": TINY, "ewa": TINY_WEATHER}


# Of a run that makes any progress, and of none.
EASY = {"*": {"images_per_second": [1, 0, None, "images/s"]}}
IMPOSSIBLE = {"*": EASY["*"], "workstation:local": {"images_per_second": [1e9, -0.05, None, "images/s"]}}


@dataclass(frozen=True)
class Ran:
    """What ReFrame made of one check.

    Attributes:
        exit_code: ReFrame's own.
        case: of its report: `result`, `fail_phase`, `perfvalues`, …
        output: what ReFrame printed.
        folder: where it left everything.
    """

    exit_code: int
    case: dict[str, Any]
    output: str
    folder: Path

    @property
    def reason(self) -> str:
        """Why it failed, as ReFrame prints it."""
        return self.output.partition("* Reason: ")[2].partition("\n")[0]

    @property
    def figures(self) -> dict[str, tuple[float, str]]:
        """Value and unit of each performance variable."""
        return {key.rpartition(":")[2]: (row[0], row[4]) for key, row in self.case["perfvalues"].items()}

    def file(self, name: str) -> str:
        """Text of the file of the job with this name."""
        (path,) = (path for kind in ("stage", "output") for path in self.folder.glob(f"{kind}/**/{name}"))
        return path.read_text()


class ReFrame:
    """The real ReFrame and the check, in a folder of this test."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def command(
        self, benchmark: str, data: Path, references: Mapping[str, Any] = EASY, **variables: object
    ) -> list[str]:
        """ReFrame's command line, for the tiniest recipe; `references` are those of `benchmark`."""
        path = self._folder / "references.yaml"
        path.write_text(json.dumps({benchmark: references}))  # which is YAML too
        words = [self._program, "--nocolor", "-C", CHECK / "settings.py", "-c", CHECK / "hpcai500_check.py"]
        words += ["--prefix", self._folder, "--report-file", self._folder / "report.json", "-t", f"^{benchmark}$"]
        settings = [*TINIEST[benchmark], *str(variables.pop("more_settings", "")).split()]
        given = {
            "program": PROGRAMS / "hpcai500",
            "recipe": f"{benchmark}/smoke",
            "data": data,
            "settings": shlex.join(settings),
            "references": path,
            **variables,
        }
        return [*map(str, words), *(f"-S{name}={value}" for name, value in given.items())]

    def here(self, command: Sequence[str], **variables: str) -> Ran:
        """Run it on this machine, with `variables` in its environment."""
        environment = {**clean_environment(), **self.environment, **variables}
        done = subprocess.run(
            [*command, "-r"],
            env=environment,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        return self._ran(done.returncode, done.stdout)

    def on(self, slurm: Slurm, command: Sequence[str]) -> Ran:
        """Run it through the sbatch of a cluster."""
        environment = {**self.environment, "SLURM_CONF": str(slurm.site.folder / "slurm" / "slurm.conf")}
        words = [*command, "--system=cluster", "-r"]
        output, code = slurm.site.attempt(ROUTER, words, environment=environment)
        return self._ran(code, output)

    @property
    def environment(self) -> dict[str, str]:
        """So that nothing is left when the test ends: neither its logs nor its compiled check."""
        return {"TMPDIR": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def _ran(self, code: int, output: str) -> Ran:
        report = self._folder / "report.json"
        assert report.exists(), output
        (case,) = json.loads(report.read_text())["runs"][0]["testcases"]
        return Ran(code, case, output, self._folder)


@pytest.fixture
def reframe(tmp_path: Path) -> ReFrame:
    """ReFrame in a folder of its own."""
    found = shutil.which("reframe", path=f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("reframe not found: run scripts/install .venv harness")
    return ReFrame(found, tmp_path)


def program(folder: Path, *lines: str) -> Path:
    """A program that stands where hpcai500 would, and dies as told."""
    path = folder / "program"
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_a_good_run_passes_with_every_figure_and_its_unit(reframe: ReFrame, images: Path) -> None:
    ran = reframe.here(reframe.command("ic", images, num_tasks_per_node=2))
    assert (ran.exit_code, ran.case["result"]) == (0, "pass"), ran.output
    printed = [line.split() for line in ran.file("rfm_job.out").splitlines() if line.startswith("HPCAI500 FOM ")]
    expected = {figure.partition("=")[0]: (float(figure.partition("=")[2]), unit) for *_, figure, unit in printed}
    assert ran.figures == expected
    assert {"flops", "top1", "communication_fraction"} <= expected.keys()
    assert json.loads(ran.file("result.json"))["world_size"] == 2


def test_a_run_that_is_too_slow_fails_by_its_reference(reframe: ReFrame, images: Path) -> None:
    ran = reframe.here(reframe.command("ic", images, IMPOSSIBLE))
    assert (ran.exit_code, ran.case["fail_phase"]) == (1, "performance"), ran.output
    assert ran.reason.startswith("performance error: failed to meet reference")
    assert "images_per_second=" in ran.reason
    assert "expected 1000000000.0 (l=950000000.0, u=inf)" in ran.reason


def test_a_reference_that_no_run_can_be_held_to_fails(reframe: ReFrame, images: Path, tmp_path: Path) -> None:
    """A misspelt name must not look like a criterion that was met."""
    printed = program(tmp_path, "echo HPCAI500 FOM images_per_second=3 images/s", "echo HPCAI500 RESULT PASS")
    misspelt = {"workstation": {"image_per_second": [1, 0, None, "images/s"]}}
    ran = reframe.here(reframe.command("ic", images, misspelt, program=printed))
    assert (ran.exit_code, ran.case["fail_phase"]) == (1, "performance"), ran.output
    assert ran.reason.endswith("references.yaml: the run did not print image_per_second")


def test_missed_quality_fails_however_fast_it_was(reframe: ReFrame, weather: Path) -> None:
    ran = reframe.here(reframe.command("ewa", weather, more_settings="problem.target_quality=0.999"))
    assert (ran.exit_code, ran.case["fail_phase"]) == (1, "sanity"), ran.output
    assert ran.reason.startswith("sanity error: RESULT FAIL, exit code 2: FAILED: map50 ")


def test_data_that_is_not_there_is_told_in_the_words_of_hpcai500(reframe: ReFrame, tmp_path: Path) -> None:
    ran = reframe.here(reframe.command("ic", tmp_path / "nowhere"))
    assert (ran.exit_code, ran.case["fail_phase"]) == (1, "sanity"), ran.output
    assert ran.reason.startswith("sanity error: RESULT INVALID, exit code 64: hpcai500: error: ")
    assert "nowhere: no such folder" in ran.reason


@pytest.mark.parametrize(
    ("lines", "story"),
    [
        (["kill -KILL $$"], "no RESULT line, exit code 137"),
        (["echo HPCAI500 RESULT PASS", "kill -KILL $$"], "RESULT PASS, exit code 137"),
        (["echo HPCAI500 RESULT PASS, or so", "exit 0"], "no RESULT line, exit code 0"),
        (["echo HPCAI500 RESULT PASS", "exit 5"], "RESULT PASS, exit code 5"),
    ],
)
def test_one_of_line_and_exit_code_is_not_enough(
    reframe: ReFrame, images: Path, tmp_path: Path, lines: list[str], story: str
) -> None:
    ran = reframe.here(reframe.command("ic", images, program=program(tmp_path, *lines)))
    assert (ran.exit_code, ran.case["fail_phase"]) == (1, "sanity"), ran.output
    assert story in ran.reason


def test_an_image_is_run_by_apptainer_with_all_that_it_reads(reframe: ReFrame, images: Path, tmp_path: Path) -> None:
    """ReFrame writes the job and does not run it: an image is not needed to see what would be run in it."""
    image = tmp_path / "hpcai500.sif"
    command = reframe.command("ic", images, image=image, num_gpus_per_node=4)
    subprocess.run([*command, "--dry-run"], env={**clean_environment(), **reframe.environment}, check=True)
    (script,) = tmp_path.glob("stage/**/rfm_job.sh")
    line = next(line for line in script.read_text().splitlines() if line.startswith("apptainer "))
    words = shlex.split(line)
    inside = words[words.index(str(image)) + 1 :]
    assert words[:2] == ["apptainer", "exec"]
    assert {f"-B{image}:/image.sif:ro", f"-B{images}:{images}", "--nv"} <= set(words)
    assert inside[:6] == ["hpcai500", "ic", "--out", "record", "--recipe", "ic/smoke"]


def test_a_run_on_two_slurm_nodes_passes(reframe: ReFrame, slurm: Slurm, images: Path) -> None:
    ran = reframe.on(slurm, reframe.command("ic", images, num_nodes=2))
    assert (ran.exit_code, ran.case["result"]) == (0, "pass"), ran.output
    assert json.loads(ran.file("result.json"))["nodes"] == 2
    assert ran.figures["images_per_second"][1] == "images/s"
    assert ran.file("rfm_job.out").count("HPCAI500 RESULT") == 1


def test_a_job_that_slurm_ends_fails(reframe: ReFrame, slurm: Slurm, images: Path, tmp_path: Path) -> None:
    """Without accounting, nobody can be asked how it ended: it looks like any job that has left the queue."""
    ended = program(tmp_path, "scancel $SLURM_JOB_ID", "sleep 60")
    ran = reframe.on(slurm, reframe.command("ic", images, program=ended))
    assert (ran.exit_code, ran.case["fail_phase"]) == (1, "sanity"), ran.output
    assert "no RESULT line, exit code unknown (the job did not end normally)" in ran.reason
    assert "CANCELLED" in ran.reason
