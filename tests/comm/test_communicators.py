"""Communicators of every backend: each collective against NumPy, groups, channels, algorithms, lost members.

Starting Python with torch takes longest, so each backend is started once, and each test looks at what came of it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import threading
import time
import typing
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.commands import ThreadsAtExit
from builders.needs import needs_horovod, needs_horovod_and_mpi, needs_mpi
from builders.ranks import run_ranks, start, try_ranks
from reduction import settings
from torch import Tensor, nn

from hpcai500.comm import torch_backend
from hpcai500.comm.communicator import Communicator, LocalCommunicator, MemberCommunicator, as_run_error
from hpcai500.comm.connect import connect
from hpcai500.comm.horovod_backend import Carrier, switch_on, switches
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.torch_backend import TorchCommunicator
from hpcai500.errors import RecipeError, RunError
from hpcai500.hosts import Placement
from hpcai500.layers import Communication
from hpcai500.recipe import load_recipe

needs_open_mpi = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None or shutil.which("ompi_info") is None, reason="no Horovod with Open MPI"
)


# ----------------------------------------------------------------------------------------------------
# Each collective against NumPy.


TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.float16, torch.bfloat16)
# Long enough for shared memory, too.
LENGTHS = (1, 301, 20_001)
COMPARISONS = 7 * len(TYPES) * len(LENGTHS)
GUARD = 3


def every_collective(communicator: Communicator) -> int:
    """Check all collectives on all types and lengths; returns how many results were compared.

    Raises:
        AssertionError: the first difference.
    """
    return sum(1 for _ in comparisons(communicator))


def comparisons(communicator: Communicator) -> Iterator[None]:
    rank, size = communicator.rank, communicator.size
    for dtype, length in product(TYPES, LENGTHS):
        mine, everyones = given(rank, dtype, length), [wide(given(one, dtype, length)) for one in range(size)]
        long, longs = given(rank, dtype, length * size), [wide(given(one, dtype, length * size)) for one in range(size)]
        root = size - 1

        def same(got: Tensor, expected: Any, what: str) -> None:
            # bfloat16 has 8 bits: each of at most size - 1 additions rounds by half a unit in the last place of 512.
            tolerance = 2.0 * (size - 1) if got.dtype is torch.bfloat16 and "reduce" in what else 0.0
            where = f"{what} of {expected.size} {got.dtype} on rank {rank} of {size}"
            np.testing.assert_allclose(wide(got), expected, rtol=0, atol=tolerance, err_msg=where)
            unharmed(got)

        communicator.all_reduce(tensor := guarded(mine))
        yield same(tensor, total(everyones), "all_reduce")
        communicator.reduce(tensor := guarded(mine), root)
        yield same(tensor, total(everyones), "reduce") if rank == root else unharmed(tensor)
        communicator.broadcast(tensor := guarded(mine), root)
        yield same(tensor, everyones[root], "broadcast")
        communicator.reduce_scatter(long, tensor := guarded(torch.zeros(length, dtype=dtype)))
        yield same(tensor, np.split(total(longs), size)[rank], "reduce_scatter")
        communicator.all_gather(mine, tensor := guarded(torch.zeros(length * size, dtype=dtype)))
        yield same(tensor, np.concatenate(everyones), "all_gather")
        communicator.all_to_all(long, tensor := guarded(torch.zeros(length * size, dtype=dtype)))
        yield same(tensor, np.concatenate([np.split(one, size)[rank] for one in longs]), "all_to_all")
        # Neighbours in pairs; of an odd number, the last is alone.
        peer = rank ^ 1 if rank ^ 1 < size else rank
        here = length if peer != rank else 0
        communicator.exchange(mine[:here], tensor := guarded(torch.zeros(here, dtype=dtype)), peer)
        yield same(tensor, everyones[peer][:here], "exchange")


def given(rank: int, dtype: torch.dtype, length: int) -> Tensor:
    """What `rank` brings: exact in every type, so large in uint8 that sums wrap round, signed where there are signs."""
    values = np.random.default_rng(1000 * rank + length).integers(0, 256, length)
    return torch.from_numpy(values - (128 if dtype is not torch.uint8 else 0)).to(dtype)


def wide(tensor: Tensor) -> Any:
    """The same numbers in a type of NumPy: it has no bfloat16."""
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def total(parts: list[Any]) -> Any:
    """Sums of small whole numbers are exact in any order, but for bfloat16 beyond 256 and what wraps round in uint8."""
    return np.stack(parts).sum(axis=0, dtype=parts[0].dtype)


def guarded(tensor: Tensor) -> Tensor:
    """The same numbers inside a larger piece of memory, as a bucket's part is."""
    room = torch.full((tensor.numel() + 2 * GUARD,), 99, dtype=tensor.dtype)
    room[GUARD:-GUARD] = tensor
    return room[GUARD:-GUARD]


def unharmed(tensor: Tensor) -> None:
    """Nothing was written beside it."""
    room = tensor._base
    assert room is not None
    assert torch.equal(room[:GUARD], torch.full_like(room[:GUARD], 99))
    assert torch.equal(room[-GUARD:], torch.full_like(room[-GUARD:], 99))


# ----------------------------------------------------------------------------------------------------
# Real ranks of each backend.


WAYS = [
    pytest.param(("torch", "processes", "Gloo", 6), id="torch-gloo"),
    pytest.param(("horovod", "mpirun", "Open MPI", 4), id="horovod-mpi", marks=needs_horovod_and_mpi),
    pytest.param(("horovod", "horovodrun", "Gloo", 4), id="horovod-gloo", marks=needs_horovod),
]
# Whoever holds a communicator does not hold its threads.
KEPT: list[object] = []


def everything(communicator: Communicator, folder: Path) -> dict[str, Any]:
    """One start for many assertions."""
    found: dict[str, Any] = {
        "compared": every_collective(communicator),
        "in groups": collectives_in_groups(communicator),
        "identity": (communicator.backend, communicator.library, communicator.rank, communicator.size),
        "hosts": communicator.hosts,
        "world_ranks": communicator.world_ranks,
        "overflow": overflow(communicator),
        "bits": rounded_sums(communicator),
        "objects": objects(communicator),
        "groups": halves_and_others(communicator),
        "channels": two_channels(communicator),
        "empty": empty(communicator),
    }
    if isinstance(communicator, TorchCommunicator):
        found["parts"] = sums_of_parts(communicator)
        found["after closing"] = sum_after_closing(communicator)
    # Closing waits for nobody: rank 0 is gone before the others begin to go.
    if communicator.rank == 0:
        communicator.close()
        (folder / "rank 0 has closed").touch()
    else:
        deadline = time.monotonic() + 120
        while not (folder / "rank 0 has closed").exists():
            assert time.monotonic() < deadline, "rank 0 does not come back from closing"
            time.sleep(0.01)
    return found


def collectives_in_groups(communicator: Communicator) -> list[int]:
    """Of two and of three ranks, whose ranks in the group are not those in the job."""
    groups = [communicator.group(members) for members in ([1, 3], [1, 2, 3])]
    KEPT.extend(groups)
    return [every_collective(group) for group in groups if group]


def overflow(communicator: Communicator) -> list[float]:
    tensor = torch.tensor([60000.0, float("nan"), -60000.0, 1.0], dtype=torch.float16)
    communicator.all_reduce(tensor)
    return tensor.tolist()


def rounded_sums(communicator: Communicator) -> list[bytes]:
    """Sums that must be rounded, as bytes: every rank has to have the same."""
    found = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = torch.randn(1001, generator=torch.Generator().manual_seed(communicator.rank)).to(dtype)
        communicator.all_reduce(tensor)
        found.append(tensor.view(torch.uint8).numpy().tobytes())
    return found


def objects(communicator: Communicator) -> tuple[list[object], object]:
    mine = {"rank": communicator.rank, "text": "é" * (1 + 1000 * communicator.rank)}
    gathered = [(thing["rank"], len(thing["text"])) for thing in communicator.gather_objects(mine)]
    communicator.barrier()
    return gathered, communicator.broadcast_object(mine if communicator.rank == 1 else None, root=1)["rank"]


def halves_and_others(communicator: Communicator) -> dict[str, object]:
    """Halves, single members, and again the same halves; each talks while the others do."""
    found: dict[str, object] = {}
    rank, half = communicator.rank, communicator.size // 2
    for name, members in {
        "low": range(half),
        "high": range(half, communicator.size),
        "odd": range(1, communicator.size, 2),
        "low again": range(half),
        "last": [communicator.size - 1],
    }.items():
        group = communicator.group(members)
        assert (group is None) == (rank not in members)
        if group is None:
            continue
        summed, root, reduced = torch.tensor([rank + 1]), torch.tensor([rank]), torch.tensor([rank + 1])
        group.all_reduce(summed)
        group.broadcast(root, group.size - 1)
        group.reduce(reduced, 0)
        alone = int(reduced) if group.rank == 0 else None
        found[name] = group.rank, group.world_ranks, int(summed), int(root), alone
        assert group.backend == communicator.backend
        assert len(group.hosts) == group.size
        assert group.gather_objects(rank) == list(members)
        group.close()
    return found


def two_channels(communicator: Communicator) -> list[float]:
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


def empty(communicator: Communicator) -> bool:
    tensor = torch.empty(0)
    communicator.all_reduce(tensor)
    communicator.reduce_scatter(tensor, torch.empty(0))
    communicator.all_gather(tensor, torch.empty(0))
    return communicator.gather_objects(None) == [None] * communicator.size


def sums_of_parts(communicator: TorchCommunicator) -> list[float]:
    """The average gradient in this rank's half of the job by each topology, as in stages of a cut model.

    Groups of the same ranks are made anew for each. A node has two ranks and the other one, so that ranks of one part
    are in different numbers of groups.
    """
    part = communicator.split([[0, 2, 4], [1, 3, 5]])
    KEPT.append(part)
    assert isinstance(part, MemberCommunicator)
    part.hosts = ("one", "one", "two")
    part.members = replace(part.members, hosts=part.hosts)
    found = []
    for topology in ("hierarchical", "flat", "hierarchical", "torus"):
        network = nn.Linear(1, 1, bias=False)
        table = settings(topology=topology, torus_columns=3 if topology == "torus" else 0)
        reducer = Reducer(network.parameters(), part, table, bucket_bytes=4096)
        reducer.begin(0)
        (network(torch.ones(1, 1)) * communicator.rank).sum().backward()
        reducer.finish([1.0])
        reducer.close()
        found.append(network.weight.grad.item())
    return found


def sum_after_closing(communicator: TorchCommunicator) -> str:
    """What was closed does not speak for the whole job."""
    group = communicator.group([0, 1])
    if group is None:
        return ""
    group.close()
    with pytest.raises(AssertionError) as caught:
        group.all_reduce(torch.ones(1))
    return str(caught.value)


class Job:
    """What became of the ranks of one way."""

    def __init__(self, way: tuple[str, str, str, int], folder: Path) -> None:
        self.backend, launcher, self.library, self.size = way
        self.at_exit = ThreadsAtExit(folder / "at-exit")
        self.results = run_ranks(
            everything,
            self.size,
            folder,
            backend=self.backend,
            launcher=launcher,
            environment=self.at_exit.environment,
            timeout=300,
        )


@pytest.fixture(scope="module", params=WAYS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(request.param, tmp_path_factory.mktemp("job"))


def test_every_collective_does_what_numpy_does_in_the_job_and_in_groups(job: Job) -> None:
    for rank, result in enumerate(job.results):
        assert result["compared"] == COMPARISONS
        assert result["in groups"] == [COMPARISONS] * ((rank in (1, 3)) + (rank in (1, 2, 3)))
        assert str(result["overflow"]) == str([float("inf"), float("nan"), float("-inf"), float(job.size)])
        assert result["bits"] == job.results[0]["bits"]
        assert result["objects"] == ([(one, 1 + 1000 * one) for one in range(job.size)], 1)
        assert result["channels"] == [190.0 * job.size, 380.0 * job.size]
        assert result["empty"]


def sum_with_memory_in(communicator: Communicator, folders: list[Path]) -> tuple[bool, list[float]]:
    """Whether sums go through shared memory where each rank looks for it in its folder, and some of a sum."""
    assert isinstance(communicator, TorchCommunicator)
    torch_backend.SHARED_MEMORY = folders[communicator.rank]
    communicator.all_reduce(tensor := torch.arange(torch_backend.LEAST_SHARED_VALUES, dtype=torch.float32))
    return communicator._sums is not None, tensor[:3].tolist()


@pytest.mark.parametrize(
    ("of_ranks", "shared"),
    [
        (("", ""), True),
        (("", "nowhere"), False),
        # Where nothing can be made, the attempt to remove it fails, too, as on a read-only file system.
        (("/dev/null", "/dev/null"), False),
    ],
)
def test_without_memory_for_all_ranks_of_a_host_the_library_sums(
    of_ranks: tuple[str, str], shared: bool, tmp_path: Path
) -> None:
    found = run_ranks(sum_with_memory_in, 2, [tmp_path / name for name in of_ranks])
    assert found == [(shared, [0.0, 2.0, 4.0])] * 2
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_ranks_know_who_they_are_in_the_job_and_in_groups(job: Job) -> None:
    low, high = tuple(range(job.size // 2)), tuple(range(job.size // 2, job.size))
    for rank, result in enumerate(job.results):
        backend, library, own_rank, own_size = result["identity"]
        assert (backend, own_rank, own_size) == (job.backend, rank, job.size)
        assert library.startswith(job.library)
        assert result["hosts"] == (os.uname().nodename,) * job.size
        assert result["world_ranks"] == tuple(range(job.size))
        mine, name = (low, "low") if rank in low else (high, "high")
        summed = sum(mine) + len(mine)
        expected = (mine.index(rank), mine, summed, mine[-1], summed if rank == mine[0] else None)
        assert result["groups"][name] == expected
        assert ("low again" in result["groups"]) == (rank in low)
        assert ("last" in result["groups"]) == (rank == job.size - 1)
        assert ("odd" in result["groups"]) == (rank % 2 == 1)


@pytest.mark.parametrize("job", WAYS[:1], indirect=True)
def test_parts_of_a_job_sum_by_themselves_at_the_same_time_and_leave_no_threads(job: Job) -> None:
    """A thread of Gloo that frees a tensor at Python's end aborts the rank."""
    assert [result["parts"] for result in job.results] == [[pytest.approx(2 + rank % 2)] * 4 for rank in range(6)]
    closed = "all-reduce on a communicator that was closed"
    assert [closed in result["after closing"] for result in job.results] == [True, True, *[False] * 4]
    assert job.at_exit.counts == [0] * 6


def hold_a_group(communicator: TorchCommunicator) -> None:
    communicator.all_reduce(torch.ones(1))
    KEPT.append(communicator.process_group)


def test_the_threads_of_a_group_that_is_held_are_seen_here(tmp_path: Path) -> None:
    at_exit = ThreadsAtExit(tmp_path / "at-exit")
    run_ranks(hold_a_group, 2, environment=at_exit.environment, timeout=300)
    assert min(at_exit.counts) > 0


def dies(communicator: Communicator) -> None:
    communicator.barrier()
    if communicator.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1000):
        communicator.all_reduce(torch.ones(1000))


def test_a_member_that_dies_ends_the_others_with_an_error() -> None:
    outcomes, _ = try_ranks(dies, 3, backend="torch", timeout=300)
    assert outcomes[1].error == "Dead"
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error == "CommunicationError"
        assert outcome.message.startswith("all-reduce over Gloo failed: ")
        assert outcome.message.endswith("; another rank has ended or cannot be reached")
        assert "\n" not in outcome.message
        # Because a member died, and not because a wait of theirs, or the test's own, was over.
        assert outcome.seconds < 300 / 2


def test_one_process_is_a_communicator_too() -> None:
    communicator = LocalCommunicator()
    assert every_collective(communicator) == COMPARISONS
    assert communicator.gather_objects("it") == ["it"]
    group = communicator.group([0])
    assert group is not None
    assert (group.rank, group.size, group.hosts) == (0, 1, (os.uname().nodename,))
    assert communicator.group([]) is None
    communicator.close()


@pytest.mark.parametrize(
    ("thrown", "told"),
    [
        (
            "[/__w/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:20100."
            " This is typically caused by a remote worker crashing. Check the logs.",
            "Connection closed by peer [127.0.0.1]:20100",
        ),
        (
            "Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:152] timed out, remote=[::1]:19845",
            "Gloo connectFullMesh failed with timed out, remote=[::1]:19845",
        ),
        (
            "NCCL error in: ProcessGroupNCCL.cpp:3353\nframe #0: c10\nframe #1: c10d",
            "NCCL error in: ProcessGroupNCCL.cpp:3353",
        ),
        ("", "RuntimeError"),
    ],
)
def test_a_library_error_is_one_line_without_source_and_stack_and_others_pass(thrown: str, told: str) -> None:
    with pytest.raises(RunError) as raised, as_run_error("Gloo", "all-reduce"):
        raise RuntimeError(thrown)
    expected = f"all-reduce over Gloo failed: {told}; another rank has ended or cannot be reached"
    assert str(raised.value) == expected
    with pytest.raises(ZeroDivisionError), as_run_error("Gloo", "all-reduce"):
        raise ZeroDivisionError


# ----------------------------------------------------------------------------------------------------
# The recipe's all-reduce algorithm reaches the library, and is refused where the library has no switch for it.


ALGORITHMS = typing.get_args(Communication.model_fields["algorithm"].annotation)
CARRIERS = typing.get_args(Carrier)
# V2.0 Table 7, and who has a switch for what: a change here is a change of the table in docs/communication.md.
KNOWN = {
    "Gloo": {"ring"},
    "NCCL": {"ring", "double-binary-tree"},
    "NCCL of Horovod": {"ring", "double-binary-tree", "hierarchical-ring"},
    "NCCL before 2.24": set(),
    "Open MPI": {"ring", "butterfly"},
    "MPI": set(),
    "none": set(),
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_library_uses_what_it_has_and_refuses_the_rest(carrier: Carrier, algorithm: str) -> None:
    if algorithm in KNOWN[carrier]:
        switches(algorithm, carrier)
    elif algorithm == "default":
        assert switches(algorithm, carrier) == {}
    else:
        with pytest.raises(RecipeError) as raised:
            switches(algorithm, carrier)
        message = str(raised.value)
        assert message.startswith(f"communication.algorithm: `{algorithm}` is not available: ")
        assert all(known in message for known in KNOWN[carrier])


def test_nccl_is_told_of_all_reduce_alone() -> None:
    """NCCL_ALGO=Tree for everything would leave it no way to do an all-gather."""
    assert switches("double-binary-tree", "NCCL") == {"NCCL_ALGO": "allreduce:tree"}


def test_a_users_own_switch_is_never_overruled() -> None:
    wanted = switches("ring", "NCCL")
    environment = {"NCCL_ALGO": "Tree", "HOME": "/"}
    with pytest.raises(RecipeError, match=r"needs NCCL_ALGO=allreduce:ring, but .* has NCCL_ALGO=Tree: unset it"):
        switch_on(wanted, environment)
    switch_on({}, environment)
    assert environment == {"NCCL_ALGO": "Tree", "HOME": "/"}
    agreeing = dict(wanted)
    switch_on(wanted, agreeing)
    assert agreeing == wanted


def test_one_process_has_no_algorithm() -> None:
    recipe = load_recipe("ic/smoke", ["communication.algorithm=ring"])
    with pytest.raises(RecipeError, match=r"`ring` is not available: one process has no all-reduce"):
        connect(recipe, Placement(0, 1, 0, 1, "none", None, None))


def rounded_sum(communicator: Communicator) -> Tensor:
    """A sum whose last bits tell in which order it was made."""
    tensor = share(communicator.rank)
    communicator.all_reduce(tensor)
    return tensor


def share(rank: int) -> Tensor:
    """What one rank adds. Long enough that no library falls back to what it does with short messages."""
    return torch.randn(1 << 16, generator=torch.Generator().manual_seed(rank))


def ring_sum(size: int) -> Tensor:
    """Piece p starts with rank p and goes round: (x_p + x_(p+1)) + x_(p+2) ..."""
    pieces = []
    for piece in range(size):
        first, *others = [share((piece + step) % size).chunk(size)[piece] for step in range(size)]
        pieces.append(sum(others, start=first))
    return torch.cat(pieces)


def butterfly_sum() -> Tensor:
    """Four ranks: pairs, then pairs of pairs."""
    return (share(0) + share(1)) + (share(2) + share(3))


@needs_open_mpi
def test_open_mpi_adds_in_the_order_of_the_algorithm() -> None:
    ring, butterfly = (
        run_ranks(rounded_sum, 4, backend="horovod", launcher="mpirun", overrides=[f"communication.algorithm={name}"])
        for name in ("ring", "butterfly")
    )
    assert all(torch.equal(result, butterfly_sum()) for result in butterfly)
    assert all(torch.equal(result, ring_sum(4)) for result in ring)
    assert not torch.equal(ring_sum(4), butterfly_sum())


@needs_open_mpi
def test_a_conflict_ends_every_rank_before_the_library_starts() -> None:
    outcomes, _ = try_ranks(
        rounded_sum,
        2,
        backend="horovod",
        launcher="mpirun",
        overrides=["communication.algorithm=ring"],
        environment={"OMPI_MCA_coll_tuned_allreduce_algorithm": "3"},
    )
    assert "RecipeError" in {outcome.error for outcome in outcomes}
    for outcome in outcomes:
        # mpirun ends the others as soon as the first has failed.
        assert outcome.error == "Dead" or "environment has OMPI_MCA_coll_tuned_allreduce_algorithm=3" in outcome.message


# ----------------------------------------------------------------------------------------------------
# many_ranks itself: a test that hangs ends in time, tells what its ranks said, and leaves nothing behind.


def running(word: str) -> list[str]:
    """Processes whose command line holds `word`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in words:
            found.append(process.name)
    return found


@pytest.mark.parametrize("launcher", ["processes", pytest.param("mpirun", marks=needs_mpi)])
def test_ranks_that_hang_are_killed_with_their_children(launcher: str) -> None:
    word = uuid.uuid4().hex
    child = f"[sys.executable, '-c', 'import time; time.sleep(100)', '{word}']"
    code = f"import subprocess, sys; print('here I am', flush=True); subprocess.run({child}, start_new_session=True)"
    with pytest.raises(AssertionError, match=r"not at an end after 5 s:(.|\n)*here I am"):
        start([sys.executable, "-c", code], 2, launcher, timeout=5)
    assert running(word) == []


def test_exit_codes_and_output_are_those_of_the_ranks() -> None:
    # One write each: unbuffered, `print` makes several, and both ranks share the pipe.
    code = "import os, sys; rank = os.environ['RANK']; sys.stdout.write(f'rank {rank}\\n'); sys.exit(int(rank) * 3)"
    ended = start([sys.executable, "-c", code], 2, "processes")
    assert ended.exit_codes == [0, 3]
    assert sorted(ended.output.split("\n")) == ["", "rank 0", "rank 1"]
