"""The JUBE benchmark under the real JUBE: on this machine, and through sbatch on real Slurm nodes."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders.ranks import clean_environment
from builders.runs import TINY
from hosts import ROUTER
from slurm import Slurm

BENCHMARK = Path(__file__).resolve().parents[2] / "recipes" / "harness" / "jube" / "hpcai500.xml"
PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class Ran:
    """One call of JUBE: its exit code and what it printed."""

    exit_code: int
    output: str

    @property
    def done(self) -> tuple[int, int]:
        """Runs that were asked for, and those that have come to the end of their last step."""
        steps = dict(re.findall(r"^\s*\| +(train|check) \|(.*)\|$", self.output, re.MULTILINE))
        assert steps, self.output
        return int(steps["train"].split("|")[0]), int(steps["check"].split("|")[-1])


class Jube:
    """The real JUBE and the benchmark, in a folder of this test."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"
        self._values = {
            "AI500_PROGRAM": str(PROGRAMS / "hpcai500"),
            "AI500_RECIPE": "ic/smoke",
            "AI500_DATA": str(images),
            "AI500_SETTINGS": shlex.join(TINY),
        }

    def call(self, *words: str | Path, slurm: Slurm | None = None, **values: object) -> Ran:
        """`jube words…`; `values` are those that the benchmark takes from the environment."""
        variables = {**self._values, **{f"AI500_{name.upper()}": str(value) for name, value in values.items()}}
        command = ["jube", words[0], "--hide-animation", *words[1:]]
        if slurm is None:
            environment = {**clean_environment(), **variables}
            done = subprocess.run(
                [*command],
                env=environment,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            return Ran(done.returncode, done.stdout)
        variables["SLURM_CONF"] = str(slurm.site.folder / "slurm" / "slurm.conf")
        # `sbatch` hands on its PATH, where the rendered script finds hpcai500.
        variables["PATH"] = os.pathsep.join(["/run/site", str(PROGRAMS), os.environ["PATH"]])
        output, code = slurm.site.attempt(ROUTER, command, environment=variables)
        return Ran(code, output)

    def run(self, *tags: str, slurm: Slurm | None = None, **values: object) -> Ran:
        """`jube run -e`: which ends with 1 where a step fails."""
        words = ["-o", self._runs, BENCHMARK, *(["-t", *tags] if tags else [])]
        return self.call("run", "-e", *words, slurm=slurm, **values)

    def go_on(self, slurm: Slurm) -> Ran:
        """`jube continue -e`, until all runs have passed or one has failed."""
        limit = time.monotonic() + 90
        while time.monotonic() < limit:
            ran = self.call("continue", "-e", self._runs, slurm=slurm)
            if ran.exit_code != 0 or ran.done[0] == ran.done[1]:
                return ran
            time.sleep(0.5)
        raise AssertionError(f"not at an end after 90 s:\n{ran.output}")

    def results(self) -> list[Mapping[str, str]]:
        """Rows of the table of all figures, by the names of their columns without the unit."""
        ran = subprocess.run(
            ["jube", "result", "-a", self._runs], cwd=self.folder, check=True, capture_output=True, text=True
        )
        self.table = ran.stdout
        (path,) = self._runs.glob("*/result/figures.dat")
        lines = path.read_text().splitlines()
        names = [name.partition("[")[0] for name in lines[0].split(",")]
        return [row for row in csv.DictReader(lines[1:], names) if row["exit_code"] is not None]


@pytest.fixture
def jube(tmp_path: Path, images: Path) -> Jube:
    """JUBE in a folder of its own."""
    if shutil.which("jube") is None:
        pytest.skip("jube not found: run scripts/bootstrap --with site")
    return Jube(tmp_path, images)


def test_each_number_of_ranks_is_a_row_of_the_table(jube: Jube) -> None:
    ran = jube.run(procs="1,2")
    assert (ran.exit_code, ran.done) == (0, (2, 2)), ran.output
    rows = jube.results()
    assert [(row["verdict_last"], row["exit_code"]) for row in rows] == [("PASS", "0")] * 2
    assert [bool(row["communication_fraction"]) for row in rows] == [False, True]
    assert all(float(row["flops"]) > 0 and float(row["images_per_second"]) > 0 for row in rows)
    assert "images_per_second[images/s]" in jube.table


def test_missed_quality_ends_jube_with_an_error_and_is_in_the_table(jube: Jube) -> None:
    ran = jube.run(settings=shlex.join([*TINY, "problem.target_quality=0.999"]))
    assert ran.exit_code == 1, ran.output
    assert "HPCAI500 RESULT FAIL, exit code 2: see train/output, train/progress" in ran.output
    (row,) = jube.results()
    assert (row["verdict_last"], row["exit_code"]) == ("FAIL", "2")
    assert float(row["flops"]) > 0


@pytest.mark.parametrize(
    ("program", "verdict", "code"),
    [
        ("sh -c 'kill -KILL $$'", "no RESULT line", 137),
        ("sh -c 'echo HPCAI500 RESULT PASS; kill -KILL $$'", "HPCAI500 RESULT PASS", 137),
        ("sh -c 'echo Is it HPCAI500 RESULT PASS'", "no RESULT line", 0),
    ],
)
def test_one_of_line_and_exit_code_is_not_enough(jube: Jube, program: str, verdict: str, code: int) -> None:
    ran = jube.run(program=program)
    assert ran.exit_code == 1, ran.output
    assert f"{verdict}, exit code {code}: see" in ran.output
    assert jube.results()[0]["exit_code"] == str(code)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("JobState=COMPLETED Reason=None\n   Reboot=0 ExitCode=0:0", 0),
        ("JobState=FAILED Reason=NonZeroExitCode\n   Reboot=0 ExitCode=2:0", 2),
        ("JobState=FAILED Reason=RaisedSignal\n   Reboot=0 ExitCode=0:9", 137),
        ("JobState=TIMEOUT Reason=TimeLimit\n   Reboot=0 ExitCode=0:0", 1),
        ("JobState=NODE_FAIL Reason=NodeDown\n   Reboot=0 ExitCode=0:0", 1),
        ("JobState=CANCELLED Reason=None\n   Reboot=0 ExitCode=0:0", 1),
        ("", 1),
    ],
)
def test_a_job_that_did_not_complete_has_an_exit_code_that_says_so(tmp_path: Path, told: str, code: int) -> None:
    """A stand-in for scontrol: no Slurm here can be made to end a job in each of these ways."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\n[ "$*" = "show job 17" ] && cat <<END\nJobId=17 JobName=x\n   {told}\nEND\n')
    scontrol.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    # `sbatch --parsable` adds the cluster where there are several.
    command = [BENCHMARK.with_name("write_exit_code"), "17;cluster"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert (tmp_path / "exit_code").read_text() == f"{code}\n", ended.stderr


SITE = '[slurm]\ntime_limit = "00:10:00"\nexclusive = false\n[container]\ncommand = "none"\n'


def kill_all_that_name(path: Path) -> None:
    """Kill all processes with `path` on their command line, launchers before ranks: nobody shall say a last word."""
    for process in sorted((folder for folder in Path("/proc").glob("[0-9]*")), key=lambda folder: int(folder.name)):
        with contextlib.suppress(OSError):
            if os.fsencode(path) in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def test_jube_waits_for_slurm_and_goes_on_when_the_jobs_have_ended(jube: Jube, slurm: Slurm) -> None:
    site = jube.folder / "site.toml"
    site.write_text(SITE)
    begun = jube.run("slurm", slurm=slurm, site=site, nodes=2)
    assert (begun.exit_code, begun.done) == (0, (1, 0)), begun.output
    ended = jube.go_on(slurm)
    assert (ended.exit_code, ended.done) == (0, (1, 1)), ended.output
    (row,) = jube.results()
    assert (row["verdict_last"], row["exit_code"]) == ("PASS", "0")
    assert row["communication_fraction"]


def test_a_job_that_is_killed_ends_the_waiting_too(jube: Jube, slurm: Slurm) -> None:
    """It writes neither DONE nor ERROR, for which JUBE would wait for ever."""
    site = jube.folder / "site.toml"
    site.write_text(SITE)
    many = shlex.join([*TINY, "problem.epochs=100000"])
    assert jube.run("slurm", slurm=slurm, site=site, settings=many).exit_code == 0
    (output,) = jube.folder.glob("runs/*/*_train/work")
    limit = time.monotonic() + 60
    while "epoch 1/" not in ((output / "output").read_text() if (output / "output").exists() else ""):
        assert time.monotonic() < limit, "the run does not start"
        time.sleep(0.2)
    kill_all_that_name(output / "record")
    ended = jube.go_on(slurm)
    assert ended.exit_code == 1, ended.output
    assert "no RESULT line, exit code 137" in ended.output
    assert not list(output.glob("record/DONE")) + list(output.glob("record/ERROR"))
    assert jube.results()[0]["verdict_last"] == "none"
