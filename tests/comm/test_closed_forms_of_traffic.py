"""What the models say of a topology against what the topologies themselves count, summed over ranks and buckets."""

from __future__ import annotations

import pytest
import torch
from reduction import settings
from thread_ranks import run_threads

from hpcai500.comm.codecs import Buffers, make_codec
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.topologies import make_topology
from hpcai500.methodology.roofline import BYTES_A_VALUE, Topology, gradient_bytes

# A whole number of int8's grains for each rank and each piece of a row.
VALUES = 6 * 6 * 4096


@pytest.mark.parametrize("hosts", ["aabb", "aabbcc", "ab", "aaa", "aaabbb"])
@pytest.mark.parametrize("compression", ["none", "fp16", "int8"])
@pytest.mark.parametrize(
    ("setting", "topology"),
    [
        ("flat", "ring"), ("hierarchical", "hierarchical"), ("torus", "torus"),
        ("parameter-server", "parameter-server"),
    ],
)  # fmt: skip
def test_the_closed_form_is_what_all_ranks_count(
    setting: str, topology: Topology, compression: str, hosts: str
) -> None:
    size = round(VALUES * BYTES_A_VALUE[compression])

    def count(communicator: Communicator) -> tuple[float, float]:
        table, buffers = settings(topology=setting, compression=compression), Buffers(torch.device("cpu"))
        made = make_topology(table, communicator, make_codec(compression, buffers, None, 1), buffers)
        # As many buckets as ranks: each of them serves once.
        found = [made.traffic(size, bucket) for bucket in range(communicator.size)]
        return sum(one.sent for one in found), sum(one.between_nodes for one in found)

    counted = run_threads(count, hosts)
    nodes, ranks = len(set(hosts)), len(hosts)
    closed = gradient_bytes(topology, VALUES, compression, nodes, ranks // nodes)
    assert sum(sent for sent, _ in counted) / ranks == pytest.approx(ranks * closed.rank, rel=1e-3)
    assert sum(between for _, between in counted) / ranks == pytest.approx(closed.node * nodes, rel=1e-3)
