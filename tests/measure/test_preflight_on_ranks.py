"""The measurements of doctor on real ranks of this host; a wrong multiply, a silent and a dead rank are provoked."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.ranks import run_ranks, started
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.job_options import PreflightOptions, as_argument
from hpcai500.measure.preflight import (
    ask_device,
    ask_everyone,
    ask_hosts,
    count_wrong_rows,
    judge_clocks,
    judge_devices,
    judge_exchange,
    measure_clocks,
    measure_exchange,
    measure_product,
)
from hpcai500.measure.timing import Effort
from hpcai500.system.checks import read_log

CPU = torch.device("cpu")
BRIEF = Effort(width=1.0, least=1, seconds=0.0, warm_up=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_product_has_no_wrong_row_in_any_precision(dtype: torch.dtype) -> None:
    assert count_wrong_rows(CPU, dtype, 192, torch.matmul) == 0


def wrong_in_one_element(left: Tensor, right: Tensor) -> Tensor:
    product = torch.matmul(left, right)
    product[17, 5] += 1
    return product


def lacks_a_term(left: Tensor, right: Tensor) -> Tensor:
    return torch.matmul(left[:, 1:], right[1:])


def not_a_number(left: Tensor, right: Tensor) -> Tensor:
    return torch.full_like(left, torch.nan)


def test_one_wrong_element_is_one_wrong_row() -> None:
    assert count_wrong_rows(CPU, torch.float32, 192, wrong_in_one_element) == 1


def test_a_wrong_product_is_seen_whatever_is_wrong_with_it() -> None:
    assert count_wrong_rows(CPU, torch.float32, 192, lacks_a_term) > 20
    assert count_wrong_rows(CPU, torch.float32, 192, not_a_number) == 192
    assert measure_product(CPU, "fp32", 64, wrong_in_one_element, BRIEF).wrong_rows == 1


def test_a_product_tells_its_speed() -> None:
    product = measure_product(CPU, "fp32", 128, effort=BRIEF)
    assert (product.side, product.wrong_rows) == (128, 0)
    assert 1e6 < product.flops < 1e15


class Wrong:
    """A library that adds wrong on one rank, around one that does not."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def all_reduce(self, tensor: Tensor) -> None:
        self._communicator.all_reduce(tensor)
        if self._communicator.rank == 1 and tensor.numel() > 1:
            tensor[3] += 1


def measured(communicator: Communicator) -> tuple[Any, ...]:
    """Every measurement that takes two ranks, in one job: to start ranks is what takes time."""

    def first_cannot() -> int:
        if communicator.rank == 0:
            raise RuntimeError("no\nmemory")
        return communicator.rank

    asked = ask_everyone(communicator, first_cannot)
    hosts = ask_hosts(communicator, lambda: communicator.rank)
    right = measure_exchange(communicator, CPU)
    wrong = measure_exchange(Wrong(communicator), CPU)
    devices = ask_everyone(communicator, lambda: ask_device(CPU))
    walls, alignment = measure_clocks(communicator)
    return asked, hosts, right, wrong, devices, walls, alignment


def test_two_ranks_measure_and_know_the_same() -> None:
    first, second = run_ranks(measured, 2)
    asked, hosts, right, wrong, devices, walls, alignment = first
    assert [(it.value, it.error) for it in asked] == [(None, "RuntimeError: no memory"), (1, None)]
    assert [it.value for it in hosts] == [0]
    assert (right, wrong) == second[2:4]
    check = judge_exchange(right, (asked[0].host,) * 2, None)
    assert check.status == "pass", check
    assert right.bus_bytes_per_second > 1e6
    assert wrong.wrong == (0, 1)
    assert judge_devices(devices).status == "pass"
    # One clock, read one after the other.
    assert max(map(abs, walls)) < 0.5
    assert judge_clocks(walls, alignment.errors_seconds, ("n1", "n2")).status in ("pass", "warn")


OF_TWO = ("hardware.accelerators_per_node=2", "communication.backend=torch", "communication.timeout_seconds=8")


def preflight(
    log: Path, checks: Sequence[str], *overrides: str, data: Path | None = None, limit: float = 60
) -> list[str]:
    """The command of a rank of doctor's."""
    options = PreflightOptions("ic/smoke", overrides, log, tuple(checks), data, Path("runs"), None, limit)
    return [sys.executable, "-m", "hpcai500.measure.preflight_command", as_argument(options)]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "its process ended without a word"),
        (signal.SIGSTOP, "rank 1 on host"),
    ],
)
def test_a_rank_that_dies_or_hangs_is_named(tmp_path: Path, number: signal.Signals, reason: str) -> None:
    log = tmp_path / "log"
    # As many products as fill the time until the signal comes.
    command = preflight(log, ["ranks", "devices", *["GEMM"] * 20], *OF_TWO)
    with started(command, 2, "processes") as (processes, output):
        limit = time.monotonic() + 120
        while read_log(log).running != "GEMM":
            assert time.monotonic() < limit, output.read_text()
            assert processes[0].poll() is None, output.read_text()
            time.sleep(0.05)
        os.kill(processes[1].pid, number)
        assert processes[0].wait(120) == 1, output.read_text()
        said = output.read_text()
    told = read_log(log)
    assert told.running == "GEMM"
    assert told.reason is not None
    assert told.reason.startswith("rank 1 on host ")
    assert reason in told.reason
    assert "Traceback" not in said
    assert [check.name for check in told.checks[:2]] == ["ranks", "devices"]


def test_a_check_that_hangs_on_one_rank_is_ended_by_its_limit(tmp_path: Path) -> None:
    """A pipe that nobody writes to hangs whoever opens it, as a file on a dead server does."""
    (tmp_path / "set" / "train" / "a").mkdir(parents=True)
    os.mkfifo(tmp_path / "set" / "train" / "a" / "1.JPEG")
    log = tmp_path / "log"
    command = preflight(log, ["ranks", "reading", "disk"], data=tmp_path / "set", limit=2)
    with started(command, 1, "processes") as (processes, output):
        limit = time.monotonic() + 100
        while read_log(log).running != "reading":
            assert time.monotonic() < limit, output.read_text()
            time.sleep(0.05)
        assert processes[0].wait(100) == 1, output.read_text()
    told = read_log(log)
    assert (told.running, told.reason) == ("reading", "no end within 2 s")
    assert [json.loads(line) for line in log.read_text().splitlines()][-1] == {"broken": "no end within 2 s"}
