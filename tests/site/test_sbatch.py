"""Rendered scripts on a real Slurm of two nodes: runs that end, that are warned and come back, that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from batch_jobs import Batch, submit
from slurm import Slurm

from hpcai500.record import read_record

SITE = """
[slurm]
time_limit = "10:00"
warning_seconds = 60
exclusive = false
most_requeues = 1
[launcher]
program = "srun"
interface = "eth0"
[container]
command = "none"
[environment]
OMP_NUM_THREADS = "1"
OMPI_ALLOW_RUN_AS_ROOT = "1"
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = "1"
"""
# Long enough for a signal to come in the middle.
LONG = "problem.epochs=100"
PROGRAMS = pytest.mark.parametrize("program", ["srun", "mpirun"])


@pytest.fixture
def start(slurm: Slurm, images: Path, tmp_path: Path) -> Callable[..., Batch]:
    """Submit a tiny run; `change` replaces a text in the site file, the rest is for `submit`."""

    def started(*settings: str, change: tuple[str, str] = ("", ""), **how: Any) -> Batch:
        return submit(slurm, tmp_path, SITE.replace(*change), images, *settings, **how)

    return started


def of(program: str) -> tuple[str, str]:
    return '"srun"', f'"{program}"'


@PROGRAMS
def test_a_rendered_script_runs_on_two_nodes_to_a_result(start: Callable[..., Batch], program: str) -> None:
    batch = start(change=of(program))
    assert batch.job.wait() == "COMPLETED", batch.output
    assert batch.record.status == "done"
    assert batch.record.recipe().world_size == 2
    assert f"2 ranks of {program}" in batch.output
    assert batch.output.rstrip().endswith("HPCAI500 RESULT PASS")


def test_a_warned_job_stops_with_a_checkpoint_comes_back_and_ends(start: Callable[..., Batch]) -> None:
    batch = start(LONG)
    batch.wait_until_it_trains()
    batch.job.signal("USR1", "--batch")
    assert batch.job.wait() == "COMPLETED", batch.output
    assert batch.job.show("Restarts") == "1"
    assert "time is up" in batch.output
    assert batch.output.rstrip().endswith("HPCAI500 RESULT PASS")
    keys = ["run_start", "interrupted", "run_resume", "run_stop"]
    assert batch.history(*keys) == keys


def test_a_job_that_has_come_back_often_enough_says_how_to_go_on(start: Callable[..., Batch]) -> None:
    batch = start(LONG, change=("most_requeues = 1", "most_requeues = 0"))
    batch.wait_until_it_trains()
    batch.job.signal("USR1", "--batch")
    assert batch.job.wait() == "FAILED"
    assert f"continue with: HPCAI500_RECORD={batch.path} sbatch FILE" in batch.output
    going_on = {"HPCAI500_RECORD": str(batch.path)}
    again = start(environment=going_on)
    assert again.job.wait() == "COMPLETED", again.output
    assert batch.record.status == "done"
    # A third time there is nothing to do but to tell the score.
    told = start(environment=going_on)
    assert told.job.wait() == "COMPLETED", told.output
    assert "is already done" in told.output
    assert told.output.rstrip().endswith("HPCAI500 RESULT PASS")


def test_a_record_of_a_start_that_died_early_does_not_keep_the_job_from_its_result(
    start: Callable[..., Batch], tmp_path: Path
) -> None:
    record = tmp_path / "mine"
    record.mkdir()
    (record / "events.jsonl").touch()
    batch = start(environment={"HPCAI500_RECORD": f"{record}/"})
    assert batch.job.wait() == "COMPLETED", batch.output
    assert read_record(record).status == "done"
    assert f"moved to {record}.failed-{batch.job.number}-0; a new run starts" in batch.output


@PROGRAMS
@pytest.mark.parametrize(("signal", "words"), [("USR1", ()), ("TERM", ("--batch",))], ids=["ranks", "script"])
def test_a_job_that_is_told_to_end_keeps_a_checkpoint_and_does_not_come_back(
    start: Callable[..., Batch], program: str, signal: str, words: Sequence[str]
) -> None:
    batch = start(LONG, change=of(program))
    batch.wait_until_it_trains()
    batch.job.signal(signal, *words)
    assert batch.job.wait() == "FAILED", batch.output
    assert batch.job.show("ExitCode") == "1:0"
    assert batch.history("interrupted") == ["interrupted"]
    assert list((batch.path / "checkpoints").iterdir())


@PROGRAMS
def test_the_exit_code_of_a_job_that_fails_is_passed_on(start: Callable[..., Batch], program: str) -> None:
    batch = start(change=of(program), words=["--set", "problem.epochs=none"])
    assert batch.job.wait() == "FAILED", batch.output
    assert batch.job.show("ExitCode") == "64:0"
    assert "--set problem.epochs" in batch.output
