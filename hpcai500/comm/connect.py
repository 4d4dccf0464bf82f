"""Connects the ranks of a job: the rendezvous at rank 0, and the recipe's communicator."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from hpcai500.comm.communicator import Communicator, LocalCommunicator, reason_of
from hpcai500.comm.horovod_backend import Horovod, open_horovod, switch_on, switches
from hpcai500.comm.torch_backend import open_torch
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.hosts import Placement, name_ranks
from hpcai500.layers import Recipe
from hpcai500.messages import allow_connections
from hpcai500.progress import QUIET_SECONDS, Waiting
from hpcai500.streams import say
from hpcai500.system.network import prefer_route

# ----------------------------------------------------------------------------------------------------
# The rendezvous: a TCP store that rank 0 serves.


# Rank 0 may have to make data or read an index before it listens.
PATIENCE_SECONDS = 1800.0
_ANSWER_SECONDS = 5.0
_STORE_TIMEOUT = timedelta(minutes=5)


def meet(placement: Placement, patience: float = PATIENCE_SECONDS) -> tuple[dist.Store, tuple[str, ...]]:
    """Wait for all ranks; returns the store that they share, and the host name of each rank.

    With several hosts, Gloo is configured to use the interface that connects them.

    Raises:
        EnvironmentLacksError: rank 0's address is unknown, or rank 0 cannot listen there.
        RunError: a rank did not connect, or two processes claim the same rank.
    """
    # Gloo connects each rank to each other one; rank 0 also serves the store and the monitor of ranks to all.
    allow_connections(3 * placement.size)
    host, port = _address(placement)
    own_address = root_address = ""
    is_first = placement.local_rank == 0
    if placement.rank == 0:
        store = _listen(host, port, placement)
    else:
        place = f"rank 0 at {host}:{port}"
        own_address, root_address = _wait_for_listener(host, port, Waiting(lambda: place, patience, is_first))
        store = _store(host, port)
    if store.add(f"seat {placement.rank}", 1) != 1:
        raise RunError(
            f"two processes of this job claim to be rank {placement.rank} of {placement.size}: give each its own RANK, "
            "or each job its own MASTER_PORT"
        )
    store.set(f"rank {placement.rank}", f"{socket.gethostname()} {root_address}")
    seats = [f"rank {rank}" for rank in range(placement.size)]
    waiting = Waiting(lambda: _missing(store, seats), patience, is_first)
    while not store.check(seats):
        waiting.pause()
    entries = [store.get(seat).decode().partition(" ") for seat in seats]
    hosts = tuple(name for name, _, _ in entries)
    prefer_route(own_address, [address for _, _, address in entries], placement.rank, hosts)
    return store, hosts


def _address(placement: Placement) -> tuple[str, int]:
    if placement.rendezvous is None:
        raise EnvironmentLacksError(
            "this job has several hosts, but the address of rank 0 is unknown: export MASTER_ADDR (its host) and "
            "MASTER_PORT on all of them, with Open MPI by `mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500`"
        )
    host, _, port = placement.rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int, placement: Placement) -> dist.Store:
    try:
        return _store(host, port, is_master=True, master_listen_fd=placement.listen_fd)
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"rank 0 cannot listen on port {port}: {reason_of(error)}; if another job uses it, export another "
            f"MASTER_PORT; if {host} is another host, correct MASTER_ADDR"
        ) from error


def _store(host: str, port: int, *, is_master: bool = False, master_listen_fd: int | None = None) -> dist.TCPStore:
    return dist.TCPStore(
        host,
        port,
        is_master=is_master,
        timeout=_STORE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=master_listen_fd,
    )


def _wait_for_listener(host: str, port: int, waiting: Waiting) -> tuple[str, str]:
    """Connect until rank 0 answers; returns the addresses of both ends, this one first.

    torch's own wait prints a warning each second and ignores signals.
    """
    while True:
        try:
            with socket.create_connection((host, port), _ANSWER_SECONDS) as stream:
                return str(stream.getsockname()[0]), str(stream.getpeername()[0])
        except OSError:
            waiting.pause()


def _missing(store: dist.Store, seats: list[str]) -> str:
    return name_ranks(rank for rank, seat in enumerate(seats) if not store.check([seat]))


# ----------------------------------------------------------------------------------------------------
# The communicator of all ranks, by the recipe's backend.


_OR_TORCH = "or use --set communication.backend=torch, which needs neither Horovod nor MPI"
_HOROVODRUN = "start it with `horovodrun --gloo -np N` or with mpirun"
# How to start a job so that the launcher and MPI work together.
_FIXES: Mapping[str, str] = {
    "srun": "start it with `srun --mpi=pmix`, or `--mpi=pmi2` for an MPI that was built for that (`srun --mpi=list` "
    "shows what this Slurm has)",
    "mpirun": "start it with the mpirun of the MPI that Horovod was built with",
    "torchrun": _HOROVODRUN,
    "hpcai500": _HOROVODRUN,
    "horovodrun": "build Horovod with Gloo (`make horovod`)",
}
# A process manager of MPI sets one of them in every process that it starts.
_PROCESS_MANAGERS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
# A stage's sends, or a sharded model's collectives over one dimension of its mesh, may still run on the device when the
# training thread starts a collective of another communicator.
# NCCL (2.26 and later) then runs both in the order in which the thread has started them, which is that of the program.
_IN_LAUNCH_ORDER = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}


def connect(recipe: Recipe, placement: Placement) -> Communicator:
    """The communicator of all ranks of this process's job.

    Environment variables that a library reads at its start are set for the whole process.

    Raises:
        EnvironmentLacksError: the backend is missing or cannot find the other ranks.
        RecipeError: the library does not have the recipe's algorithm.
        RunError: the ranks cannot be connected.
    """
    match recipe.communication.backend:
        case "torch":
            return _connect_torch(recipe, placement)
        case "horovod":
            return _connect_horovod(recipe, placement)
        case "local":
            return _connect_local(recipe, placement)


def _connect_local(recipe: Recipe, placement: Placement) -> Communicator:
    if (copies := placement.size) > 1:
        raise EnvironmentLacksError(
            f"{placement.launcher} started {copies} processes, but communication.backend is local: that would be "
            f"{copies} runs of one process each; start one process, or --set communication.backend=torch with matching "
            "hardware.nodes and hardware.accelerators_per_node"
        )
    switches(recipe.communication.algorithm, "none")
    return LocalCommunicator()


def _connect_torch(recipe: Recipe, placement: Placement) -> Communicator:
    device = recipe.accelerator.device
    switch_on(switches(recipe.communication.algorithm, "NCCL" if device == "cuda" else "Gloo"), os.environ)
    if placement.size == 1:
        return LocalCommunicator()
    if device == "cuda" and recipe.programming.ranks_per_replica > 1:
        needed_by = "programming.tensor_ranks" if recipe.is_sharded else "programming.stages"
        otherwise = "use programming.parallel_mode = data"
        switch_on(_IN_LAUNCH_ORDER, os.environ, needed_by=needed_by, otherwise=otherwise)
    store, hosts = meet(placement)
    return open_torch(store, placement.rank, hosts, device)


def _connect_horovod(recipe: Recipe, placement: Placement) -> Communicator:
    horovod = Horovod(recipe.accelerator.device)
    if recipe.accelerator.device == "cuda" and not horovod.takes_cuda_tensors:
        raise EnvironmentLacksError(
            "Horovod was built without GPU support: build it with `HOROVOD_GPU_OPERATIONS=NCCL make horovod` (it needs "
            f"the CUDA toolkit, and NCCL's headers in HOROVOD_NCCL_HOME), {_OR_TORCH}"
        )
    switch_on(switches(recipe.communication.algorithm, horovod.carrier), os.environ)
    _require_process_manager(horovod.has_mpi, placement)
    with _announced_if_slow(f"rank {placement.rank} waits for the other {placement.size - 1} ranks to start Horovod"):
        rank, size = horovod.start()
    if (rank, size) != (placement.rank, placement.size):
        horovod.stop()
        raise _not_connected(rank, size, placement)
    return open_horovod(horovod, rank, size)


def _require_process_manager(has_mpi: bool, placement: Placement) -> None:
    """Refuse to start MPI if srun started this process without a process manager: MPI would end the process."""
    if placement.launcher == "horovodrun" or placement.size == 1:
        return
    if not has_mpi:
        raise EnvironmentLacksError(
            f"{placement.launcher} started {placement.size} processes, but Horovod was built without MPI and would do "
            f"{placement.size} separate runs: start it with `horovodrun --gloo -np {placement.size}`, build it with "
            f"MPI (`make horovod` with mpicxx on PATH), {_OR_TORCH}"
        )
    if not any(name in os.environ for name in _PROCESS_MANAGERS):
        raise _not_connected(0, 1, placement)


def _not_connected(rank: int, size: int, placement: Placement) -> EnvironmentLacksError:
    return EnvironmentLacksError(
        f"{placement.launcher} says that this is rank {placement.rank} of {placement.size}, but for Horovod it is rank "
        f"{rank} of {size}: they are not connected, and this would be {placement.size} copies of one run; "
        f"{_FIXES.get(placement.launcher, _HOROVODRUN)}, {_OR_TORCH}"
    )


@contextmanager
def _announced_if_slow(line: str) -> Iterator[None]:
    """Print `line` on stderr if this context lasts more than ten seconds."""
    timer = threading.Timer(QUIET_SECONDS, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
