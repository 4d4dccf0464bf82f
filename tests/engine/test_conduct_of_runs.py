"""Honest runs of real ranks keep every rule that is checked by events, also where they were stopped and went on."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from many_ranks import start, started
from tiny_runs import train_arguments

from hpcai500.methodology.conduct import conduct
from hpcai500.recipe import rulebook
from hpcai500.record import Record, read_record

TWO = ("hardware.accelerators_per_node=2", "communication.backend=torch", "communication.timeout_seconds=20")
MODULE = [sys.executable, "-m", "hpcai500.train"]


def problems(record: Record) -> list[str]:
    rules = rulebook("v2.0", "ic")
    return [problem for rule in conduct(record.tables, rules, record.events) for problem in rule.problems]


def test_two_ranks_that_were_stopped_and_went_on_kept_every_rule(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    settings = ("hyperparameters.batch_size=2", "hyperparameters.accumulation_steps=2", "problem.epochs=20")
    with started([*MODULE, *train_arguments(images, out, *TWO, *settings)], 2, "processes") as (processes, log):
        limit = time.monotonic() + 60
        while not (out / "events.jsonl").exists() or b'"key":"replicas"' not in (out / "events.jsonl").read_bytes():
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in processes] == [1, 1], log.read_text()
    ended = start([*MODULE, "--resume", "--out", str(out)], 2, "processes", timeout=240)
    assert ended.exit_codes == [0, 0], ended.output
    record = read_record(out)
    assert [event["key"] for event in record.events].count("run_resume") == 1
    assert problems(record) == []


def test_one_process_kept_every_rule_with_a_tail_that_is_dropped(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    ended = start([*MODULE, *train_arguments(images, out, "workload.tail=drop", "problem.epochs=1")], 1, "processes")
    assert ended.exit_codes == [0], ended.output
    record = read_record(out)
    assert problems(record) == []
