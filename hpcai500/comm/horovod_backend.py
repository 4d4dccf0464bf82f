"""The backend `horovod`: Horovod over MPI or Gloo on CPUs, NCCL on GPUs; and switches of all-reduce algorithms."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import itertools
import os
import socket
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from hpcai500.comm.communicator import (
    Communicator,
    LocalCommunicator,
    MemberCommunicator,
    Members,
    Scratch,
    all_reduce_by_exchange,
    as_run_error,
    reason_of,
    reduce_scatter_by_exchange,
    sum_of_own_part,
)
from hpcai500.errors import EnvironmentLacksError, RecipeError
from hpcai500.system.mpi import short_name

# ----------------------------------------------------------------------------------------------------
# The recipe's all-reduce algorithm (V2.0 Table 7) as switches of the library, for both backends.
#
# docs/communication.md has the table for users.


Carrier = Literal["Gloo", "NCCL", "NCCL of Horovod", "NCCL before 2.24", "Open MPI", "MPI", "none"]
"""The library that executes an all-reduce, by its set of algorithms. `MPI` is any but Open MPI."""

# Open MPI has several all-reduces for one communicator, and the highest priority wins. Those with a higher priority
# than `tuned` (han since version 5, hcoll and ucc of network vendors) are disabled, so that its switch has an effect.
_TUNED = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_han_priority": "0",
    "OMPI_MCA_coll_hcoll_enable": "0",
    "OMPI_MCA_coll_ucc_enable": "0",
}
# For all-reduce only, because NCCL has no tree for other collectives and would fail. This syntax needs NCCL 2.24.
_NCCL = {"ring": {"NCCL_ALGO": "allreduce:ring"}, "double-binary-tree": {"NCCL_ALGO": "allreduce:tree"}}
# The switches of each carrier. An empty dictionary: it always uses that algorithm.
_SWITCHES: Mapping[Carrier, Mapping[str, Mapping[str, str]]] = {
    "Gloo": {"ring": {}},
    "NCCL": _NCCL,
    "NCCL of Horovod": _NCCL | {"hierarchical-ring": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}},
    "NCCL before 2.24": {},
    "Open MPI": {
        "butterfly": _TUNED | {"OMPI_MCA_coll_tuned_allreduce_algorithm": "3"},
        "ring": _TUNED | {"OMPI_MCA_coll_tuned_allreduce_algorithm": "4"},
    },
    "MPI": {},
    "none": {},
}


def switches(algorithm: str, carrier: Carrier) -> Mapping[str, str]:
    """Environment variables that make `carrier` use `algorithm`; set them before the library starts.

    Raises:
        RecipeError: it has no switch for that.
    """
    if algorithm == "default":
        return {}
    known = _SWITCHES[carrier]
    if algorithm not in known:
        who = "one process has no all-reduce" if carrier == "none" else f"{carrier} has no switch for it"
        raise RecipeError(
            f"communication.algorithm: `{algorithm}` is not available: {who}; choose "
            f"{' or '.join(['default', *known])}, or another communication.backend (see docs/communication.md)"
        )
    return known[algorithm]


def switch_on(
    variables: Mapping[str, str],
    environment: MutableMapping[str, str],
    *,
    needed_by: str = "communication.algorithm",
    otherwise: str = "use communication.algorithm = default, which leaves the choice to the environment",
) -> None:
    """Set `variables` in `environment`, which a setting of the recipe needs.

    Raises:
        RecipeError: one has another value, so that the library would not do what the recipe says.
    """
    for name, value in variables.items():
        present = environment.get(name, value)
        if present != value:
            raise RecipeError(
                f"{needed_by} needs {name}={value}, but the environment has {name}={present}: unset it, or {otherwise}"
            )
    environment.update(variables)


# ----------------------------------------------------------------------------------------------------
# Horovod itself: whether it is installed, which library it uses, and its calls on given output tensors.


# Gloo's default is 30 s, but rank 0 may have to make data first. The monitor detects lost ranks.
_GLOO_TIMEOUT_SECONDS = "1800"
_LEAVE_SECONDS = 10.0
_LONGEST_VERSION = 8192


class Horovod:
    """Horovod 0.28.1, loaded but not started; gradients are on `device`, `cpu` or `cuda`.

    The calls on given output tensors are undocumented, because the documented ones allocate a new output each time. No
    later release will change them.

    Raises:
        EnvironmentLacksError: it is not installed, or was built for another torch.
    """

    def __init__(self, device: str) -> None:
        try:
            self._ops: Any = importlib.import_module("horovod.torch.mpi_ops")
        except (ImportError, OSError) as error:
            raise EnvironmentLacksError(_why_not(error)) from error
        self._basics = self._ops._basics
        self._device = device

    @property
    def carrier(self) -> Carrier:
        """The library that executes all-reduces of gradients; known before the start."""
        if self._device == "cuda" and self._nccl_version() > (0, 0):
            return "NCCL of Horovod" if self._nccl_version() >= (2, 24) else "NCCL before 2.24"
        chosen = {os.environ.get(name, "").lower() for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")}
        if "gloo" in chosen or not self._basics.mpi_built():
            return "Gloo"
        return "Open MPI" if self._mpi_version().startswith("Open MPI") else "MPI"

    @property
    def has_mpi(self) -> bool:
        """Whether it was built with MPI, so that MPI's launchers can start it."""
        return bool(self._basics.mpi_built())

    @property
    def has_gloo(self) -> bool:
        """Whether it was built with Gloo, so that horovodrun can start it without MPI."""
        return bool(self._basics.gloo_built())

    @property
    def takes_cuda_tensors(self) -> bool:
        return bool(self._basics.cuda_built() or self._basics.rocm_built())

    @property
    def library(self) -> str:
        """The library that moves gradients, with its version if it has one."""
        match self.carrier:
            case "NCCL of Horovod" | "NCCL before 2.24":
                return "NCCL {}.{}".format(*self._nccl_version())
            case "Gloo":
                return "Gloo"
            case _:
                return self._mpi_version()

    def start(self) -> tuple[int, int]:
        """Connect the ranks; returns (rank, size) as Horovod counts them.

        Raises:
            EnvironmentLacksError: Horovod refuses to start.
            RunError: the ranks cannot be connected.
        """
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", _GLOO_TIMEOUT_SECONDS)
        try:
            with as_run_error("Horovod", "connecting"):
                self._basics.init(process_sets="dynamic")
        except ValueError as error:
            raise EnvironmentLacksError(f"Horovod did not start: {reason_of(error)}") from error
        return self._basics.rank(), self._basics.size()

    def stop(self) -> None:
        """Leave. Horovod would wait for ever for a lost rank, so its shutdown is abandoned after ten seconds."""
        leaving = threading.Thread(target=self._basics.shutdown, name="horovod shutdown", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_SECONDS)
        if leaving.is_alive():
            atexit.unregister(self._basics.shutdown)

    def process_set(self, world_ranks: tuple[int, ...]) -> Any:
        """A new set of processes; all ranks must call it with the same ranks."""
        return self._ops.add_process_set(list(world_ranks))

    @property
    def all_processes(self) -> Any:
        return self._ops.global_process_set

    def all_reduce(self, tensor: Tensor, name: str, group: Any) -> None:
        """Sum in place."""
        ops = self._ops
        ops.synchronize(ops.allreduce_async_(tensor, op=ops.Sum, name=name, process_set=group))

    def broadcast(self, tensor: Tensor, world_root: int, name: str, group: Any) -> None:
        """Broadcast from the rank `world_root` of the whole job, in place."""
        ops = self._ops
        ops.synchronize(ops.broadcast_async_(tensor, world_root, name=name, process_set=group))

    def reduce_scatter(self, source: Tensor, target: Tensor, name: str, group: Any) -> None:
        """Write this rank's part of the sum of `source` to `target`."""
        ops = self._ops
        ops.synchronize(ops._reducescatter_async(source, target, name, ops.Sum, group, 1.0, 1.0))

    def all_gather(self, source: Tensor, target: Tensor, name: str, group: Any) -> None:
        """Concatenate the `source` of all members into `target`."""
        self._ops.synchronize(self._ops._allgather_async(source, target, name, group))

    def all_to_all(self, source: Tensor, target: Tensor, splits: list[int], name: str, group: Any) -> None:
        """Send `splits[r]` elements to member r."""
        received = torch.empty(len(splits), dtype=torch.int32)
        to_send = torch.tensor(splits, dtype=torch.int32)
        self._ops.synchronize(self._ops._alltoall_async(source, to_send, target, received, name, group))

    def _nccl_version(self) -> tuple[int, int]:
        """(0, 0) if Horovod was built without NCCL."""
        code = int(self._basics.nccl_built())
        # NCCL_VERSION_CODE: major * 10000 + minor * 100 + patch, with 1000 for major before 2.9.
        return (code // 10000, code // 100 % 100) if code >= 10000 else (code // 1000, code // 100 % 10)

    def _mpi_version(self) -> str:
        """For example `Open MPI 4.1.4`; for another MPI, the first line of its version text. MPI need not run."""
        text, length = ctypes.create_string_buffer(_LONGEST_VERSION), ctypes.c_int()
        self._basics.MPI_LIB_CTYPES.MPI_Get_library_version(text, ctypes.byref(length))
        return short_name(text.value.decode(errors="replace"))


def _why_not(error: Exception) -> str:
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name and name.partition(".")[0] == "horovod":
        return (
            "Horovod is not installed: run `make horovod` in the source tree, or use another backend: "
            "--set communication.backend=torch"
        )
    return (
        f"Horovod cannot be loaded with torch {torch.__version__} ({reason_of(error)}): it was built for another "
        "torch, or is incomplete; run `make horovod` in the source tree, or use --set communication.backend=torch"
    )


# ----------------------------------------------------------------------------------------------------
# The communicator over Horovod.


_WHOLE_JOB = 0
# The types that Horovod's all-reduce can sum. Horovod only moves other types, which are summed here.
_ADDED = {torch.float16, torch.float32, torch.float64, torch.int32, torch.int64}


def open_horovod(horovod: Horovod, rank: int, size: int) -> Communicator:
    """The communicator of all ranks; `horovod` was started.

    Raises:
        RunError: a rank is already lost.
    """
    job = _Job(horovod)
    members = Members("horovod", horovod.library, rank, ("",) * size, tuple(range(size)))
    nameless = HorovodCommunicator(members, job, horovod.all_processes, _WHOLE_JOB)
    hosts = tuple(nameless.gather_objects(socket.gethostname()))
    return HorovodCommunicator(replace(members, hosts=hosts), job, horovod.all_processes, _WHOLE_JOB)


class _Job:
    def __init__(self, horovod: Horovod) -> None:
        self.horovod = horovod
        # Horovod has only one set for the same ranks; communicators over it are distinguished by tensor names.
        self.sets: dict[tuple[int, ...], Any] = {}
        self.numbers = itertools.count(_WHOLE_JOB + 1)


class HorovodCommunicator(MemberCommunicator):
    """A communicator over one of Horovod's process sets.

    A tensor's name consists of the communicator's number, the operation, the type and the length: it is the same in
    every step, so that Horovod's response cache works, and unique at any time.
    """

    def __init__(self, members: Members, job: _Job, processes: Any, number: int) -> None:
        super().__init__(members)
        self._job, self._processes, self._number = job, processes, number
        self._horovod = job.horovod
        self._scratch = Scratch()

    def all_reduce(self, tensor: Tensor) -> None:
        if tensor.dtype not in _ADDED:
            all_reduce_by_exchange(self, tensor, self._scratch)
            return
        with self._attempt("all-reduce"):
            self._horovod.all_reduce(tensor, self._name("all-reduce", tensor), self._processes)

    def reduce(self, tensor: Tensor, root: int) -> None:
        """As `Communicator.reduce`, which Horovod lacks.

        As in Gloo's, each member sums a part and sends it to the root, which would otherwise need memory for all parts.
        """
        flat = tensor.view(-1)
        mine, whole = sum_of_own_part(self, flat, self._scratch)
        target = whole if self.rank == root else whole[:0]
        splits = [mine.numel() if member == root else 0 for member in range(self.size)]
        with self._attempt("reduce"):
            name = self._name(f"reduce to {root}", tensor)
            self._horovod.all_to_all(_movable(mine), _movable(target), splits, name, self._processes)
        if self.rank == root:
            flat.copy_(whole[: flat.numel()])

    def broadcast(self, tensor: Tensor, root: int) -> None:
        with self._attempt("broadcast"):
            name = self._name(f"broadcast from {root}", tensor)
            self._horovod.broadcast(_movable(tensor), self.world_ranks[root], name, self._processes)

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        # On CPUs the same method for every library: it sends the fewest bytes, and rounds 16-bit types once.
        if source.device.type == "cpu" or source.dtype not in _ADDED:
            reduce_scatter_by_exchange(self, source, target, self._scratch)
            return
        with self._attempt("reduce-scatter"):
            self._horovod.reduce_scatter(source, target, self._name("reduce-scatter", source), self._processes)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        with self._attempt("all-gather"):
            name = self._name("all-gather", source)
            self._horovod.all_gather(_movable(source), _movable(target), name, self._processes)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        splits = [source.numel() // self.size] * self.size
        with self._attempt("all-to-all"):
            name = self._name("all-to-all", source)
            self._horovod.all_to_all(_movable(source), _movable(target), splits, name, self._processes)

    def exchange(self, source: Tensor, target: Tensor, peer: int) -> None:
        splits = [source.numel() if member == peer else 0 for member in range(self.size)]
        # In groups of two, pairs would wait for each other as well: ranks negotiate each call with all others.
        with self._attempt("exchange"):
            # Members without a partner bring no elements, so the length cannot be a part of the name.
            name = f"hpcai500.{self._number}.exchange.{source.dtype}"
            self._horovod.all_to_all(_movable(source), _movable(target), splits, name, self._processes)

    def substitute(self, collective: str, tensor: Tensor) -> str | None:
        if collective == "exchange":
            return "an all-to-all of all ranks with splits, since Horovod has no point-to-point"
        if collective == "reduce_scatter" and tensor.device.type == "cpu":
            return "an all-to-all, then sums"
        return None

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1))

    def group(self, members: Sequence[int]) -> Communicator | None:
        world_ranks = tuple(self.world_ranks[member] for member in members)
        # All ranks count all groups, even those without them, because the numbers are parts of tensors' names.
        number = next(self._job.numbers)
        chosen = self.members.subset(members)
        if len(members) == 1:
            return LocalCommunicator(chosen) if chosen else None
        if world_ranks == tuple(range(self.size)):
            processes = self._horovod.all_processes
        elif world_ranks in self._job.sets:
            processes = self._job.sets[world_ranks]
        else:
            with self._attempt("making a group"):
                processes = self._horovod.process_set(world_ranks)
            self._job.sets[world_ranks] = processes
        return HorovodCommunicator(chosen, self._job, processes, number) if chosen else None

    def close(self) -> None:
        """Stop Horovod if this is the whole job's communicator, else do nothing."""
        if self._number == _WHOLE_JOB:
            self._horovod.stop()

    def _name(self, action: str, tensor: Tensor) -> str:
        return f"hpcai500.{self._number}.{action}.{tensor.dtype}.{tensor.numel()}"

    def _attempt(self, action: str) -> AbstractContextManager[None]:
        return as_run_error(f"Horovod ({self.library})", action)


def _movable(tensor: Tensor) -> Tensor:
    """A flat view of `tensor` in a type that Horovod knows: it has no bfloat16."""
    flat = tensor.view(-1)
    return flat.view(torch.int16) if flat.dtype is torch.bfloat16 else flat
