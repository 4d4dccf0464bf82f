"""Goodput of real runs: each part is what was done to the run, and nothing is left over."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from builders import evidence
from builders.runs import train_arguments

from hpcai500 import train
from hpcai500.comm.liveness import Stops
from hpcai500.errors import ExitCode, WrongAnswerError
from hpcai500.record import Event, iterate, read_record
from hpcai500.results.score import score_record

COMMAND = (sys.executable, "-m", "hpcai500.train")
# Between two signs of life, and /proc's clock, which counts hundredths of a second.
PAUSE_SECONDS, TICK_SECONDS = 2.0, 0.03


def started(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "HPCAI500_JOB_TIMES"):
        environment.pop(name, None)
    return subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, env=environment)


def wait_for(record: Path, key: str, count: int, process: subprocess.Popen[bytes]) -> None:
    log, needle = record / "events.jsonl", f'"key":"{key}"'.encode()
    while not log.exists() or log.read_bytes().count(needle) < count:
        assert process.poll() is None, f"the job ended before {count} events {key}"
        time.sleep(0.005)


def killed(process: subprocess.Popen[bytes]) -> float:
    """Returns the moment after which it did nothing more (UNIX seconds)."""
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return time.time()


def finish(record: Path) -> None:
    """Resume to the end."""
    process = started("--resume", "--out", str(record))
    _, error = process.communicate()
    assert process.returncode in (ExitCode.PASS, ExitCode.WRONG_ANSWER), error.decode()


def process_started_s(init: Event) -> float:
    seconds: float = init["time_ms"] / 1000 - init["value"]["launch"]["process_seconds"]
    return seconds


def parts_of(record: Path) -> dict[str, Any]:
    """The parts of a finished run, which add up to the time from its first process to its last event of training."""
    events = read_record(record).events
    found = score_record(record).goodput
    assert found is not None
    parts: dict[str, Any] = found.seconds.model_dump()
    first, last = next(iterate(events, "init_start")), next(iterate(events, "run_stop"))
    assert sum(parts.values()) == pytest.approx(found.wall_seconds)
    assert found.wall_seconds == pytest.approx(last["time_ms"] / 1000 - process_started_s(first), abs=TICK_SECONDS)
    assert found.fraction == pytest.approx(parts["steps"] / found.wall_seconds)
    return parts


def test_a_run_in_one_go_has_no_part_that_is_lost_or_unknown(images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    process = started(*train_arguments(images, record))
    _, error = process.communicate()
    assert process.returncode == 0, error.decode()
    parts = parts_of(record)
    assert {name for name, seconds in parts.items() if seconds == 0} == {
        "communication", "lost", "downtime", "queue", "suspended", "unknown",
    }  # fmt: skip
    events = read_record(record).events
    epochs = [event["value"] for event in iterate(events, "epoch_stop")]
    assert parts["input"] == pytest.approx(sum(epoch["data_wait_seconds"] for epoch in epochs))
    compiled = next(iterate(events, "init_stop"))["value"]["seconds"]
    assert parts["startup"] > compiled
    assert parts["evaluation"] > sum(event["value"]["seconds"] for event in iterate(events, "eval_accuracy"))


def test_a_stop_of_the_process_is_in_its_record(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stops, "look", lambda stops: 33.0)
    record = tmp_path / "record"
    arguments = train_arguments(images, record, "problem.epochs=1", "hyperparameters.warmup_epochs=0")
    train.main([*arguments, "--power", "none"])
    stops = list(iterate(read_record(record).events, "suspended"))
    assert [event["value"] for event in stops] == [{"seconds": 33.0}]


def test_after_a_kill_steps_are_lost_and_a_sleep_is_downtime(images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    process = started(*train_arguments(images, record, "problem.epochs=40"))
    wait_for(record, "epoch_start", 2, process)
    time.sleep(0.3)
    dead = killed(process)
    time.sleep(3.5)
    before = time.time()
    finish(record)
    events = read_record(record).events
    parts, found = parts_of(record), score_record(record).goodput
    assert found is not None
    first, second = iterate(events, "init_start")
    last_words = max(one["time_ms"] for one in events if one["seq"] < second["seq"]) / 1000
    process_s = process_started_s(second)
    assert process_s >= before - TICK_SECONDS
    # Without a last word, two seconds cannot be told; a sign of life that came late makes the downtime longer.
    assert parts["unknown"] <= PAUSE_SECONDS + TICK_SECONDS
    assert parts["downtime"] >= before - dead - PAUSE_SECONDS - TICK_SECONDS
    assert parts["downtime"] <= process_s - last_words + TICK_SECONDS
    saved = [event for event in iterate(events, "checkpoint") if event["seq"] < second["seq"]][-1]
    gone = parts["lost"] + parts["unknown"] + parts["downtime"]
    # All that was not saved is one of the three, but for the time after the checkpoint in which old ones are removed.
    assert gone == pytest.approx(process_s - saved["time_ms"] / 1000, abs=0.5)
    assert parts["lost"] <= dead - saved["time_ms"] / 1000 + TICK_SECONDS
    trained = next(iterate(events, "first_step"))
    assert found.interruptions == 1
    assert found.recovery_seconds == pytest.approx(
        trained["time_ms"] / 1000 - max(second["value"]["launch"]["alive_ms"] / 1000, last_words), abs=TICK_SECONDS
    )
    assert first["value"]["launch"]["alive_ms"] is None


def test_a_run_that_was_stopped_by_a_signal_loses_nothing(images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    process = started(*train_arguments(images, record, "problem.epochs=40"))
    wait_for(record, "epoch_start", 2, process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == ExitCode.RUN_FAILED
    ended, before = time.time(), time.time()
    finish(record)
    parts = parts_of(record)
    assert (parts["lost"], parts["unknown"]) == (0, 0)
    assert parts["downtime"] >= before - ended - TICK_SECONDS
    (stopped,) = iterate(read_record(record).events, "interrupted")
    assert stopped["value"]["seconds"] >= stopped["value"]["data_wait_seconds"] >= 0
    assert evidence.against(evidence.findings(record)) == []


def test_a_run_that_was_killed_three_times_at_random_still_adds_up(images: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    process = started(*train_arguments(images, record, "problem.epochs=40"))
    chance = random.Random(7)
    for began in range(1, 4):
        wait_for(record, "init_start", began, process)
        time.sleep(chance.uniform(0, 1.5))
        killed(process)
        # It may have been killed before it found its data.
        process = started("--resume", "--out", str(record), "--data", str(images))
    process.communicate()
    assert process.returncode == 0
    assert parts_of(record)["unknown"] <= 3 * (PAUSE_SECONDS + TICK_SECONDS)
    assert score_record(record).goodput.interruptions == 3  # type: ignore[union-attr]
    problems = [one for one in evidence.against(evidence.findings(record)) if one.name == "goodput"]
    assert problems == []


def test_an_edited_goodput_is_refused(finished: Path, tmp_path: Path) -> None:
    record = Path(shutil.copytree(finished, tmp_path / "record"))
    path = record / "result.json"
    result = json.loads(path.read_text())
    assert result["goodput"]["seconds"]["startup"] > 0
    result["goodput"]["fraction"] = 0.99
    path.write_text(json.dumps(result))
    with pytest.raises(WrongAnswerError, match="goodput is"):
        score_record(record)
