"""Real processes, real libraries: after 20 steps, many ranks have the weights that one process has.

Each start of processes goes through all topologies and compressions; the model has no batch statistics, so that shares
of a batch and the whole batch are the same mathematics.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from builders.needs import needs_horovod, needs_horovod_and_mpi
from builders.ranks import run_ranks
from reduction import COMPRESSIONS, TOPOLOGIES, settings
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.comm.communicator import Communicator, MemberCommunicator
from hpcai500.comm.reducer import Reducer
from hpcai500.workloads.models.normalisation import group_norm
from hpcai500.workloads.models.resnet import BasicBlock, ResNetStages

STEPS, BATCH, PASSES = 20, 8, 2
# Distance to the one-process weights, over the distance that training went. A ReLU or a maximum that tips over turns a
# rounding into ten times as much; an average that is wrong in any bucket is farther off than 0.3.
TOLERANCES = {"none": 1e-5, "fp16": 0.03, "bf16": 0.06, "int8": 0.06}
EVERY_PAIR = tuple(product(TOPOLOGIES, COMPRESSIONS))
# Our code is the same over every library: each topology and each compression once.
EACH_ONCE = tuple(zip(TOPOLOGIES, ("fp16", "int8", "none", "bf16"), strict=True))


class TinyResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = ResNetStages(BasicBlock, (1, 1), width=8, norm=group_norm)
        self.head = nn.Linear(16, 4)
        # As a detector has them on images without boxes.
        self.unused = nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.trunk.stages(images)[-1].mean((2, 3)))
        return scores


def model() -> TinyResNet:
    torch.manual_seed(0)
    return TinyResNet().to(memory_format=torch.channels_last)


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 3, 16, 16, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)


def optimizer_of(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4)


def weights_of(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def on_one() -> Tensor:
    network = model()
    optimizer = optimizer_of(network)
    for step in range(STEPS):
        images, labels = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return weights_of(network)


def on_rank(communicator: Communicator, hosts: tuple[str, ...], pairs: tuple[tuple[str, str], ...]) -> list[Tensor]:
    """Weights after training by each topology and compression, in two passes a step; ranks as if on `hosts`."""
    assert isinstance(communicator, MemberCommunicator)
    communicator.members = replace(communicator.members, hosts=hosts)
    communicator.hosts = hosts
    start, found = model(), []
    for topology, compression in pairs:
        table = settings(topology=topology, compression=compression, error_feedback=compression == "int8")
        found.append(train(copy.deepcopy(start), communicator, table))
    return found


def train(network: nn.Module, communicator: Communicator, table: Any) -> Tensor:
    optimizer = optimizer_of(network)
    reducer = Reducer(network.parameters(), communicator, table, bucket_bytes=16000)
    for step in range(STEPS):
        images, labels = batch(step)
        shares = range(communicator.rank, communicator.size * PASSES, communicator.size)
        optimizer.zero_grad()
        reducer.begin(step)
        for turn, share in enumerate(shares):
            mine = slice(share, None, communicator.size * PASSES)
            loss = F.cross_entropy(network(images[mine]), labels[mine]) / PASSES
            if turn < PASSES - 1:
                with reducer.accumulate():
                    loss.backward()
            else:
                loss.backward()
        (total,) = reducer.finish([loss.item()])
        assert total > 0
        optimizer.step()
    reducer.close()
    result = weights_of(network)
    digests = communicator.gather_objects(hashlib.sha256(result.numpy().tobytes()).hexdigest())
    assert len(set(digests)) == 1
    return result


# Starting Python with torch takes most of it.
pytestmark = pytest.mark.slow
TWO, FOUR = ("one", "two"), ("one", "one", "two", "two")


@pytest.mark.parametrize(
    ("backend", "launcher", "hosts", "pairs"),
    [
        ("torch", "processes", TWO, EACH_ONCE),
        ("torch", "processes", FOUR, EVERY_PAIR),
        pytest.param("horovod", "mpirun", FOUR, EACH_ONCE, marks=needs_horovod_and_mpi),
        pytest.param("horovod", "horovodrun", TWO, EACH_ONCE, marks=needs_horovod),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_many_ranks_end_where_one_process_does(
    backend: str, launcher: str, hosts: tuple[str, ...], pairs: tuple[tuple[str, str], ...]
) -> None:
    start, expected = weights_of(model()), on_one()
    way = (expected - start).norm()
    found = run_ranks(on_rank, len(hosts), hosts, pairs, backend=backend, launcher=launcher, timeout=300)[0]
    distances = {pair: float((weights - expected).norm() / way) for pair, weights in zip(pairs, found, strict=True)}
    assert {pair: distance for pair, distance in distances.items() if distance > TOLERANCES[pair[1]]} == {}
    # Compression was really there, and only where it was wanted.
    assert all((distance > TOLERANCES["none"]) == (pair[1] != "none") for pair, distance in distances.items())
