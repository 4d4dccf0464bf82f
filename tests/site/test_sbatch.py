"""Rendered scripts on a real Slurm of two nodes: runs that end, that are warned and come back, that fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from batch_jobs import Batch, submit
from hosts import ROUTER
from slurm import Job, Slurm

from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record

SITE = """
[slurm]
time_limit = "10:00"
warning_seconds = 60
exclusive = false
most_requeues = 1
restarts = 0
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


def test_an_element_of_an_array_is_warned_and_comes_back_without_the_others(
    start: Callable[..., Batch], slurm: Slurm
) -> None:
    array = start(LONG, nodes=1, environment={"SBATCH_ARRAY_INX": "0-2"})
    # Each has the name of its own; the last one has the whole array's number, too.
    elements = [Batch(Job(slurm, f"{array.job.number}_{number}"), array.folder) for number in range(3)]
    for element in elements:
        element.wait_until_it_trains()
    numbers = dict(line.split() for line in slurm.call("squeue", "--noheader", "--format=%A %i").splitlines())
    warned = next(one for one in elements if one.job.number == numbers[array.job.number])
    cancelled, other = (one for one in elements if one is not warned)
    slurm.call("scancel", cancelled.job.number)
    assert cancelled.job.wait() == "CANCELLED"
    warned.job.signal("USR1", "--batch")
    assert [one.job.wait() for one in (warned, other)] == ["COMPLETED"] * 2, array.output
    assert [one.job.show("Restarts") for one in (warned, other, cancelled)] == ["1", "0", "0"]
    assert cancelled.job.show("JobState") == "CANCELLED"
    assert warned.history("interrupted", "run_resume") == ["interrupted", "run_resume"]
    assert other.history("interrupted", "run_resume") == []
    starts = next(iterate(other.record.events, "init_start"))["value"]["launch"]
    assert {"job_submitted_s", "job_started_s"} <= starts.keys()


def moments_of(batch: Batch) -> tuple[float, float]:
    """When Slurm put the job back into the queue and started it again, by its own words (UNIX seconds)."""
    submitted, started = (datetime.fromisoformat(batch.job.show(name)) for name in ("SubmitTime", "StartTime"))
    return submitted.timestamp(), started.timestamp()


def parts_of(batch: Batch) -> dict[str, Any]:
    found = score_record(batch.path).goodput
    assert found is not None
    assert found.interruptions == 1
    assert found.recovery_seconds is not None
    parts: dict[str, Any] = found.seconds.model_dump()
    assert sum(parts.values()) == pytest.approx(found.wall_seconds)
    return parts


def test_the_goodput_of_a_warned_job_has_its_time_in_the_queue_and_loses_nothing(start: Callable[..., Batch]) -> None:
    batch = start(LONG)
    batch.wait_until_it_trains()
    batch.job.signal("USR1", "--batch")
    assert batch.job.wait() == "COMPLETED", batch.output
    events, parts = batch.record.events, parts_of(batch)
    submitted, started = moments_of(batch)
    (ended,) = (event["time_ms"] / 1000 for event in iterate(events, "run_error"))
    first, second = iterate(events, "init_start")
    # Slurm counts whole seconds.
    assert parts["queue"] == pytest.approx(started - submitted, abs=1.01)
    assert parts["queue"] > 3
    assert parts["downtime"] == pytest.approx(max(0.0, submitted - ended), abs=1.01)
    assert (parts["lost"], parts["unknown"]) == (0, 0)
    begun = next(event for event in iterate(events, "epoch_start") if event["seq"] > second["seq"])
    trained = next(iterate(events, "epoch_start"))
    startup = begun["time_ms"] / 1000 - started
    startup += trained["time_ms"] / 1000 - first["value"]["launch"]["job_started_s"]
    assert parts["startup"] == pytest.approx(startup, abs=1.01)


def test_the_goodput_of_a_killed_job_that_an_admin_requeues(start: Callable[..., Batch], slurm: Slurm) -> None:
    """Killed without a last word; three seconds later it goes back to the queue."""
    batch = start(LONG)
    batch.wait_until_it_trains()
    (first,) = iterate(batch.record.events, "init_start")
    slurm.site.run(ROUTER, ["kill", "-KILL", str(first["value"]["process"])])
    dead = time.time()
    assert batch.job.wait() == "FAILED", batch.output
    time.sleep(3)
    batch.job.requeue()
    batch.job.wait("PENDING", "RUNNING")
    assert batch.job.wait() == "COMPLETED", batch.output
    parts = parts_of(batch)
    submitted, started = moments_of(batch)
    assert parts["queue"] == pytest.approx(started - submitted, abs=1.01)
    # Of the time without a last word, two seconds cannot be told.
    assert parts["downtime"] >= submitted - dead - 2 - 1.01
    assert parts["downtime"] + parts["unknown"] >= submitted - dead - 1.01
    assert parts["unknown"] <= 2.1
    keys = ["run_start", "run_resume", "first_step", "run_stop"]
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
@pytest.mark.parametrize(("name", "words"), [("USR1", ()), ("TERM", ("--batch",))], ids=["ranks", "script"])
def test_a_job_that_is_told_to_end_keeps_a_checkpoint_and_does_not_come_back(
    start: Callable[..., Batch], program: str, name: str, words: Sequence[str]
) -> None:
    batch = start(LONG, change=of(program))
    batch.wait_until_it_trains()
    batch.job.signal(name, *words)
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


def processes_of(record: Path, module: str) -> dict[int, int]:
    """The process of each task that runs `module` of hpcai500 for `record`, by rank."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        is_ours = any(module.encode() in word for word in words) and os.fsencode(record) in words
        ranks = [int(one.partition(b"=")[2]) for one in variables if one.startswith(b"SLURM_PROCID=")]
        if is_ours and ranks and b"SLURM_STEP_ID" in b"\0".join(variables) and words[0] != b"srun":
            found[ranks[0]] = int(process.name)
    return found


@pytest.mark.parametrize("module", ["hpcai500.train", "bin/hpcai500"], ids=["rank", "task"])
def test_what_was_killed_starts_again_in_the_same_allocation(start: Callable[..., Batch], module: str) -> None:
    batch = start(LONG, change=("restarts = 0", "restarts = 2"))
    batch.wait_until_it_trains()
    os.kill(processes_of(batch.path, module)[1], SIGKILL)
    assert batch.job.wait() == "COMPLETED", batch.output
    assert batch.job.show("Restarts") == "0"
    told = "rank 1 on host" if module == "hpcai500.train" else "a task was killed (exit code 137)"
    assert told in batch.output
    assert ": restart 1 of 2" in batch.output
    assert batch.history("run_start", "run_resume", "run_stop") == ["run_start", "run_resume", "run_stop"]
    assert batch.output.rstrip().endswith("HPCAI500 RESULT PASS")
