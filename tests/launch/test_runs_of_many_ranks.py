"""`hpcai500 ic` with many ranks, whole: the command, its launcher, the engine, the record."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import HPCAI500, ThreadsAtExit, python_with
from builders.needs import needs_horovod, needs_mpi
from builders.ranks import clean_environment, start, started
from builders.runs import TINY

from hpcai500.campaign.journal import read_campaign
from hpcai500.record import iterate, read_record

SETTINGS = [token for setting in TINY for token in ("--set", setting)]


def command(images: Path, out: str, *more: str) -> list[str]:
    return [*HPCAI500, "ic", "--recipe", "ic/smoke", "--data", str(images), "--out", out, *SETTINGS, *more]


def test_a_run_of_two_local_ranks_is_one_run_of_one_record(images: Path, tmp_path: Path) -> None:
    words = command(images, "record", "--procs", "2", "--json", "--set", "problem.epochs=1")[1:]
    at_exit = ThreadsAtExit(tmp_path / "at-exit")
    python = python_with(tmp_path / "python", tmp_path / "at-exit")
    ended = subprocess.run(
        [python, *words, "--set", "hyperparameters.warmup_epochs=0"],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode in (0, 2), ended.stderr
    # One that is left may abort a rank that was done.
    assert at_exit.counts == [0, 0], "threads of Gloo"
    result = json.loads(ended.stdout)
    assert (result["world_size"], result["nodes"], result["backend"]) == (2, 1, "torch")
    assert ended.stderr.count("2 ranks on this host, torch, ") == 1
    epochs = [line.partition(" top1")[0] for line in ended.stderr.splitlines() if "epoch 1/1:" in line]
    assert epochs == ["hpcai500: ic: epoch 1/1:"]
    recipe = read_record(tmp_path / "record").recipe()
    assert (recipe.hardware.accelerators_per_node, recipe.communication.backend) == (2, "torch")


@needs_mpi
def test_trials_under_a_launcher_are_told_once_and_have_their_own_seeds(images: Path, tmp_path: Path) -> None:
    short = ["--set", "problem.epochs=1", "--set", "hyperparameters.warmup_epochs=0"]
    ended = start(command(images, "t", "--trials", "2", *short), 2, "mpirun", cwd=tmp_path)
    assert ended.output.count("HPCAI500 RESULT ") == 1, ended.output
    assert ended.output.count("2 ranks of mpirun, torch") == 2
    recipes = [read_record(tmp_path / "t" / f"trial-0{number}").recipe() for number in (1, 2)]
    assert [(it.hyperparameters.seed, it.world_size) for it in recipes] == [(1, 2), (2, 2)]
    campaign = read_campaign(tmp_path / "t")
    assert {event["value"]["launcher"] for event in iterate(campaign.events, "attempt_start")} == {"mpirun"}
    assert [(one.trial, one.status) for one in campaign.attempts] == [(1, "done"), (2, "done")]


@needs_horovod
def test_horovod_gets_the_launcher_that_it_wants(images: Path, tmp_path: Path) -> None:
    short = ["--set", "problem.epochs=1", "--set", "hyperparameters.warmup_epochs=0"]
    tokens = command(images, "record", "--procs", "2", "--set", "communication.backend=horovod", *short)
    ended = subprocess.run(tokens, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    assert ended.stdout.count("HPCAI500 RESULT ") == 1, ended.stderr
    assert "2 ranks on this host, horovod, " in ended.stderr
    (started,) = iterate(read_record(tmp_path / "record").events, "run_start")
    assert started["value"]["world_size"] == 2


# A rank that is stopped is lost soon.
LATE = ("--set", "communication.timeout_seconds=5")


@pytest.fixture
def long_run(images: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Two ranks that train for long, past their first epoch; the leader of a process group, as in a terminal."""
    process = subprocess.Popen(
        command(images, "record", "--procs", "2", "--set", "problem.epochs=20000", *LATE),
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_for_epoch(tmp_path / "record", process, process.communicate)
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_epoch(record: Path, process: subprocess.Popen[Any], output: Callable[[], object]) -> None:
    """Until the run's first epoch is over."""
    log = record / "events.jsonl"
    while not log.exists() or b"epoch_stop" not in log.read_bytes():
        assert process.poll() is None, output()
        time.sleep(0.02)


def errors_of(tokens: list[str], folder: Path) -> list[str]:
    """The lines on stderr in which a failing run reports errors."""
    ended = subprocess.run(tokens, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
    assert ended.returncode in (1, 64), ended.stderr
    return [line for line in ended.stderr.splitlines() if line.startswith("hpcai500: error: ")]


def test_an_error_that_all_ranks_meet_is_printed_once(images: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(images, tmp_path / "broken"))
    (broken / "val" / "unknown").mkdir()
    shutil.copy(next((broken / "val").glob("*/*.JPEG")), broken / "val" / "unknown")
    (line,) = errors_of(command(broken, "record", "--procs", "2"), tmp_path)
    assert line.startswith("hpcai500: error: val/ has class folder unknown")
    # The metric is checked by each rank itself.
    (line,) = errors_of(command(images, "other", "--procs", "2", "--set", "problem.metric=map50"), tmp_path)
    assert line == "hpcai500: error: problem.metric: ic measures top1, got map50"


def test_an_error_of_one_rank_alone_is_printed(images: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(images, tmp_path / "damaged"))
    victim = sorted((damaged / "train").glob("*/*.JPEG"))[5]
    victim.write_bytes(victim.read_bytes()[:400])
    lines = errors_of(command(damaged, "record", "--procs", "2"), tmp_path)
    assert any(victim.name in line for line in lines), lines


def test_ctrl_c_in_a_terminal_stops_all_ranks_with_a_checkpoint(
    long_run: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.killpg(long_run.pid, signal.SIGINT)
    out, error = long_run.communicate(timeout=60)
    assert (long_run.returncode, out.splitlines()[-1]) == (1, "HPCAI500 RESULT INVALID")
    assert "stopped by SIGINT at epoch" in error
    assert "Traceback" not in error
    events = read_record(tmp_path / "record").events
    (interrupted,) = (event["value"] for event in iterate(events, "interrupted"))
    saved = [event["value"] for event in iterate(events, "checkpoint")][-1]
    assert (saved["epoch"], saved["step"]) == (interrupted["epoch"], interrupted["step"])


def test_a_rank_that_is_killed_ends_the_run_with_its_name(long_run: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(rank_of(long_run, 1), signal.SIGKILL)
    out, error = long_run.communicate(timeout=60)
    assert (long_run.returncode, out.splitlines()[-1]) == (1, "HPCAI500 RESULT INVALID")
    assert "hpcai500: error: rank 1 was killed by SIGKILL" in error
    assert "rank 1 on host" in (tmp_path / "record" / "ERROR").read_text()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_ends_the_run_with_its_name_at_once(
    long_run: subprocess.Popen[str], tmp_path: Path, rank: int
) -> None:
    os.kill(rank_of(long_run, rank), signal.SIGSTOP)
    out, error = long_run.communicate(timeout=120)
    assert (long_run.returncode, out.splitlines()[-1]) == (1, "HPCAI500 RESULT INVALID")
    reason = (tmp_path / "record" / "ERROR").read_text().strip()
    assert re.match(rf"rank {rank} on host \S+: no sign of life for \d+ s ", reason)
    errors = [line for line in error.splitlines() if "error: " in line]
    assert errors == [f"hpcai500: error: {reason}"]
    assert f"error       {reason}" in out
    # It is not asked to end, which it could not hear.
    assert "SIGTERM" not in error
    assert read_record(tmp_path / "record").status == "error"


def test_copies_of_the_command_end_after_one_has_a_stopped_rank(images: Path, tmp_path: Path) -> None:
    """As under a launcher that lets the others run when one has failed: srun without --kill-on-bad-exit."""
    two = ("--set", "hardware.accelerators_per_node=2", "--set", "hardware.nodes=1", "--set", "problem.epochs=20000")
    tokens = command(images, str(tmp_path / "record"), *two, *LATE)
    with started(tokens, 2, "processes") as (copies, log):
        wait_for_epoch(tmp_path / "record", copies[0], log.read_text)
        os.kill(rank_of(copies[1], 1), signal.SIGSTOP)
        assert [copy.wait(120) for copy in copies] == [1, 1], log.read_text()
        said = log.read_text()
    assert (tmp_path / "record" / "ERROR").read_text().startswith("rank 1 on host ")
    assert "error: rank 1 on host" in said
    assert "killed by" not in said


def test_a_rank_0_that_is_killed_leaves_an_error_in_the_record(long_run: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(rank_of(long_run, 0), signal.SIGKILL)
    long_run.communicate(timeout=120)
    assert "its process ended unexpectedly" in (tmp_path / "record" / "ERROR").read_text()


def rank_of(command: subprocess.Popen[Any], rank: int) -> int:
    """The process that is `rank` of the job that `command` runs."""
    for child in Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no rank {rank}")
