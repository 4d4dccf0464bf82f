"""A run that cannot go on says why, where and what to do; what it has done is kept."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders.ranks import start
from builders.runs import train_arguments

from hpcai500 import train
from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.engine import checkpoints, evidence, job
from hpcai500.engine.measurement import report_end
from hpcai500.engine.trainer import Trainer
from hpcai500.errors import ExitCode, RunError
from hpcai500.measure.preflight import Product
from hpcai500.record import iterate, read_record

Run = Callable[..., tuple[int, Path]]


def test_a_loss_that_is_no_number_ends_the_run_with_epoch_step_and_rank(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, path = run("hyperparameters.base_learning_rate=1e30", "hyperparameters.warmup_epochs=0")
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 1
    assert "the loss is nan at epoch 1, step " in error or "the loss is inf at epoch 1, step " in error
    assert "on rank 0" in error
    assert "lower hyperparameters.base_learning_rate" in error
    (diverged,) = iterate(read_record(path).events, "diverged")
    assert diverged["value"]["step"] < 5
    assert (path / "ERROR").exists()
    assert not (path / "result.json").exists()


def test_a_file_that_cannot_be_decoded_ends_the_run_with_its_path(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(images, damaged)
    victim = sorted((damaged / "train").glob("*/*.JPEG"))[5]
    victim.write_bytes(victim.read_bytes()[:400])
    code = train.main(train_arguments(damaged, tmp_path / "record"))
    assert code == 64
    assert victim.name in capsys.readouterr().err
    assert read_record(tmp_path / "record").status == "error"


def test_cuda_without_a_device_is_an_error_and_never_a_silent_cpu_run(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    code, path = run("accelerator.device=cuda")
    assert code == 69
    assert "or run on the CPU: --set accelerator.device=cpu" in capsys.readouterr().err
    assert read_record(path).status == "error"


def test_a_model_that_the_host_cannot_hold_is_refused_before_it_is_made(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "host_memory_bytes", lambda: 10**6)  # a host with so little memory cannot exist here
    code, path = run()
    assert code == 69
    error = capsys.readouterr().err
    assert "on a host with 1 rank, which has 1 MB: 12 bytes for each of " in error
    assert error.endswith("million weights; use a host with more memory, or a smaller model\n")
    assert error.split("error: ")[1].strip() in (path / "ERROR").read_text()
    assert not list(iterate(read_record(path).events, "model"))


@pytest.mark.parametrize(
    ("setting", "said", "begins"),
    [
        ("communication.algorithm=ring", "communication.algorithm: `ring` is not available", False),
        ("problem.metric=map50", "problem.metric: ic measures top1, got map50", True),
    ],
)
def test_what_one_process_or_its_workload_cannot_have_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], setting: str, said: str, begins: bool
) -> None:
    code, path = run(setting)
    assert code == 64
    assert said in capsys.readouterr().err
    assert path.exists() == begins


def test_missing_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(train_arguments(tmp_path / "nowhere", tmp_path / "record")) == 64
    error = capsys.readouterr().err
    assert "nowhere" in error
    assert error.count("\n") == 1


def test_a_disk_that_fills_up_costs_the_run_and_no_finished_epoch(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = 0
    real = os.posix_fallocate

    def fills_up(descriptor: int, offset: int, size: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:  # ballast; reserved before the clock, before epoch 1, and to save epoch 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fills_up)
    code, path = run()
    monkeypatch.undo()
    assert code == 1
    assert "free some space, then continue with --resume" in capsys.readouterr().err
    assert len(list((path / "checkpoints").glob("epoch-0002*.pt"))) == 1
    code, path = run(resume=True)
    assert code == 0
    assert [e["value"]["epoch"] for e in iterate(read_record(path).events, "run_resume")] == [2]


def test_weights_that_are_no_numbers_are_never_saved_as_a_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Trainer._train_epoch

    def overflow_in_the_last_update(trainer: Trainer, epoch: int) -> None:
        real(trainer, epoch)
        if epoch == 2:
            with torch.no_grad():
                next(trainer._bare.parameters()).fill_(float("nan"))

    monkeypatch.setattr(Trainer, "_train_epoch", overflow_in_the_last_update)
    code, path = run()
    assert code == 1
    assert "weights are not finite at epoch 2" in capsys.readouterr().err
    assert [p.name[:10] for p in (path / "checkpoints").glob("*.pt")] == ["epoch-0002"]


def test_space_that_a_quota_takes_while_torch_writes_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = checkpoints._HashingWriter.write

    def quota(writer: checkpoints._HashingWriter, content: bytes) -> int:
        if writer.written_bytes > 1000:
            writer.error = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            raise writer.error
        return real(writer, content)

    monkeypatch.setattr(checkpoints._HashingWriter, "write", quota)
    code, path = run()
    assert code == 1
    assert "Disk quota exceeded" in capsys.readouterr().err
    assert not list((path / "checkpoints").iterdir())


def test_an_unexpected_error_is_one_line_and_in_the_record(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(trainer: Trainer, epoch: int) -> None:
        raise KeyError("something of ours")

    monkeypatch.setattr(Trainer, "_train_epoch", broken)
    code, path = run()
    assert code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("hpcai500: error: unexpected KeyError: 'something of ours'")
    assert "KeyError" in (path / "ERROR").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--out x", ""),
        ("--recipe ic/smoke --out x", ""),
        ("--resume --out x --set a.b=1", ""),
        ("--outt x", ""),
        ("--recipe ic/smoke --data x --out x --campaign mine", "expected ID:TRIAL:ATTEMPT:HEAD, got 'mine'"),
    ],
)
def test_a_job_without_what_it_needs_is_one_line_and_exit_code_64(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(arguments.split()) == 64
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


HANGS = """
import sys, time
from hpcai500 import train
from hpcai500.engine.updates import Updater

gradients = Updater.gradients

def hanging(self, number, batches, tally=None):
    if number == 3:
        next(batches)
        while True:
            time.sleep(0.1)
    if number:
        time.sleep(0.2)
    return gradients(self, number, batches, tally)

Updater.gradients = hanging
sys.exit(train.main(sys.argv[1:]))
"""


def test_a_run_of_one_process_that_hangs_says_where_and_ends(images: Path, tmp_path: Path) -> None:
    """Nobody waits for it, so nobody else would find it."""
    record = tmp_path / "record"
    arguments = train_arguments(images, record, "communication.timeout_seconds=1")
    ended = start([sys.executable, "-c", HANGS, *arguments], 1, "processes", timeout=300)
    assert ended.exit_codes == [1], ended.output
    reason = (record / "ERROR").read_text()
    assert re.search(r"no progress for \d+ s in its phase `\w+`: a library, a driver or a read hangs", reason)
    assert "hpcai500:   trainer.py:" in ended.output
    assert ended.output.splitlines()[-1] == f"hpcai500: error: {reason.strip()}"
    assert read_record(record).status == "error"


def test_a_device_that_computes_wrongly_ends_the_run_by_the_name_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "measure_product", lambda *_, **__: Product(1024, 1e9, 0.0, 3, 1e9))
    world = LocalCommunicator()
    with pytest.raises(RunError, match=f"rank 0 on {world.hosts[0]} computes wrong results: 3 of 1024 rows"):
        evidence.measure_ceilings(world, torch.device("cpu"), "fp32")


def test_whoever_measures_is_not_told_to_resume_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_end("rank 1 is gone; go on with --resume", ExitCode.RUN_FAILED) == ExitCode.RUN_FAILED
    assert capsys.readouterr().err == "hpcai500: error: rank 1 is gone\n"
