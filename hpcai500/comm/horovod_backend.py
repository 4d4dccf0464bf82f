"""The backend `horovod`: Horovod over MPI or Gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.composed import Scratch, all_reduce_by_exchange, reduce_scatter_by_exchange, sum_of_own_part
from hpcai500.comm.failures import as_run_error
from hpcai500.comm.horovod_library import Horovod
from hpcai500.comm.local import LocalCommunicator
from hpcai500.comm.members import MemberCommunicator, Members

_WHOLE_JOB = 0
# The types that Horovod's all-reduce adds. Others are only moved by it, and added here.
_ADDED = {torch.float16, torch.float32, torch.float64, torch.int32, torch.int64}


def open_horovod(horovod: Horovod, rank: int, size: int) -> Communicator:
    """The communicator of all ranks of a Horovod that was started.

    Raises:
        RunError: a rank is gone already.
    """
    job = _Job(horovod)
    members = Members("horovod", horovod.library, rank, ("",) * size, tuple(range(size)))
    nameless = HorovodCommunicator(members, job, horovod.all_processes, _WHOLE_JOB)
    hosts = tuple(nameless.gather_objects(socket.gethostname()))
    return HorovodCommunicator(replace(members, hosts=hosts), job, horovod.all_processes, _WHOLE_JOB)


class _Job:
    """What all communicators of the job share."""

    def __init__(self, horovod: Horovod) -> None:
        self.horovod = horovod
        # Horovod knows one set of the same ranks only; conversations are told apart by the names of their tensors.
        self.sets: dict[tuple[int, ...], Any] = {}
        self.numbers = itertools.count(_WHOLE_JOB + 1)


class HorovodCommunicator(MemberCommunicator):
    """A conversation of its own within one of Horovod's process sets.

    A tensor's name is made of the conversation, the operation, the type and the length: the same in every step, so that
    Horovod's response cache knows it, and never that of two tensors at a time.
    """

    def __init__(self, members: Members, job: _Job, processes: Any, number: int) -> None:
        super().__init__(members)
        self._job, self._processes, self._number = job, processes, number
        self._horovod = job.horovod
        self._scratch = Scratch()

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by the sum over all members."""
        if tensor.dtype not in _ADDED:
            all_reduce_by_exchange(self, tensor, self._scratch)
            return
        with self._attempt("all-reduce"):
            self._horovod.all_reduce(tensor, self._name("all-reduce", tensor), self._processes)

    def reduce(self, tensor: Tensor, root: int) -> None:
        """Replace `tensor` on member `root` by the sum: Horovod has no reduce.

        As Gloo's own does: each member sums a part and sends that to the root, which would otherwise need room for all.
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
        """Replace `tensor` by that of member `root`."""
        with self._attempt("broadcast"):
            name = self._name(f"broadcast from {root}", tensor)
            self._horovod.broadcast(_movable(tensor), self.world_ranks[root], name, self._processes)

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        """Sum `source` (size * n,) over all members, each of which gets its part in `target` (n,)."""
        # One way on CPUs for every library below: the least bytes, and 16-bit types are rounded once.
        if source.device.type == "cpu" or source.dtype not in _ADDED:
            reduce_scatter_by_exchange(self, source, target, self._scratch)
            return
        with self._attempt("reduce-scatter"):
            self._horovod.reduce_scatter(source, target, self._name("reduce-scatter", source), self._processes)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        """Put the `source` (n,) of all members into `target` (size * n,)."""
        with self._attempt("all-gather"):
            name = self._name("all-gather", source)
            self._horovod.all_gather(_movable(source), _movable(target), name, self._processes)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        """Exchange parts: member r gets the r-th part of every member's `source`."""
        splits = [source.numel() // self.size] * self.size
        with self._attempt("all-to-all"):
            name = self._name("all-to-all", source)
            self._horovod.all_to_all(_movable(source), _movable(target), splits, name, self._processes)

    def barrier(self) -> None:
        """Wait until all members are here."""
        self.all_reduce(torch.zeros(1))

    def group(self, members: Sequence[int]) -> Communicator | None:
        """A communicator of its own over `members`."""
        world_ranks = tuple(self.world_ranks[member] for member in members)
        # All ranks count all groups, also those that they are not in: the numbers are parts of names.
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
        """Leave, if this is the whole job's communicator."""
        if self._number == _WHOLE_JOB:
            self._horovod.stop()

    def _name(self, action: str, tensor: Tensor) -> str:
        return f"hpcai500.{self._number}.{action}.{tensor.dtype}.{tensor.numel()}"

    def _attempt(self, action: str) -> AbstractContextManager[None]:
        return as_run_error(f"Horovod ({self.library})", action)


def _movable(tensor: Tensor) -> Tensor:
    """The same memory, flat, in a type that Horovod knows: it has no bfloat16."""
    flat = tensor.view(-1)
    return flat.view(torch.int16) if flat.dtype is torch.bfloat16 else flat
