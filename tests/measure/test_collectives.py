"""Collectives of `hpcai500 micro` on real ranks: what is measured, by which means, and that wrong results are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch
from builders.needs import needs_horovod_and_mpi
from builders.ranks import run_ranks, try_ranks
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.errors import UsageError
from hpcai500.job_options import COLLECTIVES as WORDS
from hpcai500.measure.collectives import (
    COLLECTIVES,
    NETWORK,
    NODE,
    SYSTEM,
    measure_collective,
    message_sizes,
    moved,
    partitions,
    sum_of,
    summand,
)
from hpcai500.measure.micro import MeasuringJob
from hpcai500.methodology.communication import fit_ring
from hpcai500.progress import silent

CPU = torch.device("cpu")
ONE_HOST, TWO_HOSTS = ("a", "a"), ("a", "a", "b", "b")
SECONDS = 0.1


def job_of(communicator: Communicator) -> MeasuringJob:
    return MeasuringJob(communicator, CPU, 1, say=[].append)


def measured(word: str, communicator: Communicator, seconds: float = SECONDS) -> dict[str, Any]:
    with silent(1, "", "") as bar:
        return measure_collective(word, job_of(communicator), communicator, seconds, bar)


# ----------------------------------------------------------------------------------------------------
# Groups of ranks, sizes and numbers.


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (("a",), {}),
        (ONE_HOST, {NODE: [[0, 1]], SYSTEM: [[0, 1]]}),
        (("a", "b"), {SYSTEM: [[0, 1]]}),
        (TWO_HOSTS, {NODE: [[0, 1], [2, 3]], NETWORK: [[0, 2]], SYSTEM: [[0, 1, 2, 3]]}),
    ],
)
def test_ranks_of_a_node_of_each_node_and_all_communicate(hosts: Sequence[str], expected: object) -> None:
    assert partitions(hosts) == expected


def test_the_command_line_knows_every_collective() -> None:
    assert tuple(COLLECTIVES) == WORDS


def test_sizes_go_from_8_bytes_to_1_gib_where_memory_allows() -> None:
    assert message_sizes(1 << 30)[:3] == [8, 32, 128]
    assert message_sizes(1 << 30)[-2:] == [1 << 29, 1 << 30]
    assert message_sizes(100) == [8, 32]


@given(st.integers(1, 3000), st.sampled_from(WORDS))
def test_every_rank_has_an_equal_part_of_a_message_that_is_hardly_larger_than_asked_for(ranks: int, word: str) -> None:
    kind = COLLECTIVES[word]
    parts = ranks if kind.in_parts else 1
    elements = [kind.elements(size, ranks) for size in kind.sizes(ranks, 1 << 30)]
    assert elements == sorted(set(elements))
    for size, count in zip(kind.sizes(ranks, 1 << 30), elements, strict=True):
        assert count % parts == 0
        assert size <= 4 * count < size + 4 * parts


@given(st.integers(1, 5), st.integers(1, 40))
def test_sums_are_those_of_what_ranks_add(ranks: int, length: int) -> None:
    total, one = torch.zeros(length), torch.empty(length)
    for rank in range(ranks):
        summand(rank).fill(one)
        total += one
    assert sum_of(ranks).difference(total, "sums") is None
    half = length // 2
    if half:
        assert sum_of(ranks, half).difference(total[half:], "sums") is None


def test_numbers_of_messages_longer_than_a_piece_are_whole_and_those_of_every_rank_differ() -> None:
    length = (1 << 22) + 5
    first, second = torch.empty(length), torch.empty(length)
    moved([0]).fill(first)
    moved([7]).fill(second)
    assert torch.equal(first, (torch.arange(length) % 1_048_573 + 1).float())
    assert not (first == second).any()
    assert moved([0, 7]).difference(torch.cat([first, second]), "elements") is None
    wrong = moved([7, 0]).difference(torch.cat([first, second]), "elements")
    assert wrong is not None
    assert wrong.startswith(f"{2 * length} of {2 * length} elements, first element 0: 1.0, expected ")


# ----------------------------------------------------------------------------------------------------
# Real ranks.


def _places(communicator: Communicator, *places: tuple[str, ...]) -> list[dict[str, Any]]:
    """What is measured if hosts were named as in each of `places`."""
    found = []
    for hosts in places:
        communicator.hosts = hosts
        found.append(measured("allreduce", communicator))
    return found


def _link(entry: dict[str, Any]) -> dict[str, float] | None:
    """Of two ranks on a busy core, times may well not grow."""
    try:
        return asdict(fit_ring(entry["ranks"], [(row["bytes"], row["seconds"]) for row in entry["table"]]))
    except UsageError:
        return None


def test_ranks_of_nodes_sum_and_have_a_link() -> None:
    first, second, last = run_ranks(_places, 3, ("a", "a", "a"), ("a", "b", "c"), ("a", "a", "b"))
    assert first == second == last
    one_node, one_rank_each, mixed = first
    assert set(one_node) == {"allreduce node", "allreduce system"}
    assert one_node["allreduce node"] == one_node["allreduce system"]
    assert set(one_rank_each) == {"allreduce network", "allreduce system"}
    assert one_rank_each["allreduce network"] == one_rank_each["allreduce system"]
    assert [mixed[f"allreduce {where}"]["ranks"] for where in (NODE, NETWORK, SYSTEM)] == [2, 2, 3]
    for entry in mixed.values():
        assert entry["call"] == "Gloo"
        assert entry["value"] == max(row["bus_bandwidth"] for row in entry["table"])
        assert entry["link"] == _link(entry)


def _all_collectives(communicator: Communicator) -> dict[str, Any]:
    return {name: entry for word in COLLECTIVES for name, entry in measured(word, communicator).items()}


# PERFORMANCE.md of the NCCL tests, worked out by hand for four ranks.
FACTORS_OF_FOUR = {"allreduce": 1.5, "allgather": 0.75, "reducescatter": 0.75, "alltoall": 0.75, "broadcast": 1.0}


def _check(found: dict[str, Any], library: str, ranks: int, factors: dict[str, float]) -> None:
    for word, factor in factors.items():
        entry = found[f"{word} system"]
        assert (entry["call"].split()[0], entry["ranks"], entry["verified"]) == (library, ranks, True)
        assert entry["interval"][0] <= entry["value"] <= entry["interval"][1]
        assert entry["smallest_message_seconds"] == entry["table"][0]["seconds"]
        in_parts = word in {"allgather", "reducescatter", "alltoall"}
        assert entry["table"][0]["bytes"] == (4 * ranks if in_parts else 8)
        for row in entry["table"]:
            assert row["algorithm_bandwidth"] == row["bytes"] / row["seconds"]
            assert row["bus_bandwidth"] == pytest.approx(row["algorithm_bandwidth"] * factor)


def test_every_collective_of_gloo_is_measured_and_what_is_not_glooss_own_is_told() -> None:
    everyone = run_ranks(_all_collectives, 4)
    assert all(found == everyone[0] for found in everyone)
    _check(everyone[0], "Gloo", 4, FACTORS_OF_FOUR)
    instead = {word: everyone[0][f"{word} system"]["instead"] for word in COLLECTIVES}
    assert instead["broadcast"] is None
    assert instead["allgather"] == "a ring of its sends and receives"
    assert instead["alltoall"] == "its sends and receives, all at once"
    assert instead["reducescatter"] == "its sends and receives, all at once, then sums"
    # Summed in shared memory from 2^14 values on, if the time suffices for so many.
    for row in everyone[0]["allreduce system"]["table"]:
        assert row["instead"] == ("sums in memory that the ranks share" if row["bytes"] >= 1 << 16 else None)


@needs_horovod_and_mpi
@pytest.mark.parametrize(("launcher", "library"), [("mpirun", "Open"), ("horovodrun", "Gloo")])
def test_every_collective_of_horovod_is_measured(launcher: str, library: str) -> None:
    first, second = run_ranks(_all_collectives, 2, backend="horovod", launcher=launcher)
    assert first == second
    factors = {"allreduce": 1.0, "allgather": 0.5, "reducescatter": 0.5, "alltoall": 0.5, "broadcast": 1.0}
    _check(first, library, 2, factors)
    instead = {word: first[f"{word} system"]["instead"] for word in COLLECTIVES}
    assert instead.pop("reducescatter") == "an all-to-all, then sums"
    assert not any(instead.values())


# ----------------------------------------------------------------------------------------------------
# Communicators that lie.


def _spoil_last(*tensors: Tensor) -> None:
    tensors[-1][-1].add_(1)


def _swap_halves(*tensors: Tensor) -> None:
    target = tensors[-1]
    target.copy_(target.roll(len(target) // 2))


def _keep_old(*tensors: Tensor) -> None:
    """As if nothing had arrived."""
    tensors[-1].zero_()


SPOILERS: dict[str, Callable[..., None]] = {"last": _spoil_last, "swapped": _swap_halves, "lost": _keep_old}


def _lie(communicator: Communicator, wrong_rank: int, word: str, how: str) -> None:
    if wrong_rank == communicator.rank:
        make, method = communicator.group, COLLECTIVES[word].method

        def broken_group(members: Sequence[int]) -> Communicator | None:
            group = make(members)
            if group:
                real = getattr(group, method)

                def lie(*arguments: Any) -> None:
                    real(*arguments)
                    if (tensors := [one for one in arguments if isinstance(one, Tensor)])[-1].numel() > 1:
                        SPOILERS[how](*tensors)

                # Gloo's communicator builds other collectives and barriers of its own: those stay right.
                setattr(group, method, lie)
                group.barrier = lambda: real(torch.zeros(1)) if method == "all_reduce" else None  # type: ignore[method-assign]
            return group

        communicator.group = broken_group  # type: ignore[method-assign]
    measured(word, communicator)


@pytest.mark.parametrize(
    ("word", "how", "told"),
    [
        ("allreduce", "last", "1 of 2 sums by Gloo, first element 1"),
        ("allgather", "swapped", "2 of 2 elements gathered by Gloo, first element 0"),
        ("reducescatter", "last", "1 of 4 sums by Gloo, first element 3"),
        ("alltoall", "swapped", "2 of 2 elements moved by Gloo, first element 0"),
        ("broadcast", "lost", "2 of 2 elements broadcast by Gloo, first element 0"),
    ],
)
def test_a_wrong_result_is_told_by_all_ranks(word: str, how: str, told: str) -> None:
    outcomes, _ = try_ranks(_lie, 2, 1, word, how)
    assert {outcome.error for outcome in outcomes} == {"WrongAnswerError"}
    assert all("rank 1 on host" in outcome.message for outcome in outcomes)
    assert all(told in outcome.message for outcome in outcomes), outcomes[0].message
