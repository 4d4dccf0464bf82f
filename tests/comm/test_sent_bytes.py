"""Counted bytes against counts by hand: four ranks on two hosts, a buffer with a grain of int8 for each rank."""

from __future__ import annotations

import pytest
import torch
from reduction import settings
from thread_ranks import run_threads

from hpcai500.comm.codecs import Buffers, make_codec
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.topologies import make_topology

B = 4 * 4160


def counted(topology: str, compression: str, *, bucket: int = 0, size: int = B) -> list[tuple[int, int]]:
    """(sent, sent between nodes) of each rank."""

    def count(communicator: Communicator) -> tuple[int, int]:
        table, buffers = settings(topology=topology, compression=compression), Buffers(torch.device("cpu"))
        made = make_topology(table, communicator, make_codec(compression, buffers, None, 1), buffers)
        traffic = made.traffic(size, bucket)
        return round(traffic.sent), round(traffic.between_nodes)

    return run_threads(count, "aabb")


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_flat_is_a_ring(compression: str) -> None:
    # 2 (n - 1) / n; ranks 1 and 3 have their neighbour on the other host.
    each = B * 3 // 2
    assert counted("flat", compression) == [(each, 0), (each, each), (each, 0), (each, each)]


def test_hierarchical_sends_between_leaders_only() -> None:
    # A rank gives B to its leader; a leader 2 B (2 - 1) / 2 to the other one and B to its node.
    assert counted("hierarchical", "none") == [(2 * B, B), (B, 0), (2 * B, B), (B, 0)]


def test_a_torus_sends_a_share_of_each_rank_between_nodes() -> None:
    # In the row B / 2 twice, in the column 2 (B / 2) (2 - 1) / 2.
    assert counted("torus", "none") == [(B + B // 2, B // 2)] * 4


def test_a_parameter_server_sends_to_all() -> None:
    assert counted("parameter-server", "none", bucket=5) == [(B, 0), (3 * B, 2 * B), (B, B), (B, B)]


def test_int8_goes_directly_to_those_who_sum_and_around_a_ring_back() -> None:
    direct, ring = (B * 3 // 4, B // 2), B * 3 // 4
    assert counted("flat", "int8") == [
        (direct[0] + ring, direct[1]),
        (direct[0] + ring, direct[1] + ring),
        (direct[0] + ring, direct[1]),
        (direct[0] + ring, direct[1] + ring),
    ]


def test_int8_of_less_than_a_grain_a_rank_is_counted_with_its_padding() -> None:
    assert counted("flat", "int8", size=4160) == counted("flat", "int8")


def test_int8_reduces_by_pieces() -> None:
    # To a leader of two, B / 2 is sent each way by both; the rest is as without compression.
    assert counted("hierarchical", "int8") == [(B + B + B, B), (B, 0), (B + B + B, B), (B, 0)]


@pytest.mark.parametrize("topology", ["flat", "hierarchical", "torus"])
def test_all_ranks_together_send_at_least_what_an_average_needs(topology: str) -> None:
    # Each rank's values must leave it, and the average must come to all but one: 2 (n - 1) B in all.
    assert sum(sent for sent, _ in counted(topology, "none")) == 2 * 3 * B
