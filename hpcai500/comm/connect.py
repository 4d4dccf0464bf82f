"""From a recipe and a place in the job to the communicator of all its ranks, or the reason why there is none."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hpcai500.comm.algorithms import switch_on, switches
from hpcai500.comm.base import Communicator
from hpcai500.comm.horovod_backend import open_horovod
from hpcai500.comm.horovod_library import Horovod
from hpcai500.comm.local import LocalCommunicator
from hpcai500.comm.rendezvous import meet
from hpcai500.comm.torch_backend import open_torch
from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Recipe
from hpcai500.placement import Placement
from hpcai500.streams import say

_QUIET_SECONDS = 10.0
_OR_TORCH = "or use --set communication.backend=torch, which needs neither Horovod nor MPI"
_HOROVODRUN = "start it with `horovodrun --gloo -np N` or with mpirun"
# How each launcher and an MPI come to know of each other.
_FIXES: Mapping[str, str] = {
    "srun": "start it with `srun --mpi=pmix`, or `--mpi=pmi2` for an MPI that was built for that (`srun --mpi=list` "
    "shows what this Slurm has)",
    "mpirun": "start it with the mpirun of the MPI that Horovod was built with",
    "torchrun": _HOROVODRUN,
    "hpcai500": _HOROVODRUN,
    "horovodrun": "build Horovod with Gloo (`make horovod`)",
}
# One of them is set for every process that a process manager of MPI has started.
_PROCESS_MANAGERS = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def connect(recipe: Recipe, placement: Placement) -> Communicator:
    """The communicator of all ranks of this process's job.

    Environment variables that a library reads at its start are set for the whole process.

    Raises:
        EnvironmentLacksError: the backend is not here or cannot find the other ranks; the message says the fix.
        RecipeError: the library below has no such algorithm.
        RunError: the ranks did not come together.
    """
    match recipe.communication.backend:
        case "torch":
            return _connect_torch(recipe, placement)
        case "horovod":
            return _connect_horovod(recipe, placement)
        case "local":
            return _connect_nobody(recipe, placement)


def _connect_nobody(recipe: Recipe, placement: Placement) -> Communicator:
    if (copies := placement.size) > 1:
        raise EnvironmentLacksError(
            f"{placement.launcher} started {copies} processes, but communication.backend is local: that would be "
            f"{copies} runs of one process each; start one process, or --set communication.backend=torch with as many "
            "hardware.nodes and hardware.accelerators_per_node"
        )
    switches(recipe.communication.algorithm, "none")
    return LocalCommunicator()


def _connect_torch(recipe: Recipe, placement: Placement) -> Communicator:
    device = recipe.accelerator.device
    switch_on(switches(recipe.communication.algorithm, "NCCL" if device == "cuda" else "Gloo"), os.environ)
    if placement.size == 1:
        return LocalCommunicator()
    store, hosts = meet(placement)
    return open_torch(store, placement.rank, hosts, device)


def _connect_horovod(recipe: Recipe, placement: Placement) -> Communicator:
    horovod = Horovod(recipe.accelerator.device)
    if recipe.accelerator.device == "cuda" and not horovod.takes_cuda_tensors:
        raise EnvironmentLacksError(
            "Horovod was built without GPUs: build it with `HOROVOD_GPU_OPERATIONS=NCCL make horovod` (it needs the "
            f"CUDA toolkit, and NCCL's headers, where HOROVOD_NCCL_HOME says), {_OR_TORCH}"
        )
    switch_on(switches(recipe.communication.algorithm, horovod.carrier), os.environ)
    _require_process_manager(horovod.has_mpi, placement)
    with _saying(f"rank {placement.rank} waits for the other {placement.size - 1} ranks to start Horovod"):
        rank, size = horovod.start()
    if (rank, size) != (placement.rank, placement.size):
        horovod.stop()
        raise _strangers(rank, size, placement)
    return open_horovod(horovod, rank, size)


def _require_process_manager(has_mpi: bool, placement: Placement) -> None:
    """MPI ends the process, with pages of text, where srun started it without a process manager."""
    if placement.launcher == "horovodrun" or placement.size == 1:
        return
    if not has_mpi:
        raise EnvironmentLacksError(
            f"{placement.launcher} started {placement.size} processes, but Horovod was built without MPI and would run "
            f"{placement.size} times alone: start it with `horovodrun --gloo -np {placement.size}`, build it with MPI "
            f"(`make horovod` where mpicxx is on PATH), {_OR_TORCH}"
        )
    if not any(name in os.environ for name in _PROCESS_MANAGERS):
        raise _strangers(0, 1, placement)


def _strangers(rank: int, size: int, placement: Placement) -> EnvironmentLacksError:
    return EnvironmentLacksError(
        f"{placement.launcher} says that this is rank {placement.rank} of {placement.size}, but for Horovod it is rank "
        f"{rank} of {size}: the two do not know each other, and this would be {placement.size} copies of one run; "
        f"{_FIXES.get(placement.launcher, _HOROVODRUN)}, {_OR_TORCH}"
    )


@contextmanager
def _saying(line: str) -> Iterator[None]:
    """Print `line` to stderr if this context lasts long."""
    speak = threading.Timer(_QUIET_SECONDS, say, (line,))
    speak.daemon = True
    speak.start()
    try:
        yield
    finally:
        speak.cancel()
