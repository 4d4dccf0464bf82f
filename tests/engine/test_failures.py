"""A run that cannot go on says why, where and what to do; what it has done is kept."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hpcai500 import train
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
    from tiny_runs import train_arguments

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
    assert "or run on the CPU with --set accelerator.device=cpu" in capsys.readouterr().err
    assert read_record(path).status == "error"


def test_missing_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tiny_runs import train_arguments

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
        if calls > 3:  # ballast, epoch 1 reserved, epoch 1 saved
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fills_up)
    code, path = run()
    monkeypatch.undo()
    assert code == 1
    assert "free some space, then go on with --resume" in capsys.readouterr().err
    assert len(list((path / "checkpoints").glob("epoch-0002*.pt"))) == 1
    code, path = run(resume=True)
    assert code == 0
    assert [e["value"]["epoch"] for e in iterate(read_record(path).events, "run_resume")] == [2]
