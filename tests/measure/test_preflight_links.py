"""What doctor says of all-reduces and links: pure functions that take numbers and give a check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcai500.machine import Link, Machine
from hpcai500.measure.preflight import Exchange, Wire, expected_link, judge_exchange
from hpcai500.system.checks import Check
from hpcai500.system.network import link_rates

HOSTS = ("n1", "n1", "n2", "n2")
GIGABIT = 1e9 / 8


def exchange(carried: float, links: dict[str, float], interface: str = "eth0", **changes: object) -> Exchange:
    """Of four ranks on two hosts, whose `interface` carried so many bytes a second."""
    wire = Wire({interface: carried}, links)
    found = Exchange((0, 0, 0, 0), 2**24, 2**24 * 1.5 / carried, {"n1": wire, "n2": wire}, "Gloo")
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_link_that_carries_what_it_says_is_fine_and_its_interface_is_told() -> None:
    check = judge_exchange(exchange(9 * GIGABIT, {"eth0": 10 * GIGABIT}), HOSTS, None)
    assert check == Check("all-reduce", "pass", "right; 9 Gbit/s by Gloo, 4 ranks, over eth0 (10 Gbit/s)")


def test_ten_gigabit_that_carry_one_are_a_failure_with_the_variables_to_set() -> None:
    check = judge_exchange(exchange(0.94 * GIGABIT, {"eth0": 10 * GIGABIT}), HOSTS, None)
    assert check.status == "fail"
    assert "n1 (and n2): 940 Mbit/s over eth0, whose link has 10 Gbit/s" in check.detail
    assert "NCCL_SOCKET_IFNAME" in (check.fix or "")
    assert "GLOO_SOCKET_IFNAME" in (check.fix or "")


def test_half_of_a_link_is_a_warning() -> None:
    assert judge_exchange(exchange(5 * GIGABIT, {"eth0": 10 * GIGABIT}), HOSTS, None).status == "warn"


def test_one_core_cannot_fill_a_fast_link_and_an_adapter_can() -> None:
    slow = exchange(15 * GIGABIT, {"eth0": 100 * GIGABIT})
    assert judge_exchange(slow, HOSTS, None).status == "pass"
    assert judge_exchange(replace(slow, library="NCCL 2.27.3"), HOSTS, None).status == "fail"


def test_a_faster_interface_that_is_idle_is_told_with_the_line_to_type() -> None:
    links = {"eth0": GIGABIT, "eth1": 25 * GIGABIT}
    check = judge_exchange(exchange(0.94 * GIGABIT, links), HOSTS, None)
    assert check.status == "warn"
    assert "n1: eth1 (25 Gbit/s) is up and carried nothing" in check.detail
    assert check.fix == "export NCCL_SOCKET_IFNAME=eth1 GLOO_SOCKET_IFNAME=eth1"


def test_the_one_host_with_a_bad_cable_is_named() -> None:
    links = {"eth0": 10 * GIGABIT}
    wires = {"n1": Wire({"eth0": 9 * GIGABIT}, links), "n2": Wire({"eth0": 0.1 * GIGABIT}, links)}
    check = judge_exchange(exchange(GIGABIT, links, wires=wires), HOSTS, None)
    assert check.status == "fail"
    assert "n2: 100 Mbit/s over eth0" in check.detail


@pytest.mark.parametrize("links", [{}, {"mlx5_0/1": 200 * GIGABIT}])
def test_a_link_that_does_not_say_its_speed_is_not_judged_by_it(links: dict[str, float]) -> None:
    found = exchange(0.1 * GIGABIT, links)
    assert judge_exchange(found, HOSTS, None).status == "pass"


def test_against_a_machine_its_link_counts() -> None:
    links = {"eth0": 10 * GIGABIT}
    machine = Link(latency_seconds=0, bytes_per_second=9 * GIGABIT)
    assert judge_exchange(exchange(8.5 * GIGABIT, links), HOSTS, machine).status == "pass"
    assert judge_exchange(exchange(6 * GIGABIT, links), HOSTS, machine).status == "warn"
    check = judge_exchange(exchange(1 * GIGABIT, links), HOSTS, machine)
    assert check.status == "fail"
    assert "11% of what the machine reaches (9 Gbit/s)" in check.detail


def test_ranks_of_one_host_are_not_judged_without_a_machine() -> None:
    check = judge_exchange(exchange(1.0, {}, wires={}), HOSTS, None)
    assert check.status == "pass"


def test_wrong_sums_are_named_by_rank() -> None:
    check = judge_exchange(exchange(9 * GIGABIT, {}, wrong=(0, 0, 7, 0)), HOSTS, None)
    assert (check.status, check.detail) == ("fail", "wrong sums by Gloo on rank 2 on host n2")


def test_the_link_between_nodes_or_within_one_is_taken_from_the_machine() -> None:
    network, node = Link(latency_seconds=0, bytes_per_second=1.0), Link(latency_seconds=0, bytes_per_second=2.0)
    machine = Machine(name="m", source="s", nodes=2, accelerators_per_node=4, network=network, node_link=node)
    assert expected_link(machine, 2) == network
    assert expected_link(machine, 1) == node
    assert expected_link(None, 2) is None


def test_links_are_read_as_the_kernel_tells_them(tmp_path: Path) -> None:
    classes = tmp_path / "sys/class"

    def say(path: str, text: str) -> None:
        (classes / path).parent.mkdir(parents=True, exist_ok=True)
        (classes / path).write_text(text)

    for name, speed, state in (("eth0", "10000", "up"), ("eth1", "25000", "down"), ("virt0", "-1", "up")):
        say(f"net/{name}/speed", f"{speed}\n")
        say(f"net/{name}/operstate", f"{state}\n")
    say("net/bond0/speed", "20000\n")
    say("net/bond0/operstate", "up\n")
    (classes / "net/bond0/lower_eth0").mkdir()
    say("infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n")
    say("infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    say("infiniband/mlx5_1/ports/1/rate", "200 Gb/sec (4X HDR)\n")
    say("infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
    assert link_rates(tmp_path) == {"eth0": 1.25e9, "mlx5_0/1": 2.5e10}
    assert link_rates(tmp_path / "none") == {}
