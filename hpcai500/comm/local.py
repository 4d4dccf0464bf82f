"""One process: a communicator of a single member, which has nobody to talk to."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.members import MemberCommunicator, Members


class LocalCommunicator(MemberCommunicator):
    """A communicator of one member; also what a group of one is, whatever the library of the others."""

    def __init__(self, members: Members | None = None) -> None:
        super().__init__(members or Members("local", "none", 0, (socket.gethostname(),), (0,)))
        assert self.size == 1

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum over one is there already."""

    def reduce(self, tensor: Tensor, root: int) -> None:
        """The sum over one is there already."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """What the one member has is there already."""

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        """Copy."""
        target.copy_(source)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        """Copy."""
        target.copy_(source)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        """Copy."""
        target.copy_(source)

    def gather_objects(self, thing: Any) -> list[Any]:
        """The one member's."""
        return [thing]

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        """The one member's."""
        return thing

    def barrier(self) -> None:
        """Nobody to wait for."""

    def group(self, members: Sequence[int]) -> Communicator | None:
        """Another communicator of the one member, or None."""
        chosen = self.members.subset(members)
        return LocalCommunicator(chosen) if chosen else None

    def close(self) -> None:
        """Nothing to leave."""
