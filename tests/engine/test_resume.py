"""Stopped, killed, resumed: the same weights as if nothing had happened, and a record that shows what did."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import same_weights, train_arguments

from hpcai500.errors import ExitCode
from hpcai500.record import iterate, read_record

Run = Callable[..., tuple[int, Path]]


def when_logged(record: Path, key: str, count: int, act: Callable[[], None]) -> threading.Thread:
    """Call `act` once the record has `count` events named `key`."""

    def watch() -> None:
        log = record / "events.jsonl"
        needle = f'"key":"{key}"'.encode()
        while not log.exists() or log.read_bytes().count(needle) < count:
            time.sleep(0.001)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_signal_stops_with_a_checkpoint_and_resuming_gives_the_same_weights(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    _, whole = run("problem.epochs=6", name="whole")
    watcher = when_logged(tmp_path / "stopped", "epoch_start", 2, lambda: os.kill(os.getpid(), number))
    code, stopped = run("problem.epochs=6", name="stopped")
    watcher.join()
    error = capsys.readouterr().err
    assert code == ExitCode.RUN_FAILED
    assert f"stopped by {number.name} at epoch" in error
    assert f"go on with `hpcai500 ic --resume --out {stopped}`" in error
    code, _ = run(name="stopped", resume=True)
    assert code == 0
    assert same_weights(whole, stopped)
    (resumed,) = iterate(read_record(stopped).events, "run_resume")
    assert resumed["value"]["after"] == number.name
    whole_result, result = (json.loads((path / "result.json").read_text()) for path in (whole, stopped))
    assert (result["images"], result["restarts"]) == (whole_result["images"], 1)
    assert result["quality"] == whole_result["quality"]


@pytest.fixture(scope="module")
def killed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a run that SIGKILL ended in its third epoch or later."""
    out = tmp_path_factory.mktemp("killed") / "record"
    command = [sys.executable, "-m", "hpcai500.train", *train_arguments(images, out, "problem.epochs=500")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    when_logged(out, "epoch_start", 3, process.kill).join()
    assert process.wait() == -signal.SIGKILL
    return out


def shortened(killed: Path, out: Path) -> Path:
    """A copy of the record, to resume."""
    shutil.copytree(killed, out)
    return out


def test_a_killed_run_goes_on_from_its_last_checkpoint_and_the_record_shows_it(killed: Path, tmp_path: Path) -> None:
    record = shortened(killed, tmp_path / "record")
    before = read_record(record)
    saved = [event["value"]["epoch"] for event in iterate(before.events, "checkpoint")][-1]
    assert before.status == "unfinished"
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcai500.train", "--resume", "--out", str(record)], stderr=subprocess.DEVNULL
    )
    when_logged(record, "epoch_stop", len(list(iterate(before.events, "epoch_stop"))) + 2, process.kill).join()
    process.wait()
    (resumed,) = iterate(read_record(record).events, "run_resume")
    assert (resumed["value"]["epoch"], resumed["value"]["after"]) == (saved, "a kill or a crash")


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(killed: Path, tmp_path: Path) -> None:
    from hpcai500.engine.checkpoints import CheckpointStore

    record = shortened(killed, tmp_path / "record")
    events = read_record(record).events
    newest, before = [event["value"] for event in iterate(events, "checkpoint")][:-3:-1]
    path = record / "checkpoints" / newest["file"]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = CheckpointStore(record, 0).load_latest(events)
    assert found is not None
    assert found[0].file == before["file"]


def test_other_data_is_refused_when_resuming(
    run: Run, images: Path, killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpcai500 import train

    other = tmp_path / "other"
    shutil.copytree(images, other)
    next((other / "train").glob("*/*.JPEG")).unlink()
    record = shortened(killed, tmp_path / "record")
    assert train.main(["--resume", "--out", str(record), "--data", str(other)]) == 64
    assert "not the data that this run was started on" in capsys.readouterr().err


def test_a_second_ctrl_c_stops_at_once() -> None:
    from hpcai500.engine.signals import StopRequest

    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back() -> None:
    from hpcai500.engine.signals import StopRequest

    before = signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
