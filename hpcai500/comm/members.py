"""Who belongs to a communicator; and the part of it that is alike for every library: small objects, sent as bytes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hpcai500.comm.base import Communicator


@dataclass(frozen=True)
class Members:
    """The members of a group, as the one of rank `rank` sees them. Attributes as in Communicator."""

    backend: str
    library: str
    rank: int
    hosts: tuple[str, ...]
    world_ranks: tuple[int, ...]

    def subset(self, members: Sequence[int]) -> Members | None:
        """Those of ranks `members`, ascending; None if this one is not among them."""
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
        """What every member gave, by rank."""
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
        """What member `root` gave."""
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
    # It comes from a rank of this very job.
    return pickle.loads(content.numpy().tobytes())  # noqa: S301
