"""The backend `torch`: torch.distributed with Gloo for CPU tensors and NCCL for CUDA tensors."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor

from hpcai500.comm.communicator import (
    Communicator,
    LocalCommunicator,
    MemberCommunicator,
    Members,
    Scratch,
    as_run_error,
    reduce_scatter_by_exchange,
)

# ----------------------------------------------------------------------------------------------------
# All-to-all and all-gather of CPU tensors over Gloo, with every receive posted before the first send.
#
# Gloo's own post the send first, and tell the other side that a receive is ready on the connection that carries the
# data: that word then waits behind megabytes, both sides fall into step, and a full-duplex link carries one direction
# at a time (200 Mbit/s, 1 MiB each way, one call after the other: 0.078 s and 0.059 s, and 0.044 s like this, which
# is the link).


def all_to_all(source: Tensor, target: Tensor, rank: int, size: int, group: Any) -> None:
    """Member r's `target` (size * n,) gets elements r * n ... of every member's `source` (size * n,)."""
    outgoing, incoming = source.view(size, -1), target.view(size, -1)
    others = [(rank + step) % size for step in range(1, size)]
    receives = [_receive(incoming[other], other, group) for other in reversed(others)]
    sends = [_send(outgoing[other], other, group) for other in others]
    incoming[rank].copy_(outgoing[rank])
    for work in (*receives, *sends):
        work.wait()


def all_gather(source: Tensor, target: Tensor, rank: int, size: int, group: Any) -> None:
    """Put the `source` (n,) of all members into `target` (size * n,), round a ring: each host is left once a turn."""
    blocks = target.view(size, -1)
    blocks[rank].copy_(source)
    before, after = (rank - 1) % size, (rank + 1) % size
    receives = [_receive(blocks[(rank - step) % size], before, group) for step in range(1, size)]
    sends = []
    for step in range(size - 1):
        if step:
            receives[step - 1].wait()
        sends.append(_send(blocks[(rank - step) % size], after, group))
    for work in (*receives[-1:], *sends):
        work.wait()


def _receive(target: Tensor, member: int, group: Any) -> dist.Work:
    work = dist.irecv(target, group=group, group_src=member)
    assert work, "this rank is a member of its own group"
    return work


def _send(source: Tensor, member: int, group: Any) -> dist.Work:
    work = dist.isend(source, group=group, group_dst=member)
    assert work, "this rank is a member of its own group"
    return work


# ----------------------------------------------------------------------------------------------------
# The backend `torch`: torch.distributed with Gloo for CPU tensors and NCCL for CUDA tensors.


# Its functions would keep the job's process group as a default argument, had they been imported after it was made.


# Whether a rank is lost, the monitor judges, by signs of life; this only ends what nobody watches.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
# Process groups that somebody holds.
_GROUPS: WeakSet[Any] = WeakSet()


def open_torch(store: dist.Store, rank: int, hosts: Sequence[str], device: str) -> Communicator:
    """The communicator of all ranks.

    Args:
        store: where all of them have met.
        rank: this one.
        hosts: host name of each rank.
        device: `cpu` or `cuda`: where gradients are.

    Raises:
        RunError: the ranks cannot connect to each other.
    """
    library = library_name(device)
    # Gloo's threads free tensors that Python has forgotten; one that does so while the interpreter ends aborts a
    # process that had done its work. So they end before: with the group, which schedules of micro-batches hold in
    # cycles, and the traceback of an error until it is told.
    atexit.register(_let_go)
    with as_run_error(library, "connecting"):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=dist.PrefixStore("world", store),
            rank=rank,
            world_size=len(hosts),
            timeout=COLLECTIVE_TIMEOUT,
        )
    members = Members("torch", library, rank, tuple(hosts), tuple(range(len(hosts))))
    return TorchCommunicator(members, dist.group.WORLD)


def library_name(device: str) -> str:
    """Who moves gradients that are on `device`. Gloo is a part of torch and has no version of its own."""
    if device == "cpu":
        return "Gloo"
    major, minor, *_ = torch.cuda.nccl.version()
    return f"NCCL {major}.{minor}"


def _let_go() -> None:
    # Takes a second where the machine is busy, and a rank whose job has failed has few.
    if _GROUPS:
        gc.collect()


class TorchCommunicator(MemberCommunicator):
    """A process group of torch.distributed."""

    def __init__(
        self,
        members: Members,
        group: Any,
        alike: Sequence[Sequence[int]] | None = None,
        job: list[TorchCommunicator] | None = None,
    ) -> None:
        super().__init__(members)
        self._group = group
        _GROUPS.add(group)
        # World ranks of all groups that do the same as this one, which is among them.
        self._alike = alike or (members.world_ranks,)
        self._scratch = Scratch()
        # All communicators of this process, that of the whole job first.
        self._job = [] if job is None else job
        self._job.append(self)

    @property
    def process_group(self) -> Any:
        """The same ranks, for torch's own distributed packages."""
        assert self._group is not None, "process group of a communicator that was closed"
        return self._group

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by the sum over all members."""
        with self._attempt("all-reduce"):
            dist.all_reduce(tensor, group=self._group)

    def reduce(self, tensor: Tensor, root: int) -> None:
        """Replace `tensor` on member `root` by the sum."""
        with self._attempt("reduce"):
            dist.reduce(tensor, group=self._group, group_dst=root)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace `tensor` by that of member `root`."""
        with self._attempt("broadcast"):
            dist.broadcast(tensor, group=self._group, group_src=root)

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        """Sum `source` (size * n,) over all members, each of which gets its part in `target` (n,)."""
        # Gloo's own sends twice the bytes: it is an all-reduce of which most is thrown away.
        if source.device.type == "cpu":
            reduce_scatter_by_exchange(self, source, target, self._scratch)
            return
        with self._attempt("reduce-scatter"):
            _REDUCE_SCATTER(target, source, group=self._group)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        """Put the `source` (n,) of all members into `target` (size * n,)."""
        with self._attempt("all-gather"):
            if source.device.type == "cpu":
                all_gather(source, target, self.rank, self.size, self._group)
            else:
                _ALL_GATHER(target, source, group=self._group)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        """Exchange parts: member r gets the r-th part of every member's `source`."""
        with self._attempt("all-to-all"):
            if source.device.type == "cpu":
                all_to_all(source, target, self.rank, self.size, self._group)
            else:
                dist.all_to_all_single(target, source, group=self._group)

    def barrier(self) -> None:
        """Wait until all members are here."""
        self.all_reduce(torch.zeros(1))

    def group(self, members: Sequence[int]) -> Communicator | None:
        """A communicator of its own over `members`; after `split`, all parts make theirs alike."""
        return self._make(
            [[ranks[member] for member in members] for ranks in self._alike], self.members.subset(members)
        )

    def split(self, parts: Sequence[Sequence[int]]) -> Communicator:
        """A communicator over that of `parts` which this rank is in. Called by all ranks of the job alike.

        Unlike those of `group`, it can make groups, if all parts make the same ones: of the same members, by their
        ranks in the part, in the same order.

        Args:
            parts: ranks of this one, ascending; each rank is in one part, and all parts have the same size.

        Raises:
            CommunicationError: another rank is lost.
        """
        assert len({len(part) for part in parts}) == 1, "parts that make the same groups have the same size"
        own = next(part for part in parts if self.rank in part)
        made = self._make([[self.world_ranks[member] for member in part] for part in parts], self.members.subset(own))
        assert made
        return made

    def _make(self, alike: Sequence[Sequence[int]], chosen: Members | None) -> Communicator | None:
        if len(alike[0]) == 1:
            return LocalCommunicator(chosen) if chosen else None
        mine = None
        with self._attempt("making a group"):
            # torch names groups by their number: every rank of the job has to ask for each, also for those of others.
            for ranks in alike:
                group = dist.new_group(ranks, timeout=COLLECTIVE_TIMEOUT)
                if chosen and chosen.world_ranks == tuple(ranks):
                    mine = TorchCommunicator(chosen, group, alike, self._job)
        return mine

    def close(self) -> None:
        """Leave; the whole job's communicator takes all groups along."""
        if self._group is None:
            return
        dist.destroy_process_group(self._group)
        # A destroyed group's threads live on while it is held.
        for communicator in self._job if self is self._job[0] else [self]:
            communicator._group = None

    def _attempt(self, action: str) -> AbstractContextManager[None]:
        assert self._group is not None, f"{action} on a communicator that was closed"
        return as_run_error(self.library, action)


# torch 2.13 has renamed both, and warns of the names that it had until then.
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
