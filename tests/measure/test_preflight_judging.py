"""What the numbers of doctor's measurements amount to: pure functions that take numbers and give a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from hpcai500.comm.timeline import ClockAlignment
from hpcai500.machine import Level, Machine
from hpcai500.measure.preflight import (
    Answer,
    Device,
    Product,
    Sources,
    expected_flops,
    judge_clocks,
    judge_devices,
    judge_nodes,
    judge_products,
    judge_sources,
    judge_versions,
    wall_offsets,
)
from hpcai500.measure.read_speed import Need, Reading, judge_reading
from hpcai500.methodology.nodes import NodeDifference, Variant
from hpcai500.system.checks import Check
from hpcai500.system.doctor import space_check

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


def test_ranks_that_are_alike_are_fine_and_the_slowest_is_told() -> None:
    check = judge_products(products(1.0, 0.95, 1.02, 1.0), "fp32", None, on_cpu=True)
    assert (check.status, check.detail) == (
        "pass",
        "right; 100 GFLOPS a rank in fp32, the slowest at 95% of the median",
    )


def test_a_rank_more_than_a_tenth_below_the_median_is_warned_of_by_its_host() -> None:
    check = judge_products(products(1.0, 1.0, 1.0, 0.6), "fp32", None, on_cpu=True)
    assert check.status == "warn"
    assert "rank 3 on host n2 at 60% of the median" in check.detail
    assert "n1" not in check.detail
    assert check.fix


def test_one_rank_without_a_machine_is_told_its_speed_and_not_judged() -> None:
    check = judge_products(products(0.001), "fp32", None, on_cpu=True)
    assert check.status == "pass"
    assert "0.1 GFLOPS a rank in fp32 (nothing to compare with" in check.detail


@pytest.mark.parametrize(("share", "status"), [(0.95, "pass"), (0.8, "warn"), (0.4, "fail")])
def test_against_a_machine_one_rank_is_judged_too(share: float, status: str) -> None:
    check = judge_products(products(share), "fp32", 1e11, on_cpu=False)
    assert check.status == status
    assert "what the machine reaches (100 GFLOPS)" in check.detail


def test_all_ranks_slow_alike_is_seen_against_a_machine_alone() -> None:
    assert judge_products(products(0.4, 0.4), "fp32", None, on_cpu=True).status == "pass"
    assert judge_products(products(0.4, 0.4), "fp32", 1e11, on_cpu=True).status == "fail"


def test_wrong_numbers_are_worse_than_slow_ones() -> None:
    found = answers([Product(1024, 1e11, 0.01, 0, 1e11), Product(1024, 1e10, 0.01, 3, 1e10)])
    check = judge_products(found, "fp32", None, on_cpu=True)
    assert check.status == "fail"
    assert check.detail.startswith("wrong numbers from rank 1 on host n1: 3 of 1024 rows")


def test_a_rank_that_cannot_multiply_is_named_with_the_drivers_words() -> None:
    check = judge_products(products(1.0, None, None), "fp32", None, on_cpu=False)
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


def test_clocks_within_a_second_are_fine() -> None:
    check = judge_clocks([0.0, 0.0, 0.4, 0.4], [0.0, 0.0, 1e-5, 1e-5], HOSTS)
    assert (check.status, check.detail) == ("pass", "wall clocks within 0.4 s, aligned to 1e-05 s")


def test_a_wrong_wall_clock_is_told_with_its_host_also_where_it_is_rank_0s() -> None:
    hosts = ("n1", "n2", "n3")
    check = judge_clocks([0.0, 0.0, 42.0], [0.0] * 3, hosts)
    assert check.status == "warn"
    assert "wrong on n3 by +42 s" in check.detail
    check = judge_clocks([0.0, 42.0, 42.0], [0.0] * 3, hosts)
    assert "wrong on n1 by -42 s" in check.detail


def test_hosts_that_cannot_be_aligned_are_told() -> None:
    check = judge_clocks([0.0, 0.0], [0.0, 0.03], ("n1", "n2"))
    assert check.status == "warn"
    assert "the clocks of n2 can be aligned to 0.03 s only" in check.detail


def test_one_host_has_one_clock() -> None:
    assert judge_clocks([0.0, 9.0], [0.0, 9.0], ("n1", "n1")).status == "pass"


# devices

GPU = Device("NVIDIA H100", "GPU-a", 4, 100_000 * 100_001 / 2)


def test_devices_that_answer_are_counted_by_model() -> None:
    found = answers([replace(GPU, identity=str(number)) for number in range(4)])
    assert judge_devices(found).detail.startswith("4 x NVIDIA H100 answer, of 4 on host n1")


def test_a_device_that_does_not_answer_is_named_by_its_host() -> None:
    check = judge_devices(answers([GPU, None], ("n1", "n2")))
    assert check.status == "fail"
    assert check.detail == "rank 1 on host n2 cannot compute: CUDA error: unspecified launch failure"


def test_a_device_that_counts_wrong_is_named() -> None:
    check = judge_devices(answers([GPU, replace(GPU, answer=1.0)], ("n1", "n2")))
    assert (check.status, check.detail.partition(":")[0]) == ("fail", "rank 1 on host n2")


def test_two_ranks_on_one_device_are_told_and_two_hosts_with_such_names_are_not() -> None:
    shared = judge_devices(answers([GPU, GPU], ("n1", "n1")))
    assert (shared.status, shared.detail) == ("fail", "rank 0 on host n1, rank 1 on host n1 share one device")
    assert judge_devices(answers([GPU, GPU], ("n1", "n2"))).status == "pass"


# versions

FACTS = {"code": "a" * 64, "version of torch": "2.13.0", "kernel": "6.1", "NVIDIA driver": None}


def test_the_same_everywhere_is_told_once() -> None:
    check = judge_versions([FACTS] * 4, HOSTS)
    assert (check.status, check.detail) == ("pass", "the same on 2 hosts: torch 2.13.0, kernel 6.1, code aaaaaaaaaaaa")


def test_another_code_is_refused_and_another_kernel_is_not() -> None:
    code = judge_versions([FACTS, FACTS, {**FACTS, "code": "b" * 64}], ("n1", "n2", "n3"))
    assert (code.status, code.detail) == ("fail", "code: aaaaaaaaaaaa on n1, n2, bbbbbbbbbbbb on n3")
    kernel = judge_versions([FACTS, {**FACTS, "kernel": "6.2"}], ("n1", "n2"))
    assert (kernel.status, kernel.detail) == ("warn", "kernel: 6.1 on n1, 6.2 on n2: hosts may differ in speed")


def test_what_a_host_does_not_know_is_not_compared() -> None:
    assert judge_versions([FACTS, {**FACTS, "NVIDIA driver": "580.1"}], ("n1", "n2")).status == "pass"


# nodes


def test_what_another_host_lacks_is_told_with_its_fix() -> None:
    fine, missing = Check("data", "pass", "can be read"), Check("data", "fail", "/x: no such folder", "--bind /x")
    found: list[Answer[Sequence[Check]]] = [
        Answer(0, "n1", [missing]),
        Answer(2, "n2", [fine]),
        Answer(4, "n3", [missing, Check("cores", "warn", "1 of 64")]),
    ]
    assert judge_nodes(found, ()) == Check("nodes", "fail", "n3: data: /x: no such folder", "--bind /x")
    assert judge_nodes(found[:2], ()) == Check("nodes", "pass", "n2: nothing missing that is here, and alike")


def test_nodes_that_differ_in_what_matters_are_warned_of() -> None:
    found: list[Answer[Sequence[Check]]] = [Answer(0, "n1", []), Answer(2, "n2", [])]
    slower, name = (
        NodeDifference(field, matters, (Variant(300, ("n1",)), Variant(200, ("n2",))))
        for field, matters in (("devices[0].power_limit_watts", True), ("machine.serial", False))
    )
    check = judge_nodes(found, [slower, name])
    assert check.status == "warn"
    assert check.detail.endswith("but nodes differ: devices[0].power_limit_watts: 300 on n1; 200 on n2")
    assert judge_nodes(found, [name]).status == "pass"


# reading

NEED = Need("ic", Path("/data"), 1e12, 2e10)


def reading(rate: float, **changes: object) -> Reading:
    """Of a rank that reads so many bytes a second."""
    found = Reading(int(rate * 4), 4.0, 1e5, 8, 64, (), "images of 16 of 1000 classes")
    return replace(found, **changes)  # type: ignore[arg-type]


def test_what_all_ranks_read_is_held_against_what_training_takes_at_most() -> None:
    # 1 TFLOPS over 20 GFLOP a sample are 50 samples a second of 100 kB.
    check = judge_reading(answers([reading(3e6), reading(3e6)]), NEED)
    assert check.status == "pass"
    assert check.detail == (
        "6 MB/s by 2 x 8 threads (images of 16 of 1000 classes), 128 files whole; training takes 5 MB/s at most (50 "
        "samples/s at the speed of GEMM)"
    )


def test_storage_that_training_will_wait_for_is_a_warning_with_the_slowest_rank() -> None:
    check = judge_reading(answers([reading(1e6), reading(0.4e6)]), NEED)
    assert check.status == "warn"
    assert "training will wait for data; slowest was rank 1 on host n1" in check.detail


def test_where_the_need_is_unknown_the_rate_is_told_alone() -> None:
    check = judge_reading(answers([reading(1e6)]), Need("ic", Path("/data"), None, 2e10))
    assert (check.status, check.detail) == (
        "pass",
        "1 MB/s by 8 threads (images of 16 of 1000 classes), 64 files whole",
    )


def test_broken_files_are_named_once_with_the_command_that_finds_all() -> None:
    broken = reading(1e9, broken=("train/a/1.JPEG: truncated",))
    check = judge_reading(answers([broken, broken]), NEED)
    assert check.status == "fail"
    assert check.detail == "1 of 128 files broken: train/a/1.JPEG: truncated (host n1)"
    assert check.fix == "copy them again; `hpcai500 data check ic /data` finds all of them"


def test_a_rank_that_cannot_read_is_named() -> None:
    check = judge_reading(answers([reading(1e9), None]), NEED)
    assert check.status == "fail"
    assert check.detail.startswith("rank 1 on host n1 cannot read the data set: ")


# disk and power


@pytest.mark.parametrize(("free", "status"), [(5e9, "pass"), (0.9e9, "warn"), (0.7e9, "fail")])
def test_a_disk_says_how_much_a_run_needs(tmp_path: Path, free: float, status: str) -> None:
    check = space_check(tmp_path / "runs", int(free), 200 * 10**6)
    assert check.status == status
    assert f"{tmp_path} has " in check.detail
    assert "a run needs 1 GB: 4 checkpoints of 200 MB, 200 MB for the rest" in check.detail
    assert (check.fix is None) == (status == "pass")


def test_power_is_skipped_where_nothing_tells_it_and_warned_of_where_some_nodes_do_not() -> None:
    none, some = Sources((), "RAPL: no counters"), Sources(("rapl (device)",), "")
    assert judge_sources([Answer(0, "n1", none)]).status == "skip"
    assert judge_sources([Answer(0, "n1", some)]) == Check("power", "pass", "rapl (device)")
    mixed = judge_sources([Answer(0, "n1", some), Answer(1, "n2", none)])
    assert (mixed.status, mixed.detail) == ("warn", "n1 has rapl (device), n2 not: RAPL: no counters")
