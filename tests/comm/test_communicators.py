"""Communicators of every backend: each collective against NumPy, groups, two channels at once, lost members."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import threading
import time

import pytest
import torch
from collectives_reference import LENGTHS, TYPES, every_collective
from many_ranks import run_ranks, try_ranks

from hpcai500.comm.communicator import Communicator, LocalCommunicator

needs_horovod = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="no Horovod: make horovod")
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
WAYS = [
    pytest.param("torch", "processes", "Gloo", id="torch-gloo"),
    pytest.param("horovod", "mpirun", "Open MPI", id="horovod-mpi", marks=[needs_horovod, needs_mpi]),
    pytest.param("horovod", "horovodrun", "Gloo", id="horovod-gloo", marks=needs_horovod),
]
COMPARISONS = 6 * len(TYPES) * len(LENGTHS)


def everything(communicator: Communicator) -> dict[str, object]:
    """One start for many assertions."""
    return {
        "compared": every_collective(communicator),
        "in groups": _collectives_in_groups(communicator),
        "identity": (communicator.backend, communicator.library, communicator.rank, communicator.size),
        "hosts": communicator.hosts,
        "world_ranks": communicator.world_ranks,
        "overflow": _overflow(communicator),
        "bits": _rounded_sum(communicator),
        "objects": _objects(communicator),
        "groups": _groups(communicator),
        "channels": _two_channels(communicator),
        "empty": _empty(communicator),
    }


def _collectives_in_groups(communicator: Communicator) -> list[int]:
    """Of two and of three ranks, whose ranks in the group are not those in the job."""
    groups = [communicator.group(members) for members in ([1, 3], [1, 2, 3])]
    return [every_collective(group) for group in groups if group]


def _overflow(communicator: Communicator) -> list[float]:
    tensor = torch.tensor([60000.0, float("nan"), -60000.0, 1.0], dtype=torch.float16)
    communicator.all_reduce(tensor)
    return tensor.tolist()


def _rounded_sum(communicator: Communicator) -> list[bytes]:
    """A sum that must be rounded, as bytes: every rank has to have the same."""
    found = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = torch.randn(1001, generator=torch.Generator().manual_seed(communicator.rank)).to(dtype)
        communicator.all_reduce(tensor)
        found.append(tensor.view(torch.uint8).numpy().tobytes())
    return found


def _objects(communicator: Communicator) -> tuple[list[object], object]:
    mine = {"rank": communicator.rank, "text": "é" * (1 + 1000 * communicator.rank)}
    gathered = communicator.gather_objects(mine)
    communicator.barrier()
    return [(thing["rank"], len(thing["text"])) for thing in gathered], communicator.broadcast_object(
        mine if communicator.rank == 1 else None, root=1
    )["rank"]


def _groups(communicator: Communicator) -> dict[str, object]:
    """Halves, single members, and again the same halves; each talks while the others do."""
    found: dict[str, object] = {}
    half = communicator.size // 2
    for name, members in {
        "low": range(half),
        "high": range(half, communicator.size),
        "odd": range(1, communicator.size, 2),
        "low again": range(half),
        "last": [communicator.size - 1],
    }.items():
        group = communicator.group(members)
        if group is None:
            assert communicator.rank not in members
            continue
        tensor = torch.tensor([communicator.rank + 1])
        group.all_reduce(tensor)
        root = torch.tensor([communicator.rank])
        group.broadcast(root, group.size - 1)
        summed = torch.tensor([communicator.rank + 1])
        group.reduce(summed, 0)
        found[name] = (group.rank, group.world_ranks, int(tensor), int(root), int(summed) if group.rank == 0 else None)
        assert group.backend == communicator.backend
        assert len(group.hosts) == group.size
        assert group.gather_objects(communicator.rank) == list(members)
        group.close()
    return found


def _two_channels(communicator: Communicator) -> list[float]:
    """Two threads, one communicator each, at different speeds on different ranks."""
    groups = [communicator.group(range(communicator.size)) for _ in range(2)]
    results = [0.0, 0.0]

    def talk(index: int) -> None:
        group = groups[index]
        assert group is not None
        for turn in range(20):
            if (communicator.rank + index + turn) % 5 == 0:
                time.sleep(0.01)
            tensor = torch.full((100 + turn,), float(turn * (index + 1)))
            group.all_reduce(tensor)
            results[index] += float(tensor[-1])

    threads = [threading.Thread(target=talk, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _empty(communicator: Communicator) -> bool:
    tensor = torch.empty(0)
    communicator.all_reduce(tensor)
    communicator.reduce_scatter(tensor, torch.empty(0))
    communicator.all_gather(tensor, torch.empty(0))
    return communicator.gather_objects(None) == [None] * communicator.size


@pytest.mark.parametrize(("backend", "launcher", "library"), WAYS)
def test_every_backend_does_what_numpy_does(backend: str, launcher: str, library: str) -> None:
    size = 4
    results = run_ranks(everything, size, backend=backend, launcher=launcher, timeout=180)
    half = size // 2
    for rank, result in enumerate(results):
        assert result["compared"] == COMPARISONS
        assert result["in groups"] == [COMPARISONS] * {0: 0, 2: 1}.get(rank, 2)
        name, below, own_rank, own_size = result["identity"]
        assert (name, own_rank, own_size) == (backend, rank, size)
        assert below.startswith(library)
        assert result["hosts"] == (os.uname().nodename,) * size
        assert result["world_ranks"] == tuple(range(size))
        assert str(result["overflow"]) == str([float("inf"), float("nan"), float("-inf"), float(size)])
        assert result["bits"] == results[0]["bits"]
        assert result["objects"] == ([(r, 1 + 1000 * r) for r in range(size)], 1)
        assert result["channels"] == [190.0 * size, 380.0 * size]
        assert result["empty"]
        low, high = tuple(range(half)), tuple(range(half, size))
        mine, name = (low, "low") if rank < half else (high, "high")
        total = sum(mine) + len(mine)
        expected = (mine.index(rank), mine, total, mine[-1], total if rank == mine[0] else None)
        assert result["groups"][name] == expected
        assert ("low again" in result["groups"]) == (rank < half)
        assert ("last" in result["groups"]) == (rank == size - 1)
        assert ("odd" in result["groups"]) == (rank % 2 == 1)


def dies(communicator: Communicator) -> None:
    communicator.barrier()
    if communicator.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1000):
        communicator.all_reduce(torch.ones(1000))


def test_a_member_that_dies_ends_the_others_with_an_error() -> None:
    outcomes, _ = try_ranks(dies, 3, backend="torch")
    assert outcomes[1].error == "Dead"
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error == "CommunicationError"
        assert outcome.message.startswith("all-reduce over Gloo failed: ")
        assert outcome.message.endswith("; another rank has ended or cannot be reached")
        assert "\n" not in outcome.message
        assert outcome.seconds < 30


def test_one_process_is_a_communicator_too() -> None:
    communicator = LocalCommunicator()
    assert every_collective(communicator) == COMPARISONS
    assert communicator.gather_objects("it") == ["it"]
    group = communicator.group([0])
    assert group is not None
    assert (group.rank, group.size, group.hosts) == (0, 1, (os.uname().nodename,))
    assert communicator.group([]) is None
    communicator.close()


def leaves_early(communicator: Communicator) -> float:
    """Closing waits for nobody: not for a rank that is busy with something else."""
    communicator.barrier()
    if communicator.rank == 1:
        time.sleep(3)
    begin = time.monotonic()
    communicator.close()
    return time.monotonic() - begin


def test_closing_waits_for_nobody() -> None:
    assert max(run_ranks(leaves_early, 2)) < 2
