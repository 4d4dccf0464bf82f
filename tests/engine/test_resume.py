"""Stopped, killed, resumed: the same weights as if nothing had happened, and a record that shows what did.

Verification, and the rules that are checked by events, find nothing against such records.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import evidence
from builders.ranks import start
from builders.runs import same_weights, train_arguments, weather_arguments

from hpcai500 import train
from hpcai500.engine import job, signals
from hpcai500.engine.checkpoints import CheckpointStore
from hpcai500.engine.signals import StopRequest
from hpcai500.errors import ExitCode
from hpcai500.hosts import Placement
from hpcai500.methodology.conduct import conduct
from hpcai500.methodology.passes import target_checkpoint
from hpcai500.recipe import rulebook
from hpcai500.record import Event, RecordWriter, is_being_written, iterate, read_record

Run = Callable[..., tuple[int, Path]]
COMMAND = (sys.executable, "-m", "hpcai500.train")
EPOCHS = "problem.epochs=60"
HALF, NEVER = {"target_quality": 0.5}, {"target_quality": 2.0}
LOOKED_AT = (
    "order, evidence, sessions, clock, times, goodput, environment, speed, rates, draws, samples, model, ranks, "
    "replicas, losses, quality, predictions"
)


def wait_for(record: Path, key: str, count: int, *processes: subprocess.Popen[bytes]) -> None:
    """Wait until the record has `count` events named `key`; fails when the job ends before, or takes for ever."""
    log, needle = record / "events.jsonl", f'"key":"{key}"'.encode()
    deadline = time.monotonic() + 300
    while not log.exists() or log.read_bytes().count(needle) < count:
        assert all(process.poll() is None for process in processes), f"the job ended before {count} events {key}"
        assert time.monotonic() < deadline, f"no {count} events {key} in 300 s"
        time.sleep(0.001)


def train_in_process(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, env=environment)


def findings(path: Path) -> list[str]:
    """`severity name: evidence` of all that is against a complete record; its notes must be there, too."""
    record = read_record(path)
    assert record.status == "done"
    found = evidence.findings(path)
    assert [one for one in found if one.name == "events"], found
    against = evidence.against(found)
    assert against or any(one.evidence.endswith(LOOKED_AT) for one in found)
    problems = [it for rule in conduct(record.tables, rulebook("v2.0", "ic"), record.events) for it in rule.problems]
    return [*problems, *(f"{one.severity} {one.name}: {one.evidence}" for one in against)]


def test_nothing_is_found_against_a_run_in_one_go(finished: Path) -> None:
    assert findings(finished) == []


def test_nothing_is_found_against_a_run_of_the_detector(weather: Path, tmp_path: Path) -> None:
    assert train.main(weather_arguments(weather, tmp_path / "record")) == 0
    found = evidence.findings(tmp_path / "record")
    assert evidence.against(found) == []
    assert any(one.evidence.endswith(LOOKED_AT) for one in found)


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the runs that are stopped would have been."""
    out = tmp_path_factory.mktemp("whole") / "record"
    assert train.main(train_arguments(images, out, EPOCHS)) == 0
    return out


@pytest.mark.parametrize(
    ("number", "key"),
    [(signal.SIGINT, "epoch_start"), (signal.SIGTERM, "eval_start"), (signal.SIGUSR1, "epoch_start")],
    ids=["SIGINT in training", "SIGTERM in evaluation", "SIGUSR1 in training"],
)
def test_a_signal_stops_with_a_checkpoint_and_resuming_gives_the_same_weights(
    run: Run, whole: Path, images: Path, tmp_path: Path, number: signal.Signals, key: str
) -> None:
    stopped = tmp_path / "stopped"
    process = train_in_process(*train_arguments(images, stopped, EPOCHS))
    wait_for(stopped, key, 2, process)
    process.send_signal(number)
    _, error = process.communicate()
    assert process.returncode == ExitCode.RUN_FAILED
    assert f"stopped by {number.name} at epoch" in error.decode()
    assert f"go on with `hpcai500 ic --resume --out {stopped}`" in error.decode()
    code, _ = run(name="stopped", resume=True)
    assert code == 0
    assert same_weights(whole, stopped)
    (resumed,) = iterate(read_record(stopped).events, "run_resume")
    assert resumed["value"]["after"] == number.name
    whole_result, result = (json.loads((path / "result.json").read_text()) for path in (whole, stopped))
    assert (result["images"], result["restarts"]) == (whole_result["images"], 1)
    assert result["quality"] == whole_result["quality"]
    assert findings(stopped) == []


def test_a_stopped_run_of_a_campaign_names_the_command_that_resumes_the_campaign(images: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "campaign" / "trial-01"
    place = f"{'a' * 64}:1:1:{'b' * 64}"
    process = train_in_process(*train_arguments(images, stopped, EPOCHS), "--campaign", place)
    wait_for(stopped, "epoch_start", 2, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == ExitCode.RUN_FAILED
    assert f"nothing is lost: go on with `hpcai500 campaign run {stopped.parent}`" in error.decode()


# A job whose second rank is stopped in the middle of the second epoch.
STOPPED = """
import os, signal, sys
from hpcai500 import train
from hpcai500.engine.trainer import Trainer

real = Trainer._update

def update(self, epoch, batches):
    if (os.environ["RANK"], epoch, self._step) == ("1", 2, 2):
        os.kill(os.getpid(), signal.SIGTERM)
    real(self, epoch, batches)

Trainer._update = update
sys.exit(train.main(sys.argv[1:]))
"""


def test_two_ranks_that_were_stopped_and_went_on_kept_every_rule_and_every_bit(images: Path, tmp_path: Path) -> None:
    """Also of the running statistics of batch norm, which differ between ranks within an epoch."""
    whole, out = tmp_path / "whole", tmp_path / "record"
    ranks = ("hardware.accelerators_per_node=2", "communication.backend=torch", "communication.timeout_seconds=20")
    settings = ("hyperparameters.batch_size=2", "hyperparameters.accumulation_steps=2", "problem.epochs=2")
    commands = {
        "whole": [*COMMAND, *train_arguments(images, whole, *ranks, *settings)],
        "stopped": [sys.executable, "-c", STOPPED, *train_arguments(images, out, *ranks, *settings)],
        "resumed": [*COMMAND, "--resume", "--out", str(out)],
    }
    ended = {name: start(command, 2, "processes", timeout=300) for name, command in commands.items()}
    codes = {name: one.exit_codes for name, one in ended.items()}
    assert codes == {"whole": [0, 0], "stopped": [1, 1], "resumed": [0, 0]}, ended
    (resumed,) = iterate(read_record(out).events, "run_resume")
    assert (resumed["value"]["epoch"], resumed["value"]["step"]) == (2, 3)
    assert findings(out) == []
    assert same_weights(out, whole)


def test_the_word_of_a_job_to_all_its_processes_is_a_warning(images: Path, tmp_path: Path) -> None:
    process = train_in_process(*train_arguments(images, tmp_path / "record", "problem.epochs=500"))
    wait_for(tmp_path / "record", "epoch_start", 2, process)
    for _ in range(3):
        process.send_signal(signal.SIGURG)
    _, error = process.communicate()
    assert process.returncode == ExitCode.RUN_FAILED
    assert "stopped by SIGUSR1 at epoch" in error.decode()


@pytest.fixture(scope="module")
def killed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a run that SIGKILL ended in its third epoch or later."""
    out = tmp_path_factory.mktemp("killed") / "record"
    process = train_in_process(*train_arguments(images, out, "problem.epochs=500"))
    wait_for(out, "epoch_start", 3, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return out


@pytest.fixture
def record(killed: Path, tmp_path: Path) -> Path:
    """A copy of that record, to resume."""
    return Path(shutil.copytree(killed, tmp_path / "record"))


def test_a_killed_run_goes_on_from_its_last_checkpoint_and_the_record_shows_it(record: Path) -> None:
    before = read_record(record)
    saved = [event["value"]["epoch"] for event in iterate(before.events, "checkpoint")][-1]
    assert before.status == "unfinished"
    process = train_in_process("--resume", "--out", str(record))
    wait_for(record, "epoch_stop", len(list(iterate(before.events, "epoch_stop"))) + 2, process)
    process.kill()
    process.communicate()
    (resumed,) = iterate(read_record(record).events, "run_resume")
    assert (resumed["value"]["epoch"], resumed["value"]["after"]) == (saved, "a kill or a crash")


def test_a_run_that_was_killed_and_went_on_to_its_end_is_no_suspect(run: Run, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "record"
    process = train_in_process(*train_arguments(images, out, EPOCHS))
    wait_for(out, "epoch_stop", 3, process)
    process.kill()
    process.communicate()
    assert run(resume=True)[0] == 0
    # Where it struck between an evaluation and its checkpoint, one epoch is lost.
    assert [one for one in findings(out) if not one.startswith("warning trained-again")] == []


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(record: Path) -> None:
    events = read_record(record).events
    newest, before = [event["value"] for event in iterate(events, "checkpoint")][:-3:-1]
    path = record / "checkpoints" / newest["file"]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = CheckpointStore(record, 0).load_latest(events, NEVER)
    assert found is not None
    assert found[0].file == before["file"]


def test_other_data_is_refused_when_resuming(
    record: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(images, other)
    next((other / "train").glob("*/*.JPEG")).unlink()
    assert train.main(["--resume", "--out", str(record), "--data", str(other)]) == 64
    assert "not the data that this run was started on" in capsys.readouterr().err


def test_a_second_ctrl_c_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "TOGETHER_SECONDS", -1.0)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_ctrl_c_that_comes_from_terminal_and_command_at_once_counts_once(capfd: pytest.CaptureFixture[str]) -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is signal.SIGINT
    assert capfd.readouterr().err.count("SIGINT: stopping with a checkpoint (Ctrl-C again: at once)") == 1


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def not_concluded(finished: Path, tmp_path: Path) -> Path:
    path = Path(shutil.copytree(finished, tmp_path / "record"))
    (path / "DONE").unlink()
    return path


def test_a_record_that_is_being_written_is_left_alone(not_concluded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = not_concluded
    with RecordWriter.reopen(read_record(path)):
        assert is_being_written(path)
        assert train.main(["--resume", "--out", str(path)]) == ExitCode.USAGE
    assert "another process is writing this record" in capsys.readouterr().err
    assert not is_being_written(path)


def test_a_run_that_only_lacks_its_result_is_concluded_and_not_trained_again(not_concluded: Path, run: Run) -> None:
    before, events = (not_concluded / "result.json").read_text(), (not_concluded / "events.jsonl").read_bytes()
    (not_concluded / "result.json").unlink()
    code, _ = run(resume=True)
    assert code == 0
    assert json.loads((not_concluded / "result.json").read_text()) == json.loads(before)
    assert (not_concluded / "events.jsonl").read_bytes() == events


def test_all_ranks_go_by_the_events_that_rank_0_has_read(not_concluded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over NFS, rank 1 does not see yet that training has ended: it must not train while rank 0 concludes."""
    of_rank_0, log = read_record(not_concluded), not_concluded / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[: len(lines) // 2]))
    (not_concluded / "result.json").unlink()
    world = SimpleNamespace(size=1, broadcast_object=lambda thing: of_rank_0 if thing is None else thing)
    ranks = SimpleNamespace(leads=False, world=world, on_lost=lambda *_, **__: None, reading=lambda *_: nullcontext())
    monkeypatch.setattr(job, "joined", lambda *_: nullcontext(ranks))
    monkeypatch.setattr(job, "reporting_errors", lambda _: nullcontext())
    monkeypatch.setattr(job, "_run", lambda *_: pytest.fail("rank 1 trains"))
    job.resume(not_concluded, None, StopRequest(), Placement(1, 2, 1, 2, "srun", "n1:1", None))


def test_a_run_that_was_killed_before_its_first_event_may_be_started_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "record" / "checkpoints").mkdir(parents=True)
    (tmp_path / "record" / "events.jsonl").touch()
    code, _ = run("problem.epochs=1")
    assert code == 0


def test_only_checkpoints_that_can_be_gone_on_from_are_kept(record: Path) -> None:
    for path in (record / "checkpoints").glob("epoch-*.pt"):
        path.write_bytes(b"damaged")
    store = CheckpointStore(record, 0)
    assert store.load_latest(read_record(record).events, NEVER) is None
    saved = store.save({"weights": torch.zeros(3)}, 2, 0)
    store.prune()
    assert [path.name for path in (record / "checkpoints").glob("epoch-*.pt")] == [saved.file]


class _Saved:
    """Checkpoints of a run whose epochs end with these qualities, with the events that tell of them."""

    def __init__(self, record: Path) -> None:
        (record / "checkpoints").mkdir(parents=True)
        self.folder, self.store = record / "checkpoints", CheckpointStore(record, 0)
        self.events: list[Event] = []

    def train(self, epoch: int, quality: float) -> None:
        self._tell("eval_accuracy", {"epoch": epoch, "value": quality})
        state = {"weights": torch.full((3,), quality + len(self.events))}
        self._tell("checkpoint", asdict(self.store.save(state, epoch + 1, 0, at_target=quality >= 0.5)))
        self.store.prune()

    def go_on(self) -> int:
        """In a new process; returns the epoch that it goes on with."""
        self.store = CheckpointStore(self.folder.parent, 0)
        loaded = self.store.load_latest(self.events, HALF)
        assert loaded
        self._tell("run_resume", {"epoch": loaded[0].epoch})
        return loaded[0].epoch

    def kept(self) -> list[int]:
        return sorted(int(path.name[6:10]) for path in self.folder.glob("epoch-*.pt"))

    def damage(self, epoch: int) -> None:
        (self.folder / f"epoch-{epoch:04d}-step-0000000.pt").write_bytes(b"damaged")

    def _tell(self, key: str, value: dict[str, Any]) -> None:
        self.events.append({"seq": len(self.events), "key": key, "value": value})


def test_the_checkpoint_at_the_target_is_kept_after_a_restart(tmp_path: Path) -> None:
    saved = _Saved(tmp_path)
    for epoch, quality in enumerate((0.2, 0.6, 0.4, 0.7), 1):
        saved.train(epoch, quality)
    assert saved.kept() == [3, 4, 5]
    assert saved.go_on() == 5
    for epoch in (5, 6, 7):
        saved.train(epoch, 0.8)
    assert saved.kept() == [3, 7, 8]


def test_a_target_that_a_restart_goes_back_over_is_reached_anew(tmp_path: Path) -> None:
    saved = _Saved(tmp_path)
    saved.train(1, 0.2)
    saved.train(2, 0.6)
    saved.damage(3)
    assert saved.go_on() == 2
    for epoch, quality in enumerate((0.4, 0.5, 0.6, 0.7, 0.8), 2):
        saved.train(epoch, quality)
    assert saved.kept() == [4, 6, 7]
    at_target = target_checkpoint(saved.events, HALF)
    assert at_target is not None
    assert at_target["epoch"] == 4
