"""Horovod itself: whether it is there, who moves its bytes, and its asynchronous calls on tensors that we own."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import threading
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm.algorithms import Carrier
from hpcai500.comm.failures import as_run_error, first_line
from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.mpi import short_name

# Gloo's are 30 s; rank 0 may have data to make before it comes. Whether a rank is lost, the monitor judges.
_GLOO_TIMEOUT_SECONDS = "1800"
_LEAVE_SECONDS = 10.0
_LONGEST_VERSION = 8192


class Horovod:
    """Horovod 0.28.1, loaded but not started. Its calls on given output tensors are not in its documented face, which
    would allocate a new output each time; no later release is going to change them.

    Args:
        device: `cpu` or `cuda`: where gradients are.

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
        """Who carries out an all-reduce of gradients; known before the start."""
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
        """Whether it was built for GPUs."""
        return bool(self._basics.cuda_built() or self._basics.rocm_built())

    @property
    def library(self) -> str:
        """Who moves gradients, with its version where it has one of its own."""
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
            RunError: they cannot be connected.
        """
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", _GLOO_TIMEOUT_SECONDS)
        try:
            with as_run_error("Horovod", "connecting"):
                self._basics.init(process_sets="dynamic")
        except ValueError as error:
            raise EnvironmentLacksError(f"Horovod did not start: {first_line(error)}") from error
        return self._basics.rank(), self._basics.size()

    def stop(self) -> None:
        """Leave; after ten seconds, without goodbye: Horovod would wait for ever for a rank that is gone."""
        leaving = threading.Thread(target=self._basics.shutdown, name="horovod shutdown", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_SECONDS)
        if leaving.is_alive():
            atexit.unregister(self._basics.shutdown)

    def process_set(self, world_ranks: tuple[int, ...]) -> Any:
        """A new set of processes; called by all ranks alike."""
        return self._ops.add_process_set(list(world_ranks))

    @property
    def all_processes(self) -> Any:
        """The set of all ranks."""
        return self._ops.global_process_set

    def all_reduce(self, tensor: Tensor, name: str, group: Any) -> None:
        """Sum in place."""
        ops = self._ops
        ops.synchronize(ops.allreduce_async_(tensor, op=ops.Sum, name=name, process_set=group))

    def broadcast(self, tensor: Tensor, world_root: int, name: str, group: Any) -> None:
        """From the rank that is `world_root` in the whole job."""
        ops = self._ops
        ops.synchronize(ops.broadcast_async_(tensor, world_root, name=name, process_set=group))

    def reduce_scatter(self, source: Tensor, target: Tensor, name: str, group: Any) -> None:
        """Sum, and keep this rank's part."""
        ops = self._ops
        ops.synchronize(ops._reducescatter_async(source, target, name, ops.Sum, group, 1.0, 1.0))

    def all_gather(self, source: Tensor, target: Tensor, name: str, group: Any) -> None:
        """One after the other."""
        self._ops.synchronize(self._ops._allgather_async(source, target, name, group))

    def all_to_all(self, source: Tensor, target: Tensor, splits: list[int], name: str, group: Any) -> None:
        """`splits[r]` elements to member r."""
        received = torch.empty(len(splits), dtype=torch.int32)
        to_send = torch.tensor(splits, dtype=torch.int32)
        self._ops.synchronize(self._ops._alltoall_async(source, to_send, target, received, name, group))

    def _nccl_version(self) -> tuple[int, int]:
        """(0, 0) where Horovod was built without."""
        code = int(self._basics.nccl_built())
        # NCCL_VERSION_CODE: major * 10000 + minor * 100 + patch, with 1000 for major before 2.9.
        return (code // 10000, code // 100 % 100) if code >= 10000 else (code // 1000, code // 100 % 10)

    def _mpi_version(self) -> str:
        """`Open MPI 4.1.4`; of another MPI, the first line of what it says of itself. MPI need not be started."""
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
        f"Horovod cannot be loaded beside torch {torch.__version__} ({first_line(error)}): it was built for another "
        "torch, or a part of it is missing; run `make horovod` in the source tree, or use "
        "--set communication.backend=torch"
    )
