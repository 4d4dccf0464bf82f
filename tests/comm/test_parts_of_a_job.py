"""Parts of a job that sum at the same time, each by groups of its own: what stages of a cut model do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from many_ranks import run_ranks
from reduction import settings
from torch import nn

from hpcai500.comm.communicator import Communicator, MemberCommunicator
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.torch_backend import TorchCommunicator

PARTS = [[0, 2, 4], [1, 3, 5]]
# A node of two ranks and one of one: ranks of one part are in different numbers of groups.
HOSTS = ("one", "one", "two")


def sums_of_parts(communicator: Communicator) -> list[float]:
    """The average gradient in this rank's part by each topology; groups of the same ranks are made anew for each."""
    assert isinstance(communicator, TorchCommunicator)
    part = communicator.split(PARTS)
    assert isinstance(part, MemberCommunicator)
    part.members = replace(part.members, hosts=HOSTS)
    part.hosts = HOSTS
    return [average(part, communicator.rank, name) for name in ("hierarchical", "flat", "hierarchical", "torus")]


def average(part: Communicator, rank: int, topology: str) -> float:
    network = nn.Linear(1, 1, bias=False)
    table = settings(topology=topology, torus_columns=3) if topology == "torus" else settings(topology=topology)
    reducer = Reducer(network.parameters(), part, table, bucket_bytes=4096)
    reducer.begin(0)
    (network(torch.ones(1, 1)) * rank).sum().backward()
    reducer.finish([1.0])
    reducer.close()
    assert network.weight.grad is not None
    return network.weight.grad.item()


# Starting Python with torch takes most of it.
@pytest.mark.slow
def test_parts_of_a_job_sum_by_themselves_at_the_same_time() -> None:
    found = run_ranks(sums_of_parts, 6, backend="torch", launcher="processes", timeout=120)
    assert found == [[pytest.approx(2 + rank % 2)] * 4 for rank in range(6)]
