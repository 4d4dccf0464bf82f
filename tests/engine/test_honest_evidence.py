"""Verification finds nothing against real runs: on one rank and on two, in one go, stopped, killed and gone on with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import evidence
import pytest
from many_ranks import start, started
from tiny_runs import train_arguments, weather_arguments

from hpcai500 import train
from hpcai500.record import read_record

Run = Callable[..., tuple[int, Path]]
TWO = ("hardware.accelerators_per_node=2", "communication.backend=torch", "hyperparameters.batch_size=4")
COMMAND = (sys.executable, "-m", "hpcai500.train")
LOOKED_AT = (
    "order, evidence, sessions, clock, times, environment, speed, rates, drawn, samples, model, company, replicas, "
    "losses, quality, predictions"
)


def findings(path: Path) -> list[str]:
    """`severity name: evidence` of all that is against a complete record; its notes must be there, too."""
    assert read_record(path).status == "done"
    found = evidence.findings(path)
    assert [one for one in found if one.name == "events"], found
    against = evidence.against(found)
    assert against or any(one.evidence.endswith(LOOKED_AT) for one in found)
    return [f"{one.severity} {one.name}: {one.evidence}" for one in against]


def wait_for(record: Path, key: str, count: int) -> None:
    """Wait until the record has `count` events named `key`."""
    log, needle = record / "events.jsonl", f'"key":"{key}"'.encode()
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_bytes().count(needle) < count:
        assert time.monotonic() < deadline, f"no {count} events {key} in 120 s"
        time.sleep(0.001)


def stopped(arguments: list[str], record: Path, key: str, number: signal.Signals) -> None:
    """Start a run and end it by a signal, at its third event of that name."""
    with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE) as process:
        wait_for(record, key, 3)
        process.send_signal(number)
        process.communicate()
    assert read_record(record).status != "done", "it had ended before the signal came"


def test_a_run_in_one_go(run: Run) -> None:
    code, record = run()
    assert code == 0
    assert findings(record) == []


def test_a_run_that_drops_the_last_batch(run: Run) -> None:
    code, record = run("workload.tail=drop", "hyperparameters.accumulation_steps=2")
    assert code == 0
    assert findings(record) == []


def test_a_run_of_the_detector(weather: Path, tmp_path: Path) -> None:
    assert train.main(weather_arguments(weather, tmp_path / "record")) == 0
    assert findings(tmp_path / "record") == []


@pytest.mark.parametrize("key", ["epoch_start", "eval_start"])
def test_a_run_that_a_signal_stopped_and_that_went_on(run: Run, images: Path, tmp_path: Path, key: str) -> None:
    record = tmp_path / "record"
    stopped(train_arguments(images, record, "problem.epochs=60"), record, key, signal.SIGTERM)
    assert run(resume=True)[0] == 0
    assert findings(record) == []


def test_a_run_that_was_killed_and_that_went_on(run: Run, images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    stopped(train_arguments(images, record, "problem.epochs=60"), record, "epoch_stop", signal.SIGKILL)
    assert run(resume=True)[0] == 0
    # Where it struck between an evaluation and its checkpoint, one epoch is lost.
    assert [one for one in findings(record) if not one.startswith("warning trained-again")] == []


def test_a_run_of_two_ranks_that_was_stopped_and_that_went_on(images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [*COMMAND, *train_arguments(images, record, *TWO, "problem.epochs=60")]
    with started(command, 2, "processes") as (processes, log):
        wait_for(record, "epoch_start", 3)
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in processes] == [1, 1], log.read_text()
    ended = start([*COMMAND, "--resume", "--out", str(record)], 2, "processes", timeout=120)
    assert ended.exit_codes == [0, 0], ended.output
    assert findings(record) == []
