"""The backend `torch`: torch.distributed with Gloo for CPU tensors and NCCL for CUDA tensors.

Large float32 tensors of ranks that share a host are summed in shared memory, where Gloo would send them over TCP.
"""

from __future__ import annotations

import atexit
import gc
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist

# Imported before the process group is made: otherwise its functions would keep that group as a default argument.
import torch.distributed.nn.functional
from torch import Tensor

from hpcai500._core import SharedSum
from hpcai500.comm.communicator import (
    Communicator,
    LocalCommunicator,
    MemberCommunicator,
    Members,
    Scratch,
    as_run_error,
    reduce_scatter_by_exchange,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# ----------------------------------------------------------------------------------------------------
# All-to-all, all-gather and exchange of CPU tensors over Gloo, with every receive posted before the first send.
#
# Gloo's own collectives post the send first. The notice that a receive is ready then waits behind megabytes on the same
# connection, both sides alternate, and a full-duplex link carries one direction at a time. At 200 Mbit/s, with 1 MiB
# each way and consecutive calls, Gloo's take 0.078 s and 0.059 s; these take 0.044 s, the time of the link.


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
    """Concatenate the `source` (n,) of all members into `target` (size * n,), by a ring of `size` - 1 steps."""
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


def exchange(source: Tensor, target: Tensor, peer: int, group: Any) -> None:
    """Swap `source` (n,) with the member `peer`, whose own goes to `target` (n,)."""
    receive = _receive(target, peer, group)
    send = _send(source, peer, group)
    receive.wait()
    send.wait()


def _receive(target: Tensor, member: int, group: Any) -> dist.Work:
    work = dist.irecv(target, group=group, group_src=member)
    assert work, "this rank is a member of its own group"
    return work


def _send(source: Tensor, member: int, group: Any) -> dist.Work:
    work = dist.isend(source, group=group, group_dst=member)
    assert work, "this rank is a member of its own group"
    return work


# ----------------------------------------------------------------------------------------------------
# Sums in memory that the ranks of a host share. Over loopback, Gloo copies each byte through the kernel's sockets.


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a name that nobody can guess, made anew, and no links followed
# Below, a call of Gloo is as fast.
LEAST_SHARED_VALUES = 1 << 14


def share_memory(communicator: Communicator) -> SharedSum | None:
    """Memory for the sums of `communicator`, whose members all call this; None where one of them cannot have it.

    That is so on several hosts, in containers that each have their own /dev/shm, and where it is full or read-only.
    """
    if len(set(communicator.hosts)) > 1:
        return None
    # The others learn the name from rank 0 after it has made the file.
    name = f"hpcai500-{secrets.token_hex(8)}"
    sums = _shared_sum(name, communicator) if communicator.rank == 0 else None
    name = communicator.broadcast_object(name)
    if communicator.rank != 0:
        sums = _shared_sum(name, communicator)
    everybody = all(communicator.gather_objects(sums is not None))
    if communicator.rank == 0:
        # Where files cannot be made, they cannot be removed either: on a read-only file system even the attempt fails.
        with suppress(OSError):
            (SHARED_MEMORY / name).unlink()
    return sums if everybody else None


def _shared_sum(name: str, communicator: Communicator) -> SharedSum | None:
    with suppress(RuntimeError):
        return SharedSum(str(SHARED_MEMORY / name), communicator.rank, communicator.size)
    return None


# ----------------------------------------------------------------------------------------------------
# The communicator over torch.distributed.


# The monitor detects lost ranks by heartbeats, and Gloo a connection that breaks. What is left may take long: all ranks
# wait while rank 0 makes the index of a data set of terabytes.
COLLECTIVE_TIMEOUT = timedelta(days=1)
# Process groups that are still referenced.
_GROUPS: WeakSet[Any] = WeakSet()
_MESHES: WeakSet[Any] = WeakSet()


def open_torch(store: dist.Store, rank: int, hosts: Sequence[str], device: str) -> Communicator:
    """The communicator of all ranks, which share `store`; gradients are on `device`, `cpu` or `cuda`.

    Raises:
        RunError: the ranks cannot connect to each other.
    """
    library = library_name(device)
    # Gloo's threads free tensors that Python no longer references; a thread that does so while the interpreter exits
    # aborts the process. So the threads must end earlier, with their group. Schedules of micro-batches hold the group
    # in reference cycles, and so does the traceback of an error until it is reported.
    atexit.register(_collect_groups)
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
    """The library that moves gradients on `device`. Gloo is a part of torch and has no version of its own."""
    if device == "cpu":
        return "Gloo"
    major, minor, *_ = torch.cuda.nccl.version()
    return f"NCCL {major}.{minor}"


def nccl_version() -> str | None:
    """The NCCL that this process's torch has loaded, such as 2.29.7, also where no device is; None without NCCL."""
    return ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None


def open_mesh(device_type: str, shape: Sequence[int], names: Sequence[str]) -> DeviceMesh:
    """torch's mesh of all ranks of the job, in row-major order, until the job's communicator is closed.

    Raises:
        RunError: another rank is lost.
    """
    from torch.distributed.device_mesh import init_device_mesh

    with as_run_error(library_name(device_type), "making a device mesh"):
        mesh = init_device_mesh(device_type, tuple(shape), mesh_dim_names=tuple(names))
    _MESHES.add(mesh)
    for group in mesh.get_all_groups():
        _GROUPS.add(group)
    return mesh


def _forget_groups_of_meshes() -> None:
    """Let go of the groups of all meshes: caches of DTensor keep meshes, and these (torch 2.13) their groups."""
    for mesh in _MESHES:
        getattr(mesh, "_pg_registry", {}).clear()


def _collect_groups() -> None:
    # Only if needed: it takes a second on a busy machine, and a rank of a failed job has little time left.
    if _GROUPS:
        gc.collect()


# What moves CPU tensors in place of Gloo's own collectives (see the functions above).
_INSTEAD = {
    "all_gather": "a ring of its sends and receives",
    "all_to_all": "its sends and receives, all at once",
    "reduce_scatter": "its sends and receives, all at once, then sums",
}


class TorchCommunicator(MemberCommunicator):
    """A process group of torch.distributed."""

    def __init__(
        self,
        members: Members,
        group: Any,
        siblings: Sequence[Sequence[int]] | None = None,
        job: list[TorchCommunicator] | None = None,
    ) -> None:
        super().__init__(members)
        self._group = group
        _GROUPS.add(group)
        # World ranks of this group and of all groups that `split` made together with it.
        self._siblings = siblings or (members.world_ranks,)
        self._scratch = Scratch()
        self._sums: SharedSum | None = None
        self._has_asked_for_sums = False
        # All communicators of this process, starting with that of the whole job.
        self._job = [] if job is None else job
        self._job.append(self)

    @property
    def process_group(self) -> Any:
        """torch's process group of the same ranks, for torch's own distributed packages."""
        assert self._group is not None, "process group of a communicator that was closed"
        return self._group

    def all_reduce(self, tensor: Tensor) -> None:
        sums = self._shared_sums(tensor)
        with self._attempt("all-reduce"):
            if sums:
                sums.all_reduce(tensor)
            else:
                dist.all_reduce(tensor, group=self._group)

    def _shared_sums(self, tensor: Tensor) -> SharedSum | None:
        if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or tensor.numel() < LEAST_SHARED_VALUES:
            return None
        # Only now: most groups never sum a large tensor.
        if not self._has_asked_for_sums:
            self._has_asked_for_sums = True
            self._sums = share_memory(self)
        return self._sums

    def reduce(self, tensor: Tensor, root: int) -> None:
        with self._attempt("reduce"):
            dist.reduce(tensor, group=self._group, group_dst=root)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        with self._attempt("broadcast"):
            dist.broadcast(tensor, group=self._group, group_src=root)

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        # Gloo's own sends twice the bytes: it is an all-reduce whose result is mostly discarded.
        if source.device.type == "cpu":
            reduce_scatter_by_exchange(self, source, target, self._scratch)
            return
        with self._attempt("reduce-scatter"):
            _REDUCE_SCATTER(target, source, group=self._group)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        with self._attempt("all-gather"):
            if source.device.type == "cpu":
                all_gather(source, target, self.rank, self.size, self._group)
            else:
                _ALL_GATHER(target, source, group=self._group)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        with self._attempt("all-to-all"):
            if source.device.type == "cpu":
                all_to_all(source, target, self.rank, self.size, self._group)
            else:
                dist.all_to_all_single(target, source, group=self._group)

    def exchange(self, source: Tensor, target: Tensor, peer: int) -> None:
        if peer == self.rank:
            target.copy_(source)
            return
        with self._attempt("exchange"):
            if source.device.type == "cpu":
                exchange(source, target, peer, self._group)
            else:
                both = [
                    dist.P2POp(dist.isend, source, group=self._group, group_peer=peer),
                    dist.P2POp(dist.irecv, target, group=self._group, group_peer=peer),
                ]
                for work in dist.batch_isend_irecv(both):
                    work.wait()

    def substitute(self, collective: str, tensor: Tensor) -> str | None:
        if tensor.device.type != "cpu":
            return None
        if collective == "all_reduce":
            return "sums in memory that the ranks share" if self._shared_sums(tensor) else None
        return _INSTEAD.get(collective)

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1))

    def group(self, members: Sequence[int]) -> Communicator | None:
        """As `Communicator.group`; after `split`, all parts must make the same groups."""
        return self._make(
            [[ranks[member] for member in members] for ranks in self._siblings], self.members.subset(members)
        )

    def split(self, parts: Sequence[Sequence[int]]) -> Communicator:
        """A communicator over the part of `parts` that has this rank. All ranks of the job must make the same call.

        `parts` has ranks of this communicator, ascending; each rank is in one part, and all parts have the same size.
        Unlike the communicators of `group`, the new one can make groups, if all parts make the same ones in the same
        order: of the same members, by their ranks in the part.

        Raises:
            CommunicationError: another rank is lost.
        """
        assert len({len(part) for part in parts}) == 1, "parts that make the same groups have the same size"
        own = next(part for part in parts if self.rank in part)
        made = self._make([[self.world_ranks[member] for member in part] for part in parts], self.members.subset(own))
        assert made
        return made

    def _make(self, siblings: Sequence[Sequence[int]], chosen: Members | None) -> Communicator | None:
        if len(siblings[0]) == 1:
            return LocalCommunicator(chosen) if chosen else None
        mine = None
        with self._attempt("making a group"):
            # torch numbers groups, so every rank of the job must make each group, even one without it.
            for ranks in siblings:
                group = dist.new_group(ranks, timeout=COLLECTIVE_TIMEOUT)
                if chosen and chosen.world_ranks == tuple(ranks):
                    mine = TorchCommunicator(chosen, group, siblings, self._job)
        return mine

    def close(self) -> None:
        """Leave; closing the whole job's communicator closes all groups."""
        if self._group is None:
            return
        for communicator in self._job if self is self._job[0] else [self]:
            if communicator._sums:
                communicator._sums.close()
        if self is self._job[0]:
            _forget_groups_of_meshes()
        dist.destroy_process_group(self._group)
        # The threads of a destroyed group run as long as it is referenced.
        for communicator in self._job if self is self._job[0] else [self]:
            communicator._group = None

    def _attempt(self, action: str) -> AbstractContextManager[None]:
        assert self._group is not None, f"{action} on a communicator that was closed"
        return as_run_error(self.library, action)


# torch 2.13 renamed both and warns about the old names.
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
