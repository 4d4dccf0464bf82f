"""--procs and launchers on the command line: what is chosen, and what is refused before anything runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from many_ranks import Ended, clean_environment, start
from tiny_runs import TINY

from hpcai500.campaign.journal import create_campaign
from hpcai500.recipe import load_recipe

HPCAI500 = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]
INVALID = "HPCAI500 RESULT INVALID"


def hpcai500(
    *arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = clean_environment() | dict(environment or {})
    command = [*HPCAI500, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=variables, check=False)


def copies(*arguments: str, cwd: Path) -> Ended:
    """Two copies of the command, as a launcher starts them."""
    return start([*HPCAI500, *arguments], 2, "processes", cwd=cwd)


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if "error: " in line]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--procs", "0"], "Invalid value for '--procs'"),
        (["--procs", "many"], "Invalid value for '--procs'"),
        (
            ["--procs", "2", "--set", "hardware.accelerators_per_node=4"],
            "--procs 2: 2 ranks, but the recipe's hardware is 1 x 4 (nodes x accelerators_per_node): leave out "
            "--procs, or add --set hardware.nodes=1 --set hardware.accelerators_per_node=2",
        ),
        (["--procs", "1", "--set", "communication.backend=torch"], "`torch` is for two ranks or more"),
        (["--procs", "2", "--set", "communication.backend=local"], "`local` is one process, but hardware asks for 2"),
        (
            ["--set", "hardware.nodes=2", "--set", "communication.backend=torch"],
            "hardware.nodes is 2: start the command on all of them with srun, mpirun or torchrun (docs/launching.md), "
            "or try it on this host with --procs 2",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_64(
    images: Path, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    ended = hpcai500("ic", "--recipe", "ic/smoke", "--data", images, *arguments, cwd=tmp_path)
    assert ended.returncode == 64
    (error,) = errors(ended.stderr)
    assert expected in error
    assert not list(tmp_path.glob("runs/*"))


def test_copies_of_a_run_of_one_rank_are_refused(tmp_path: Path) -> None:
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}
    ended = hpcai500("ic", cwd=tmp_path, environment={**step, "PMI_RANK": "0", "PMI_SIZE": "1"})
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (64, INVALID)
    assert "PMI_SIZE=1, but SLURM_STEP_NUM_TASKS=2: this would be 2 copies of a run of one rank each" in ended.stderr
    document = json.loads(hpcai500("ic", "--json", cwd=tmp_path, environment={"RANK": "x"}).stdout)
    assert (document["verdict"], document["exit_code"]) == ("INVALID", 64)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--procs", "2"], "--procs starts the ranks itself, but torchrun has started 2 already: leave out --procs"),
        (["--recipe", "nope"], "nope: no such recipe file"),
        (["--set", "hardware.nodes=4"], "torchrun: 2 ranks, but the recipe's hardware is 4 x 1"),
        (
            ["--data", ".", "--trials", "3", "--set", "communication.backend=horovod"],
            "--trials: Horovod starts only once under one torchrun",
        ),
    ],
)
def test_of_many_copies_one_says_what_is_wrong_and_all_end_with_its_code(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    ended = copies("ic", *arguments, cwd=tmp_path)
    assert ended.exit_codes == [64, 64]
    (error,) = errors(ended.output)
    assert expected in error
    assert ended.output.count(INVALID) == 1
    assert not list(tmp_path.iterdir())


def test_the_runs_of_a_series_have_one_number_of_ranks(images: Path, tmp_path: Path) -> None:
    create_campaign(tmp_path / "t", load_recipe("ic/smoke", TINY), 2, images)
    ended = hpcai500("ic", "--resume", "--out", "t", "--procs", "2", cwd=tmp_path)
    assert ended.returncode == 64
    assert "the runs of this series have 1 rank each, and here are 2: start as many" in ended.stderr


def test_help_teaches_many_ranks(tmp_path: Path) -> None:
    for benchmark in ("ic", "ewa"):
        text = " ".join(hpcai500(benchmark, "--help", cwd=tmp_path).stdout.split())
        for word in ("--procs N", f"srun hpcai500 {benchmark}", "mpirun, torchrun or horovodrun", "docs/launching.md"):
            assert word in text
