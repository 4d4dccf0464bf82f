"""Links of `hpcai500 micro` on real ranks: every pair, in rounds, and that slow and wrong ones are found."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import pytest
import torch
from builders.needs import needs_horovod_and_mpi
from builders.ranks import run_ranks, try_ranks
from torch import Tensor

from hpcai500.comm.communicator import Communicator, LocalCommunicator
from hpcai500.errors import WrongAnswerError
from hpcai500.measure import links
from hpcai500.measure.links import (
    device_links,
    ends_of_devices,
    ends_of_hosts,
    host_copies,
    measure_devices,
    measure_hosts,
)
from hpcai500.measure.micro import MeasuringJob
from hpcai500.progress import silent
from hpcai500.results.micro import figure_of_merit_lines, link_figures, table_lines

CPU = torch.device("cpu")


def job_of(communicator: Communicator, said: list[str] | None = None) -> MeasuringJob:
    return MeasuringJob(communicator, CPU, 1, say=(said if said is not None else []).append)


def measured(communicator: Communicator, hosts: tuple[str, ...], seconds: float = 0.2) -> dict[str, Any]:
    communicator.hosts = hosts
    with silent(1, "", "") as bar:
        return measure_hosts(job_of(communicator), communicator, seconds, bar)


def test_every_rank_of_a_host_takes_part_as_far_as_all_hosts_have_as_many() -> None:
    ends = ends_of_hosts(("a", "a", "b", "b", "b", "c", "c"))
    assert ends.names == ("a", "b", "c")
    assert ends.ranks == ((0, 1), (2, 3), (5, 6))


def test_devices_are_ends_of_their_own_host_only() -> None:
    (only,) = ends_of_devices(("a", "a", "b"))
    assert (only.names, only.ranks) == (("a:0", "a:1"), ((0,), (1,)))


def test_one_host_has_no_links_and_it_is_said() -> None:
    said: list[str] = []
    with silent(1, "", "") as bar:
        found = measure_hosts(job_of(LocalCommunicator(), said), LocalCommunicator(), 0.1, bar)
    assert found == {}
    assert said == ["pairs: skipped: all ranks are on one host; start them on several with a launcher"]


# ----------------------------------------------------------------------------------------------------
# Real ranks.


def _check(found: dict[str, Any], hosts: str, library: str) -> None:
    slowest = found["pairs slowest"]
    assert slowest["ends"] == list(hosts)
    assert [pair["ends"] for pair in slowest["pairs"]] == [list(pair) for pair in combinations(hosts, 2)]
    # Rounds of Horovod have one pair each.
    is_alone = slowest["instead"] is not None
    assert slowest["rounds"] == (len(slowest["pairs"]) if is_alone else len(hosts) - 1 + len(hosts) % 2)
    assert slowest["call"].startswith(library)
    values = {tuple(pair["ends"]): pair["value"] for pair in slowest["pairs"]}
    assert slowest["value"] == min(values.values()) == values[tuple(slowest["slowest_pair"])]
    sizes = {tuple(row["bytes"] for row in pair["table"]) for pair in slowest["pairs"]}
    # Later rounds may stop earlier, and all are compared at a size that all have.
    common = min(len(rows) for rows in sizes)
    for pair in slowest["pairs"]:
        assert pair["value"] == pair["table"][common - 1]["bus_bandwidth"]
        assert pair["latency_seconds"] == pair["table"][0]["seconds"]
        for row in pair["table"]:
            assert row["bus_bandwidth"] == row["algorithm_bandwidth"] == row["bytes"] / row["seconds"]
    assert found["pairs latency"]["value"] == max(pair["latency_seconds"] for pair in slowest["pairs"])
    if len(hosts) > 2:
        assert found["pairs share"]["value"] == slowest["value"] / slowest["median"]
    assert ("pairs bisection" in found) == (not is_alone)
    if not is_alone:
        totals = [
            sum(pair["value"] for pair in slowest["pairs"] if pair["round"] == turn)
            for turn in range(1, slowest["rounds"] + 1)
        ]
        assert found["pairs bisection"]["value"] == pytest.approx(min(totals))
    for entry in found.values():
        assert entry["verified"]
        assert entry["interval"][0] <= entry["value"] <= entry["interval"][1]


def test_every_pair_of_four_hosts_exchanges_in_three_rounds() -> None:
    everyone = run_ranks(measured, 4, ("a", "b", "c", "d"))
    assert all(found == everyone[0] for found in everyone)
    _check(everyone[0], "abcd", "Gloo")
    assert everyone[0]["pairs slowest"]["instead"] is None
    assert everyone[0]["pairs slowest"]["pairs"][0]["table"][0]["bytes"] == 8


def test_all_ranks_of_a_host_exchange_at_once_and_a_third_host_rests() -> None:
    everyone = run_ranks(measured, 6, ("a", "a", "b", "b", "c", "c"))
    assert all(found == everyone[0] for found in everyone)
    _check(everyone[0], "abc", "Gloo")
    # Two ranks of 8 bytes each.
    assert everyone[0]["pairs slowest"]["pairs"][0]["table"][0]["bytes"] == 16


@needs_horovod_and_mpi
@pytest.mark.parametrize(("launcher", "library"), [("mpirun", "Open MPI"), ("horovodrun", "Gloo")])
def test_pairs_of_horovod_are_measured_and_told_to_be_all_to_alls(launcher: str, library: str) -> None:
    everyone = run_ranks(measured, 3, ("a", "b", "c"), backend="horovod", launcher=launcher)
    assert all(found == everyone[0] for found in everyone)
    _check(everyone[0], "abc", library)
    instead = everyone[0]["pairs slowest"]["instead"]
    assert instead == "an all-to-all of all ranks with splits, since Horovod has no point-to-point"


# ----------------------------------------------------------------------------------------------------
# Links that are slow, and that lie.


def _with_slow_link(communicator: Communicator, low: int, high: int, seconds_per_byte: float) -> dict[str, Any]:
    real = communicator.exchange

    def exchange(source: Tensor, target: Tensor, peer: int) -> None:
        if {communicator.rank, peer} == {low, high}:
            time.sleep(4 * source.numel() * seconds_per_byte)
        real(source, target, peer)

    communicator.exchange = exchange  # type: ignore[method-assign]
    return measured(communicator, ("n1", "n2", "n3", "n4"), 0.5)


def test_a_slow_link_is_named() -> None:
    # 10 MB/s: far slower than any other link, even of a machine that is busy with other work. All links of one host may
    # be slow there, which are one sentence.
    found = run_ranks(_with_slow_link, 4, 1, 3, 1e-7)[0]
    slowest = found["pairs slowest"]
    assert slowest["slowest_pair"] == ["n2", "n4"]
    (pair,) = [pair for pair in slowest["pairs"] if pair["ends"] == ["n2", "n4"]]
    share = f"{pair['share']:.0%}".replace("%", " %")
    said = (
        f"n2-n4: {share} of the median of 6 links",
        f"n2: all 3 links are slow, {share}",
        f"n4: all 3 links are slow, {share}",
    )
    assert any(line.startswith(said) for line in slowest["slow"])
    lines = list(table_lines(found))
    assert {f"slow: pairs slowest: {line}" for line in slowest["slow"]} <= set(lines)
    assert any(line.split()[0] == "n4" and line.split()[2] == f"{pair['share']:.0%}" for line in lines)
    merits = dict(line.removeprefix("HPCAI500 FOM ").split("=") for line in figure_of_merit_lines(found))
    assert merits["pairs_share"] == f"{found['pairs share']['value']:.6g} fraction"
    assert merits["pairs_latency"].endswith(" s")
    figures = link_figures(found)
    assert figures["pairs-slowest.png"].startswith(b"\x89PNG")
    drawn = figures["pairs-slowest.svg"].decode()
    assert all(word in drawn for word in ("n1", "n4", f"{pair['share']:.0%}", "of the median link"))


def _with_wrong_link(communicator: Communicator) -> None:
    real = communicator.exchange

    def exchange(source: Tensor, target: Tensor, peer: int) -> None:
        real(source, target, peer)
        if (communicator.rank, peer) == (2, 0):
            target[-1] += 1

    communicator.exchange = exchange  # type: ignore[method-assign]
    measured(communicator, ("n1", "n2", "n3"), 0.2)


def test_a_link_with_wrong_numbers_is_a_wrong_answer() -> None:
    outcomes, _ = try_ranks(_with_wrong_link, 3)
    assert {outcome.error for outcome in outcomes} == {"WrongAnswerError"}
    told = "pairs, 8 bytes: rank 2 on host n3 has a wrong result: 1 of 2 elements from rank 0 by Gloo, first element 1"
    assert all(told in outcome.message for outcome in outcomes), outcomes[0].message


# ----------------------------------------------------------------------------------------------------
# Devices. This machine need not have one: memory stands for a device's, and Gloo for NCCL.


def test_without_cuda_it_is_said_that_devices_are_skipped() -> None:
    said: list[str] = []
    with silent(1, "", "") as bar:
        assert measure_devices(job_of(LocalCommunicator(), said), LocalCommunicator(), 0.1, bar) == {}
    assert said == ["device: skipped: copies from, to and between devices need CUDA, and this job measures the CPU"]


def _device_links(communicator: Communicator) -> dict[str, Any]:
    communicator.hosts = ("a", "a", "a", "b", "b")
    return device_links(job_of(communicator), communicator, 0.1)


def test_devices_of_all_nodes_exchange_within_their_node() -> None:
    everyone = run_ranks(_device_links, 5)
    assert all(found == everyone[0] for found in everyone)
    entry = everyone[0]["device to device"]
    pairs = {tuple(pair["ends"]): pair["round"] for pair in entry["pairs"]}
    assert set(pairs) == {("a:0", "a:1"), ("a:0", "a:2"), ("a:1", "a:2"), ("b:0", "b:1")}
    assert entry["rounds"] == 3
    assert pairs["b:0", "b:1"] == 1


def test_copies_count_their_bytes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "room_for_messages", lambda job: 1 << 20)
    found = host_copies(job_of(LocalCommunicator()), 0.1)
    assert set(found) == {"device from host", "device to host"}
    for entry in found.values():
        rates = [row["algorithm_bandwidth"] for row in entry["sizes"]]
        assert entry["value"] == pytest.approx(max(rates))
        for row in entry["sizes"]:
            assert row["algorithm_bandwidth"] == row["bytes"] / row["seconds"]
        assert entry["sizes"][0]["bytes"] == 8


def test_a_copy_that_lost_bytes_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "room_for_messages", lambda job: 1 << 10)
    monkeypatch.setattr(Tensor, "copy_", lambda self, other, non_blocking=False: self)
    with pytest.raises(WrongAnswerError, match=r"device from host, 8 bytes: rank 0 .* 2 of 2 elements copied"):
        host_copies(job_of(LocalCommunicator()), 0.1)
