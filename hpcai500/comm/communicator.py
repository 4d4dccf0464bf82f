"""Communicators: the collectives that every backend offers, and the bytes that each of them sends.

There are collectives on tensors and on small objects. Errors of communication libraries become one-line errors.
"""

from __future__ import annotations

import pickle
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcai500.errors import CommunicationError

# ----------------------------------------------------------------------------------------------------
# The interface of a communicator.


class Communicator(Protocol):
    """A group of ranks that communicate, as one of its members sees it.

    All members call collectives in the same order, one at a time; for concurrent collectives, make another `group`. On
    CPU tensors they return when they are done; on CUDA tensors they are put on the current stream. Tensors are
    contiguous; sums are in the tensor's own type.

    Attributes:
        backend: as in the recipe: `local`, `torch` or `horovod`.
        library: the transport, with its version, for the record: `Gloo`, `NCCL 2.27`, `Open MPI 4.1.4`.
        rank: of this member, 0 to size - 1.
        hosts: host name of each member, by rank.
        world_ranks: rank in the whole job of each member.

    Raises (all methods):
        RunError: a member is lost or does not answer; `liveness.Monitor` knows which.
    """

    backend: str
    library: str
    rank: int
    size: int
    hosts: tuple[str, ...]
    world_ranks: tuple[int, ...]

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by the sum over all members."""

    def reduce(self, tensor: Tensor, root: int) -> None:
        """Replace `tensor` on member `root` by the sum; elsewhere its content is undefined afterwards."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace `tensor` by that of member `root`."""

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        """Sum `source` (size * n,) over all members; member r gets elements r * n ... of it in `target` (n,)."""

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        """Concatenate the `source` (n,) of all members into `target` (size * n,)."""

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        """Member r's `target` (size * n,) gets elements r * n ... of every member's `source` (size * n,)."""

    def exchange(self, source: Tensor, target: Tensor, peer: int) -> None:
        """Send `source` (n,) to member `peer`, and write that member's to `target` (n,): both directions at once.

        All members call it at the same time, in pairs: the peer's peer is this member. A member without a partner names
        itself and gives empty tensors. Pairs do not wait for each other, unless there is a `substitute`.
        """

    def substitute(self, collective: str, tensor: Tensor) -> str | None:
        """What runs in place of the library's own `collective` on `tensor`; None if the library's own runs.

        `collective` is the name of a method of this class; all members make the same call.
        """

    def gather_objects(self, thing: Any) -> list[Any]:
        """The `thing` of every member, by rank, on every member; for small plain data, which is pickled."""

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        """The `thing` of member `root`."""

    def barrier(self) -> None:
        """Wait until all members have called this."""

    def group(self, members: Sequence[int]) -> Communicator | None:
        """An independent communicator over `members` (ranks of this one, ascending); None for ranks not among them.

        All members of this communicator must call it with the same arguments, because libraries need all ranks of the
        job to make a group. So it works only on a communicator of all ranks of the job, or on a part that
        `TorchCommunicator.split` made. `range(size)` gives a second communicator of the same ranks.
        """

    def close(self) -> None:
        """Leave; no collective may follow. The wait for a lost member is bounded."""


# ----------------------------------------------------------------------------------------------------
# Shared by all backends: the members, and collectives on small objects, which are sent as bytes.


@dataclass(frozen=True)
class Members:
    """The members of a group, as member `rank` sees them. Attributes as in `Communicator`."""

    backend: str
    library: str
    rank: int
    hosts: tuple[str, ...]
    world_ranks: tuple[int, ...]

    def subset(self, members: Sequence[int]) -> Members | None:
        """The members of ranks `members` (ascending); None if this one is not among them."""
        assert list(members) == sorted(set(members)), f"expected ascending ranks, got {list(members)}"
        if self.rank not in members:
            return None
        return replace(
            self,
            rank=list(members).index(self.rank),
            hosts=tuple(self.hosts[member] for member in members),
            world_ranks=tuple(self.world_ranks[member] for member in members),
        )


class MemberCommunicator(Communicator):
    """A communicator over `members` that sends objects by its own collectives on CPU tensors."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.backend, self.library = members.backend, members.library
        self.rank, self.size = members.rank, len(members.hosts)
        self.hosts, self.world_ranks = members.hosts, members.world_ranks

    def gather_objects(self, thing: Any) -> list[Any]:
        mine = _to_bytes(thing)
        lengths = torch.empty(self.size, dtype=torch.int64)
        self.all_gather(torch.tensor([mine.numel()]), lengths)
        longest = int(lengths.max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: mine.numel()] = mine
        everything = torch.empty(self.size * longest, dtype=torch.uint8)
        self.all_gather(padded, everything)
        pieces = everything.view(self.size, longest)
        return [_from_bytes(piece[:length]) for piece, length in zip(pieces, lengths.tolist(), strict=True)]

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        content = _to_bytes(thing) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([content.numel()])
        self.broadcast(length, root)
        if self.rank != root:
            content = torch.empty(int(length), dtype=torch.uint8)
        self.broadcast(content, root)
        return thing if self.rank == root else _from_bytes(content)


def _to_bytes(thing: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8)


def _from_bytes(content: torch.Tensor) -> Any:
    # It comes from a rank of this job, so it is trusted.
    return pickle.loads(content.numpy().tobytes())  # noqa: S301


# ----------------------------------------------------------------------------------------------------
# Collectives built from other ones, for libraries that lack them or send more bytes than needed.


class Scratch:
    """Memory that is reused between calls, because new pages for a large bucket cost more than copying it."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def like(self, tensor: Tensor, count: int) -> Tensor:
        """`count` elements of the type and device of `tensor`, undefined; valid until the next call."""
        size = count * tensor.element_size()
        if self._bytes.numel() < size or self._bytes.device != tensor.device:
            self._bytes = torch.empty(size, dtype=torch.uint8, device=tensor.device)
        return self._bytes[:size].view(tensor.dtype)


def reduce_scatter_by_exchange(communicator: Communicator, source: Tensor, target: Tensor, scratch: Scratch) -> None:
    """`Communicator.reduce_scatter` by an all-to-all: each member sends (size - 1) / size of `source`, the minimum."""
    received = scratch.like(source, source.numel())
    communicator.all_to_all(source, received)
    sum_rows(received, target)


def sum_rows(received: Tensor, target: Tensor) -> None:
    """Write the sum of the k parts of `received` (k * n,) to `target` (n,); 16-bit types are rounded once."""
    rows = received.view(-1, target.numel()) if target.numel() else received.view(1, 0)
    torch.sum(rows, dim=0, dtype=target.dtype, out=target)


def all_reduce_by_exchange(communicator: Communicator, tensor: Tensor, scratch: Scratch) -> None:
    """`Communicator.all_reduce` for types that a library can move but not sum: an all-to-all, sums, an all-gather.

    Each member sends 2 (size - 1) / size of the tensor, as a ring does.
    """
    flat = tensor.view(-1)
    mine, whole = sum_of_own_part(communicator, flat, scratch)
    communicator.all_gather(mine, whole)
    flat.copy_(whole[: flat.numel()])


def sum_of_own_part(communicator: Communicator, flat: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The sum over all members of this one's part of `flat` (n,), padded so that all parts have the same length.

    Returns the part (k,), and space for all parts (size * k,), size * k >= n; both in `scratch`.
    """
    size = communicator.size
    part = -(-flat.numel() // size)
    whole, received, mine = scratch.like(flat, (2 * size + 1) * part).split([size * part, size * part, part])
    whole[: flat.numel()] = flat
    whole[flat.numel() :] = 0
    communicator.all_to_all(whole, received)
    sum_rows(received, mine)
    return mine, whole


# ----------------------------------------------------------------------------------------------------
# A communicator of a single member.


class LocalCommunicator(MemberCommunicator):
    """A communicator of one member; backends also use it for groups of one. Sums and broadcasts do nothing."""

    def __init__(self, members: Members | None = None) -> None:
        super().__init__(members or Members("local", "none", 0, (socket.gethostname(),), (0,)))
        assert self.size == 1

    def all_reduce(self, tensor: Tensor) -> None: ...

    def reduce(self, tensor: Tensor, root: int) -> None: ...

    def broadcast(self, tensor: Tensor, root: int) -> None: ...

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def exchange(self, source: Tensor, target: Tensor, peer: int) -> None:
        target.copy_(source)

    def substitute(self, collective: str, tensor: Tensor) -> str | None:
        return None

    def gather_objects(self, thing: Any) -> list[Any]:
        return [thing]

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        return thing

    def barrier(self) -> None: ...

    def group(self, members: Sequence[int]) -> Communicator | None:
        chosen = self.members.subset(members)
        return LocalCommunicator(chosen) if chosen else None

    def close(self) -> None: ...


# ----------------------------------------------------------------------------------------------------
# Errors of communication libraries, turned into one-line errors.


# The place in the library's source: `[../third_party/gloo/gloo/transport/tcp/pair.cc:547] `.
_PLACE = re.compile(r"\[[^\]\s]*\.(?:cc|cpp|h|hpp):\d+\]\s*")
# What Gloo adds to the message of every lost connection.
_ADVICE = " This is typically caused by"
# The reason follows in the line, or in the next one; there may be none, and torch may add where it raised the error.
_NCCL_REASON = re.compile(r"^Last error:\s*(?!Exception raised from)(\S.*)$", re.MULTILINE)


@contextmanager
def as_run_error(library: str, action: str) -> Iterator[None]:
    """Turn a library's RuntimeError into an error that names the action.

    Raises:
        CommunicationError: the library raised a RuntimeError (like all errors of torch and Horovod).
    """
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(
            f"{action} over {library} failed: {reason_of(error)}; another rank has ended or cannot be reached"
        ) from error


# What messages of errors of Gloo and NCCL contain; neither has its own class for all of them.
_OF_LIBRARIES = ("gloo", "nccl", "processgroup", "process group", "connection closed by peer", "connection reset")


@contextmanager
def library_errors(library: str, action: str) -> Iterator[None]:
    """As `as_run_error`, for a body that computes, too: its other errors stay as they are."""
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in _OF_LIBRARIES):
            raise
        raise CommunicationError(
            f"{action} over {library} failed: {reason_of(error)}; another rank has ended or cannot be reached"
        ) from error


def reason_of(error: BaseException) -> str:
    """A library's message without its source location, advice and stack trace.

    NCCL's first line says only what kind of error it is, and its last one why.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    first = _PLACE.sub("", lines[0]).partition(_ADVICE)[0].strip().rstrip(".")
    why = _NCCL_REASON.search("\n".join(lines))
    return f"{first}: {why[1].rstrip('.')}" if why else first


# ----------------------------------------------------------------------------------------------------
# Bytes that a rank sends in one collective, by the standard algorithm of each: the count of V2.0's COI model.
#
# n is the number of members, b the size of the whole buffer. A ring (Patarasuk and Yuan 2009, "Bandwidth optimal
# all-reduce algorithms") sends to the next member only, so that of consecutive ranks on a host only the last one sends
# to another host; the direct algorithms send to all members. The network counters show what a library really sends.


@dataclass(frozen=True)
class Traffic:
    """All bytes that one rank sends, and the part of them that goes to other hosts."""

    sent: float = 0.0
    between_nodes: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent + other.sent, self.between_nodes + other.between_nodes)


def ring_all_reduce(group: Communicator, buffer_bytes: float) -> Traffic:
    """2 b (n - 1) / n: a reduce-scatter and an all-gather."""
    return ring_pass(group, buffer_bytes) + ring_pass(group, buffer_bytes)


def ring_pass(group: Communicator, buffer_bytes: float) -> Traffic:
    """b (n - 1) / n: a reduce-scatter of, or an all-gather to, `buffer_bytes`."""
    sent = buffer_bytes * (group.size - 1) / group.size
    leaves = group.hosts[(group.rank + 1) % group.size] != group.hosts[group.rank]
    return Traffic(sent, sent if leaves else 0.0)


def direct_all_to_all(group: Communicator, buffer_bytes: float) -> Traffic:
    """b (n - 1) / n: a piece of b / n to each other member."""
    piece = buffer_bytes / group.size
    return Traffic(piece * (group.size - 1), piece * _members_elsewhere(group))


def reduce_to(group: Communicator, buffer_bytes: float, root: int) -> Traffic:
    """b from each member except the root."""
    if group.rank == root:
        return Traffic()
    return Traffic(buffer_bytes, buffer_bytes if group.hosts[group.rank] != group.hosts[root] else 0.0)


def broadcast_from(group: Communicator, buffer_bytes: float, root: int) -> Traffic:
    """b (n - 1), all from the root; with a tree, the sum over the members is the same."""
    if group.rank != root:
        return Traffic()
    return Traffic(buffer_bytes * (group.size - 1), buffer_bytes * _members_elsewhere(group))


def _members_elsewhere(group: Communicator) -> int:
    return sum(host != group.hosts[group.rank] for host in group.hosts)
