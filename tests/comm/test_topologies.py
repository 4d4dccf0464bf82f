"""Every topology sums every form of gradients over any ranks that it accepts, and counts the bytes that it sends.

The bytes are those that a hand counts, and those of the closed forms that predictions use.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from reduction import COMPRESSIONS, TOPOLOGIES, error_bound, gradients_of, settings
from thread_ranks import run_threads
from torch import Tensor

from hpcai500.comm.codecs import Buffers, make_codec
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.topologies import make_topology
from hpcai500.errors import RecipeError
from hpcai500.methodology.roofline import BYTES_A_VALUE, Topology, gradient_bytes

CPU = torch.device("cpu")


def average(communicator: Communicator, gradients: list[Tensor], buckets: int = 1, **changes: Any) -> Tensor:
    """The average of `gradients`, which travel `buckets` times: other servers serve, buffers are used again."""
    table, buffers = settings(**changes), Buffers(CPU)
    codec = make_codec(table.compression, buffers, None, 1)
    topology = make_topology(table, communicator, codec, buffers)
    unit = topology.pieces * codec.grain
    elements = -(-sum(map(len, gradients)) // unit) * unit
    for bucket in range(buckets):
        averages = [torch.empty_like(gradient) for gradient in gradients]
        packed = codec.pack(gradients, elements, scale=1 / communicator.size, bucket=bucket)
        assert packed.nbytes == codec.packed_bytes(elements)
        codec.unpack(topology.sum(packed, bucket), averages)
    return torch.cat(averages)


def check(hosts: list[str], lengths: list[int], seed: int, **changes: Any) -> None:
    def on_rank(communicator: Communicator) -> Tensor:
        return average(communicator, gradients_of(communicator.rank, lengths, seed), 2, **changes)

    results = run_threads(on_rank, hosts)
    assert all(torch.equal(result, results[0]) for result in results)
    everyones = torch.stack([torch.cat(gradients_of(rank, lengths, seed)) for rank in range(len(hosts))])
    error = (results[0].double() - everyones.double().mean(0)).abs()
    assert (error <= error_bound(everyones, changes["compression"])).all()


LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=4)
HOSTS = st.lists(st.sampled_from("abc"), min_size=2, max_size=8)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("topology", ["flat", "hierarchical", "parameter-server"])
@hypothesis_settings(max_examples=8)
@given(hosts=HOSTS, lengths=LENGTHS, seed=st.integers(0, 99))
def test_any_ranks_on_any_hosts_get_the_average(
    topology: str, compression: str, hosts: list[str], lengths: list[int], seed: int
) -> None:
    check(hosts, lengths, seed, topology=topology, compression=compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@hypothesis_settings(max_examples=10)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), lengths=LENGTHS, seed=st.integers(0, 99))
def test_any_full_torus_gets_the_average(
    compression: str, rows: int, columns: int, lengths: list[int], seed: int
) -> None:
    if rows * columns > 1:
        hosts = [f"host{row}" for row in range(rows) for _ in range(columns)]
        stated = columns if seed % 2 else 0
        check(hosts, lengths, seed, topology="torus", compression=compression, torus_columns=stated)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_twelve_ranks_on_three_hosts(topology: str, compression: str) -> None:
    check([host for host in "abc" for _ in range(4)], [5, 70000], 1, topology=topology, compression=compression)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_no_number_on_one_rank_is_none_on_all(topology: str, compression: str, value: float) -> None:
    def on_rank(communicator: Communicator) -> Tensor:
        gradient = torch.ones(5000)
        if communicator.rank == 2:
            gradient[4500] = value
        return average(communicator, [gradient], topology=topology, compression=compression)

    results = run_threads(on_rank, "aabb")
    assert not any(result[4500].isfinite() for result in results)
    assert all(result[:4000].isfinite().all() for result in results)


@pytest.mark.parametrize(
    ("hosts", "columns", "reason"),
    [
        ("aaaaaa", 4, r"6 ranks do not fill rows of 4: use one of 1, 2, 3, 6"),
        ("aaab", 0, "nodes have 1 or 3 ranks"),
        ("abab", 0, r"ranks of a node are not consecutive.*block"),
    ],
)
def test_a_torus_that_the_ranks_do_not_make_is_refused(hosts: str, columns: int, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        check(list(hosts), [1], 0, topology="torus", compression="none", torus_columns=columns)


def test_scattered_ranks_make_a_torus_whose_rows_are_stated() -> None:
    check(list("abab"), [9], 0, topology="torus", compression="none", torus_columns=2)


# ----------------------------------------------------------------------------------------------------
# Counted bytes.


def counted(topology: str, compression: str, hosts: str, size: int, buckets: range) -> list[tuple[float, float]]:
    """(sent, sent between nodes) of each rank, over these buckets."""

    def count(communicator: Communicator) -> tuple[float, float]:
        table, buffers = settings(topology=topology, compression=compression), Buffers(CPU)
        made = make_topology(table, communicator, make_codec(compression, buffers, None, 1), buffers)
        found = [made.traffic(size, bucket) for bucket in buckets]
        return sum(one.sent for one in found), sum(one.between_nodes for one in found)

    return run_threads(count, hosts)


# Bytes of a bucket with a grain of int8 for each of four ranks on two hosts.
B = 4 * 4160
# 2 (n - 1) / n; ranks 1 and 3 have their neighbour on the other host.
RING = B * 3 // 2
# int8 goes directly to those who sum, and around a ring back.
DIRECT = B * 3 // 4


@pytest.mark.parametrize(
    ("topology", "compression", "by_rank"),
    [
        *(("flat", name, [(RING, 0), (RING, RING)] * 2) for name in ("none", "fp16", "bf16")),
        ("flat", "int8", [(2 * DIRECT, B // 2), (2 * DIRECT, B // 2 + DIRECT)] * 2),
        # A rank gives B to its leader; a leader 2 B (2 - 1) / 2 to the other one and B to its node.
        ("hierarchical", "none", [(2 * B, B), (B, 0)] * 2),
        # To a leader of two, B / 2 is sent each way by both; the rest is as without compression.
        ("hierarchical", "int8", [(3 * B, B), (B, 0)] * 2),
        # In the row B / 2 twice, in the column 2 (B / 2) (2 - 1) / 2.
        ("torus", "none", [(B + B // 2, B // 2)] * 4),
        ("parameter-server", "none", [(B, 0), (3 * B, 2 * B), (B, B), (B, B)]),
    ],
)
def test_each_rank_sends_what_a_hand_counts(topology: str, compression: str, by_rank: list[tuple[int, int]]) -> None:
    # The server of bucket 5 is rank 1.
    assert counted(topology, compression, "aabb", B, range(5, 6)) == [pytest.approx(one) for one in by_rank]


def test_int8_of_less_than_a_grain_a_rank_is_counted_with_its_padding() -> None:
    assert counted("flat", "int8", "aabb", 4160, range(1)) == counted("flat", "int8", "aabb", B, range(1))


# A whole number of int8's grains for each rank and each piece of a row.
VALUES = 6 * 6 * 4096


@pytest.mark.parametrize("hosts", ["aabb", "aabbcc", "ab", "aaa", "aaabbb"])
@pytest.mark.parametrize("compression", ["none", "fp16", "int8"])
@pytest.mark.parametrize("topology", ["ring", "hierarchical", "torus", "parameter-server"])
def test_the_closed_form_is_what_all_ranks_count(topology: Topology, compression: str, hosts: str) -> None:
    nodes, ranks = len(set(hosts)), len(hosts)
    size = round(VALUES * BYTES_A_VALUE[compression])
    # As many buckets as ranks: each of them serves once.
    found = counted("flat" if topology == "ring" else topology, compression, hosts, size, range(ranks))
    closed = gradient_bytes(topology, VALUES, compression, nodes, ranks // nodes)
    assert sum(sent for sent, _ in found) / ranks == pytest.approx(ranks * closed.rank, rel=1e-3)
    assert sum(between for _, between in found) / ranks == pytest.approx(closed.node * nodes, rel=1e-3)
