"""What doctor measures: how numbers are judged, and what real ranks of this host answer."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from builders.ranks import run_ranks, started
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.timeline import ClockAlignment
from hpcai500.job_options import PreflightOptions, as_argument
from hpcai500.machine import Level, Link, Machine
from hpcai500.measure.preflight import (
    Answer,
    Device,
    Exchange,
    Product,
    Sources,
    Traffic,
    ask_device,
    ask_everyone,
    ask_hosts,
    check_clocks,
    check_devices,
    check_exchange,
    check_nodes,
    check_products,
    check_sources,
    check_versions,
    count_wrong_rows,
    expected_flops,
    expected_link,
    measure_clocks,
    measure_exchange,
    measure_product,
    wall_offsets,
)
from hpcai500.measure.read_speed import Need, Reading, check_reading
from hpcai500.measure.timing import Effort
from hpcai500.methodology.nodes import NodeDifference, Variant
from hpcai500.system.checks import Check, read_log

# --- Numbers that become checks.


Value = TypeVar("Value")
HOSTS = ("n1", "n1", "n2", "n2")


def answers(found: Sequence[Value | None], hosts: Sequence[str] = HOSTS) -> list[Answer[Value]]:
    """One of each rank; None is one that could not answer."""
    error = "CUDA error: unspecified launch failure"
    return [Answer(rank, hosts[rank], value, None if value is not None else error) for rank, value in enumerate(found)]


def products(*shares: float | None) -> list[Answer[Product]]:
    """Of ranks that reach these shares of 100 GFLOPS."""
    return answers([None if share is None else Product(1024, share * 1e11, 0.01, 0, share * 1e11) for share in shares])


# GEMM


REACHED = "what the machine reaches (100 GFLOPS)"


@pytest.mark.parametrize(
    ("shares", "expected_flops", "status", "detail"),
    [
        ((1.0, 0.95, 1.02, 1.0), None, "pass", "100 GFLOPS a rank in fp32, the slowest at 95% of the median"),
        ((1.0, 1.0, 1.0, 0.6), None, "warn", "100 GFLOPS a rank in fp32, but rank 3 on host n2 at 60% of the median"),
        # However slow beside others, a rank alone does not fail.
        ((1.0, 1.0, 1.0, 0.4), None, "warn", "100 GFLOPS a rank in fp32, but rank 3 on host n2 at 40% of the median"),
        ((0.001,), None, "pass", "0.1 GFLOPS a rank in fp32 (to compare it, give --machine or start more ranks)"),
        ((0.95,), 1e11, "pass", f"95 GFLOPS a rank in fp32, the slowest at 95% of {REACHED}"),
        ((0.8,), 1e11, "warn", f"80 GFLOPS a rank in fp32, but rank 0 on host n1 at 80% of {REACHED}"),
        ((0.4,), 1e11, "fail", f"40 GFLOPS a rank in fp32, but rank 0 on host n1 at 40% of {REACHED}"),
        # All slow alike: seen against a machine alone.
        ((0.4, 0.4), None, "pass", "40 GFLOPS a rank in fp32, the slowest at 100% of the median"),
        ((0.4, 0.4), 1e11, "fail",
         f"40 GFLOPS a rank in fp32, but rank 0 on host n1 at 40%, rank 1 on host n1 at 40% of {REACHED}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on_cpu", [True, False])
def test_ranks_are_judged_against_their_median_or_a_machine(
    shares: tuple[float, ...], expected_flops: float | None, status: str, detail: str, on_cpu: bool
) -> None:
    check = check_products(products(*shares), "fp32", expected_flops, on_cpu=on_cpu)
    assert (check.status, check.detail) == (status, f"right; {detail}")
    assert (check.fix is None) == (status == "pass")
    assert check.fix is None or ("nvidia-smi" in check.fix) != on_cpu


def test_wrong_numbers_are_worse_than_slow_ones() -> None:
    found = answers([Product(1024, 1e11, 0.01, 0, 1e11), Product(1024, 1e10, 0.01, 3, 1e10)])
    check = check_products(found, "fp32", None, on_cpu=True)
    assert check.status == "fail"
    assert check.detail.startswith("wrong numbers from rank 1 on host n1: 3 of 1024 rows")


def test_a_rank_that_cannot_multiply_is_named_with_the_drivers_words() -> None:
    check = check_products(products(1.0, None, None), "fp32", None, on_cpu=False)
    assert check.status == "fail"
    assert check.detail == (
        "rank 1 on host n1 cannot multiply matrices: CUDA error: unspecified launch failure (and rank 2 on host n2)"
    )


def test_the_ceiling_of_one_accelerator_is_taken_from_the_machine() -> None:
    level = Level(accelerators=4, ceilings={"GEMM mixed": 4e14, "gemm fp32": 4e13}, bandwidths={"a": 1.0}, bound="a")
    machine = Machine(name="m", source="s", nodes=1, accelerators_per_node=4, node=level)
    assert expected_flops(machine, "fp32") == 1e13
    assert expected_flops(machine, "bf16") == 1e14
    assert expected_flops(machine, "tf32") is None
    assert expected_flops(replace_node(machine, None), "fp32") is None


def replace_node(machine: Machine, node: Level | None) -> Machine:
    return machine.model_copy(update={"node": node})


# clocks


def test_wall_clocks_are_compared_through_the_monotonic_ones() -> None:
    # Both hosts' wall clocks say 1000 s at rank 0's second 7; the monotonic one of rank 1 says 2 then.
    alignment = ClockAlignment((0.0, 5.0), (0.0, 1e-5))
    assert wall_offsets([1000 - 7, 1000 - 2], alignment) == [0, 0]
    assert wall_offsets([1000 - 7, 1003 - 2], alignment) == [0, 3]


@pytest.mark.parametrize(
    ("offsets", "errors", "hosts", "status", "detail"),
    [
        ([0.0, 0.0, 0.4, 0.4], [0.0, 0.0, 1e-5, 1e-5], HOSTS, "pass", "wall clocks within 0.4 s, aligned to 1e-05 s"),
        # A wrong one is told with its host, also where it is rank 0's.
        ([0.0, 0.0, 42.0], [0.0] * 3, ("n1", "n2", "n3"), "warn",
         "wall clocks are wrong on n3 by +42 s: times of records and power meters will not match"),
        ([0.0, 42.0, 42.0], [0.0] * 3, ("n1", "n2", "n3"), "warn",
         "wall clocks are wrong on n1 by -42 s: times of records and power meters will not match"),
        ([0.0, 0.0], [0.0, 0.03], ("n1", "n2"), "warn",
         "the clocks of n2 can only be aligned to 0.03 s: a barrier takes that long"),
        ([0.0, 9.0], [0.0, 9.0], ("n1", "n1"), "pass", "one host, one clock"),
    ],
)  # fmt: skip
def test_clocks_of_hosts_are_within_a_second_or_told(
    offsets: list[float], errors: list[float], hosts: tuple[str, ...], status: str, detail: str
) -> None:
    check = check_clocks(offsets, errors, hosts)
    assert (check.status, check.detail) == (status, detail)


# devices

GPU = Device("NVIDIA H100", "GPU-a", 4, 100_000 * 100_001 / 2)


FAR, NEAR = Check("affinity", "warn", "GPU 0 is far", "srun --cpu-bind=map_ldom:1"), Check("affinity", "pass", "near")
SOME = "NVIDIA H100: sums are right; host n1 has 4 devices: --procs 4 checks all"


@pytest.mark.parametrize(
    ("devices", "hosts", "status", "detail"),
    [
        ([replace(GPU, identity=str(number)) for number in range(4)], HOSTS, "pass", f"4 x {SOME}"),
        ([GPU, None], ("n1", "n2"), "fail",
         "rank 1 on host n2 cannot compute: CUDA error: unspecified launch failure"),
        ([GPU, replace(GPU, answer=1.0)], ("n1", "n2"), "fail",
         "rank 1 on host n2: a sum of whole numbers is wrong"),
        ([GPU, GPU], ("n1", "n1"), "fail", "rank 0 on host n1, rank 1 on host n1 share one device"),
        ([replace(GPU, identity=str(number), affinity=FAR if number else NEAR) for number in range(3)],
         ("n1", "n2", "n2"), "warn",
         f"3 x {SOME}; rank 1 on host n2: GPU 0 is far (also: rank 2 on host n2)"),
        # Devices of two hosts may have one name.
        ([GPU, GPU], ("n1", "n2"), "pass", f"2 x {SOME}"),
    ],
)  # fmt: skip
def test_devices_that_answer_are_counted_and_any_other_is_named(
    devices: list[Device | None], hosts: tuple[str, ...], status: str, detail: str
) -> None:
    check = check_devices(answers(devices, hosts))
    assert (check.status, check.detail) == (status, detail)


# versions

FACTS = {"code": "a" * 64, "version of torch": "2.13.0", "kernel": "6.1", "NVIDIA driver": None}


def test_the_same_everywhere_is_told_once() -> None:
    check = check_versions([FACTS] * 4, HOSTS)
    assert (check.status, check.detail) == ("pass", "the same on 2 hosts: torch 2.13.0, kernel 6.1, code aaaaaaaaaaaa")


def test_another_code_is_refused_and_another_kernel_is_not() -> None:
    code = check_versions([FACTS, FACTS, {**FACTS, "code": "b" * 64}], ("n1", "n2", "n3"))
    assert (code.status, code.detail) == ("fail", "code: aaaaaaaaaaaa on n1, n2, bbbbbbbbbbbb on n3")
    kernel = check_versions([FACTS, {**FACTS, "kernel": "6.2"}], ("n1", "n2"))
    assert (kernel.status, kernel.detail) == ("warn", "kernel: 6.1 on n1, 6.2 on n2: hosts may differ in speed")


def test_ranks_have_one_nccl_that_keeps_the_order_of_launches() -> None:
    new, old = ({**FACTS, "NCCL of torch": version} for version in ("2.29.7", "2.25.1"))
    assert check_versions([new], ("n1",)).detail == "torch 2.13.0, NCCL 2.29.7, kernel 6.1, code aaaaaaaaaaaa"
    stale = check_versions([old, old], ("n1", "n2"))
    assert (stale.status, "before NCCL 2.26 jobs in stages may wait" in stale.detail) == ("warn", True)
    assert "NCCL 2.26 or later" in stale.fix
    mixed = check_versions([new, old], ("n1", "n2"))
    assert mixed.status == "warn"
    assert mixed.detail.startswith("NCCL of torch: 2.29.7 on n1, 2.25.1 on n2: ranks may not connect")
    assert "libnccl.so.2" in mixed.fix


def test_what_a_host_does_not_know_is_not_compared() -> None:
    assert check_versions([FACTS, {**FACTS, "NVIDIA driver": "580.1"}], ("n1", "n2")).status == "pass"


# nodes


def test_what_another_host_lacks_is_told_with_its_fix() -> None:
    fine, missing = Check("data", "pass", "can be read"), Check("data", "fail", "/x: no such folder", "--bind /x")
    found: list[Answer[Sequence[Check]]] = [
        Answer(0, "n1", [missing]),
        Answer(2, "n2", [fine]),
        Answer(4, "n3", [missing, Check("cores", "warn", "1 of 64")]),
    ]
    assert check_nodes(found, ()) == Check("nodes", "fail", "n3: data: /x: no such folder", "--bind /x")
    assert check_nodes(found[:2], ()) == Check("nodes", "pass", "n2: no problems, and alike")


def test_nodes_that_differ_in_what_matters_are_warned_of() -> None:
    found: list[Answer[Sequence[Check]]] = [Answer(0, "n1", []), Answer(2, "n2", [])]
    slower, name = (
        NodeDifference(field, matters, (Variant(300, ("n1",)), Variant(200, ("n2",))))
        for field, matters in (("devices[0].power_limit_watts", True), ("machine.serial", False))
    )
    check = check_nodes(found, [slower, name])
    assert check.status == "warn"
    assert check.detail.endswith("but nodes differ: devices[0].power_limit_watts: 300 on n1; 200 on n2")
    assert check_nodes(found, [name]).status == "pass"


# reading

NEED = Need("ic", Path("/data"), 1e12, 2e10)


def reading(rate: float, **changes: object) -> Reading:
    """Of a rank that reads so many bytes a second."""
    found = Reading(int(rate * 4), 4.0, 1e5, 8, 64, (), "images of 16 of 1000 classes")
    return replace(found, **changes)  # type: ignore[arg-type]


def test_what_all_ranks_read_is_held_against_what_training_takes_at_most() -> None:
    # 1 TFLOPS over 20 GFLOP a sample are 50 samples a second of 100 kB.
    check = check_reading(answers([reading(3e6), reading(3e6)]), NEED)
    assert check.status == "pass"
    assert check.detail == (
        "6 MB/s by 2 x 8 threads (images of 16 of 1000 classes), 128 files whole; training needs at most 5 MB/s (50 "
        "samples/s at the speed of GEMM)"
    )


def test_storage_that_training_will_wait_for_is_a_warning_with_the_slowest_rank() -> None:
    check = check_reading(answers([reading(1e6), reading(0.4e6)]), NEED)
    assert check.status == "warn"
    assert "training will wait for data; the slowest is rank 1 on host n1" in check.detail


def test_where_the_need_is_unknown_the_rate_is_told_alone() -> None:
    check = check_reading(answers([reading(1e6)]), Need("ic", Path("/data"), None, 2e10))
    assert (check.status, check.detail) == (
        "pass",
        "1 MB/s by 8 threads (images of 16 of 1000 classes), 64 files whole",
    )


def test_broken_files_are_named_once_with_the_command_that_finds_all() -> None:
    broken = reading(1e9, broken=("train/a/1.JPEG: truncated",))
    check = check_reading(answers([broken, broken]), NEED)
    assert check.status == "fail"
    assert check.detail == "1 of 128 files broken: train/a/1.JPEG: truncated (host n1)"
    assert check.fix == "copy them again; `hpcai500 data check ic /data` finds all of them"


def test_a_rank_that_cannot_read_is_named() -> None:
    check = check_reading(answers([reading(1e9), None]), NEED)
    assert check.status == "fail"
    assert check.detail.startswith("rank 1 on host n1 cannot read the data set: ")


# power


def test_power_is_skipped_where_nothing_tells_it_and_warned_of_where_some_nodes_do_not() -> None:
    none, some = Sources((), "RAPL: no counters"), Sources(("rapl (device)",), "")
    assert check_sources([Answer(0, "n1", none)]).status == "skip"
    assert check_sources([Answer(0, "n1", some)]) == Check("power", "pass", "rapl (device)")
    mixed = check_sources([Answer(0, "n1", some), Answer(1, "n2", none)])
    assert (mixed.status, mixed.detail) == ("warn", "n1 has rapl (device), but n2 not: RAPL: no counters")


# --- All-reduces and links.


GIGABIT = 1e9 / 8


def exchange(carried: float, links: dict[str, float], interface: str = "eth0", **changes: object) -> Exchange:
    """Of four ranks on two hosts, whose `interface` carried so many bytes a second."""
    one = Traffic({interface: carried}, links)
    found = Exchange((0, 0, 0, 0), 2**24, 2**24 * 1.5 / carried, {"n1": one, "n2": one}, "Gloo")
    return replace(found, **changes)  # type: ignore[arg-type]


TEN = {"eth0": 10 * GIGABIT}
OF_A_MACHINE = Link(latency_seconds=0, bytes_per_second=9 * GIGABIT)


@pytest.mark.parametrize(
    ("found", "link", "status", "detail"),
    [
        (exchange(9 * GIGABIT, TEN), None, "pass", "9 Gbit/s by Gloo, 4 ranks, over eth0 (10 Gbit/s)"),
        # Ten gigabit that carry one are a failure, half of a link is a warning.
        (exchange(0.94 * GIGABIT, TEN), None, "fail", "940 Mbit/s by Gloo, 4 ranks, over eth0 (10 Gbit/s); n1 (and n2):"
         " 940 Mbit/s over eth0, whose link has 10 Gbit/s"),
        (exchange(5 * GIGABIT, TEN), None, "warn", "5 Gbit/s by Gloo, 4 ranks, over eth0 (10 Gbit/s); n1 (and n2): 5 "
         "Gbit/s over eth0, whose link has 10 Gbit/s"),
        # One core cannot fill a fast link, and an adapter can.
        (exchange(15 * GIGABIT, {"eth0": 100 * GIGABIT}), None, "pass",
         "15 Gbit/s by Gloo, 4 ranks, over eth0 (100 Gbit/s)"),
        (exchange(15 * GIGABIT, {"eth0": 100 * GIGABIT}, library="NCCL 2.27.3"), None, "fail", "15 Gbit/s by NCCL "
         "2.27.3, 4 ranks, over eth0 (100 Gbit/s); n1 (and n2): 15 Gbit/s over eth0, whose link has 100 Gbit/s"),
        # Without its speed, or where another one tells it, a link is not judged by it.
        (exchange(0.1 * GIGABIT, {}), None, "pass", "100 Mbit/s by Gloo, 4 ranks, over eth0"),
        (exchange(0.1 * GIGABIT, {"mlx5_0/1": 200 * GIGABIT}), None, "pass", "100 Mbit/s by Gloo, 4 ranks, over eth0"),
        # Against a machine its link counts; without one, ranks of one host are not judged.
        (exchange(8.5 * GIGABIT, TEN), OF_A_MACHINE, "pass", "8.5 Gbit/s by Gloo, 4 ranks, over eth0 (10 Gbit/s)"),
        (exchange(6 * GIGABIT, TEN), OF_A_MACHINE, "warn", "6 Gbit/s by Gloo, 4 ranks, over eth0 (10 Gbit/s); 67% of "
         "what the machine reaches (9 Gbit/s)"),
        (exchange(1 * GIGABIT, TEN), OF_A_MACHINE, "fail", "1 Gbit/s by Gloo, 4 ranks, over eth0 (10 Gbit/s); 11% of "
         "what the machine reaches (9 Gbit/s)"),
        (exchange(1.0, {}, traffic={}), None, "pass", "8e-06 Mbit/s by Gloo, 4 ranks"),
    ],
)  # fmt: skip
def test_a_link_is_judged_by_what_it_says_or_by_a_machines(
    found: Exchange, link: Link | None, status: str, detail: str
) -> None:
    check = check_exchange(found, HOSTS, link)
    assert (check.status, check.detail) == (status, f"right; {detail}")
    assert (check.fix is None) == (status == "pass")
    assert check.fix is None or "export NCCL_SOCKET_IFNAME=NAME GLOO_SOCKET_IFNAME=NAME" in check.fix


def test_a_faster_interface_that_is_idle_is_told_with_the_line_to_type() -> None:
    links = {"eth0": GIGABIT, "eth1": 25 * GIGABIT}
    check = check_exchange(exchange(0.94 * GIGABIT, links), HOSTS, None)
    assert check.status == "warn"
    assert "n1: eth1 (25 Gbit/s) is up but carried nothing" in check.detail
    assert check.fix == "export NCCL_SOCKET_IFNAME=eth1 GLOO_SOCKET_IFNAME=eth1"


def test_the_one_host_with_a_bad_cable_is_named() -> None:
    links = {"eth0": 10 * GIGABIT}
    traffic = {"n1": Traffic({"eth0": 9 * GIGABIT}, links), "n2": Traffic({"eth0": 0.1 * GIGABIT}, links)}
    check = check_exchange(exchange(GIGABIT, links, traffic=traffic), HOSTS, None)
    assert check.status == "fail"
    assert "n2: 100 Mbit/s over eth0" in check.detail


def test_wrong_sums_are_named_by_rank() -> None:
    check = check_exchange(exchange(9 * GIGABIT, {}, wrong=(0, 0, 7, 0)), HOSTS, None)
    assert (check.status, check.detail) == ("fail", "wrong sums by Gloo on rank 2 on host n2")


def test_the_link_between_nodes_or_within_one_is_taken_from_the_machine() -> None:
    network, node = Link(latency_seconds=0, bytes_per_second=1.0), Link(latency_seconds=0, bytes_per_second=2.0)
    machine = Machine(name="m", source="s", nodes=2, accelerators_per_node=4, network=network, node_link=node)
    assert expected_link(machine, 2) == network
    assert expected_link(machine, 1) == node
    assert expected_link(None, 2) is None


# --- On real ranks of this host; a wrong multiply, a silent and a dead rank are provoked.


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


def test_without_fp16_in_the_processor_its_product_is_smaller() -> None:
    has_fp16 = torch.ops.mkldnn._is_mkldnn_fp16_supported()
    product = measure_product(CPU, "fp16", 128, effort=BRIEF)
    assert (product.side, product.wrong_rows) == (128 if has_fp16 else 32, 0)


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
    check = check_exchange(right, (asked[0].host,) * 2, None)
    assert check.status == "pass", check
    assert right.bus_bytes_per_second > 1e6
    assert wrong.wrong == (0, 1)
    assert check_devices(devices).status == "pass"
    # One clock, read one after the other.
    assert max(map(abs, walls)) < 0.5
    assert check_clocks(walls, alignment.errors_seconds, ("n1", "n2")).status in ("pass", "warn")


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
        (signal.SIGKILL, "its process ended unexpectedly"),
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
    assert (told.running, told.reason) == ("reading", "not finished within 2 s")
    assert [json.loads(line) for line in log.read_text().splitlines()][-1] == {"broken": "not finished within 2 s"}
