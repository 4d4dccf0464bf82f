"""Counted bytes against network counters: what can be compared, and what each ratio is said to mean."""

from __future__ import annotations

import pytest

from hpcai500.methodology.communication import RankTraffic, check_traffic

MIB = 2**20


def rank(
    host: str, sent: int, *, network: int = 0, loopback: int | None = 0, between: int | None = None, restarted: str = ""
) -> RankTraffic:
    counters = {
        "loopback_sent_bytes": loopback,
        "sent_bytes": {"eth0": network},
        "received_bytes": {"eth0": network},
        "restarted": [restarted] if restarted else [],
    }
    return {"host": host, "sent_bytes": sent, "between_hosts_bytes": between, "counters": counters}


def test_gloo_on_one_host_is_compared_with_loopback() -> None:
    found = check_traffic([rank("a", MIB, loopback=2 * MIB + 7000), rank("a", MIB, loopback=3 * MIB)], "Gloo")
    assert (found["counted_bytes"], found["counter_bytes"], found["over"]) == (2 * MIB, 2 * MIB + 7000, "loopback")
    assert found["verdict"] == "the counters agree"


def test_counters_of_a_host_count_once_however_many_ranks_read_them() -> None:
    ranks = [rank("a", MIB, network=MIB, loopback=MIB), rank("a", MIB, network=MIB, loopback=MIB)]
    ranks += [rank("b", MIB, network=MIB, loopback=MIB), rank("b", MIB, network=MIB, loopback=MIB)]
    found = check_traffic(ranks, "Gloo")
    assert (found["counted_bytes"], found["counter_bytes"], found["ratio"]) == (4 * MIB, 4 * MIB, 1.0)
    assert found["over"] == "loopback and network"


def test_shared_memory_on_one_host_cannot_be_compared() -> None:
    found = check_traffic([rank("a", MIB), rank("a", MIB)], "Open MPI 4.1.4")
    assert found["verdict"] == "not comparable: on one host, Open MPI 4.1.4 uses shared memory"
    assert (found["counted_bytes"], found["ratio"]) == (None, None)


def test_one_rank_a_host_sends_everything_over_the_network_and_loopback_does_not_count() -> None:
    found = check_traffic([rank("a", MIB, network=MIB, loopback=9 * MIB), rank("b", MIB, network=MIB)], "NCCL 2.27")
    assert (found["over"], found["ratio"]) == ("network", 1.0)


def test_several_ranks_a_host_need_the_part_between_hosts() -> None:
    unknown = [rank("a", 3 * MIB, network=MIB), rank("a", 3 * MIB), rank("b", 3 * MIB, network=MIB)]
    assert "how much of it stays within a host" in check_traffic(unknown, "Open MPI 4.1.4")["verdict"]
    known = [rank("a", 3 * MIB, network=MIB, between=MIB), rank("a", 3 * MIB, between=0)]
    known += [rank("b", 3 * MIB, network=MIB, between=MIB)]
    assert check_traffic(known, "Open MPI 4.1.4")["ratio"] == 1.0


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [(0.94, "the counters saw less"), (0.96, "the counters agree"), (1.05, "the counters agree"), (1.2, "saw more")],
)
def test_a_ratio_has_its_verdict(seen: float, verdict: str) -> None:
    found = check_traffic([rank("a", 100_000, network=round(seen * 100_000)), rank("b", 0)], "NCCL 2.27")
    assert verdict in found["verdict"]


def test_an_interface_that_came_up_anew_or_a_count_of_nothing_is_no_comparison() -> None:
    anew = [rank("a", MIB, network=MIB, restarted="eth1"), rank("b", MIB, network=MIB)]
    assert check_traffic(anew, "Gloo")["verdict"] == "not comparable: eth1 of a was set up anew during the run"
    assert check_traffic([rank("a", 0), rank("b", 0)], "Gloo")["verdict"] == "not comparable: no byte was counted"
