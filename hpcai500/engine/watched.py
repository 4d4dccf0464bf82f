"""A communicator that tells the monitor when its rank waits for others: a waiting rank is not the one that hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from hpcai500.comm.base import Communicator


class WatchedCommunicator:
    """Does what `communicator` does, each time in a context of `waiting`; so do its groups.

    For the training thread. Another thread takes the communicator itself: its waiting says nothing about training.
    """

    def __init__(self, communicator: Communicator, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._communicator, self._waiting = communicator, waiting
        self.backend, self.library = communicator.backend, communicator.library
        self.rank, self.size = communicator.rank, communicator.size
        self.hosts, self.world_ranks = communicator.hosts, communicator.world_ranks

    def all_reduce(self, tensor: Tensor) -> None:
        """As the protocol."""
        with self._waiting():
            self._communicator.all_reduce(tensor)

    def reduce(self, tensor: Tensor, root: int) -> None:
        """As the protocol."""
        with self._waiting():
            self._communicator.reduce(tensor, root)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """As the protocol."""
        with self._waiting():
            self._communicator.broadcast(tensor, root)

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        """As the protocol."""
        with self._waiting():
            self._communicator.reduce_scatter(source, target)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        """As the protocol."""
        with self._waiting():
            self._communicator.all_gather(source, target)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        """As the protocol."""
        with self._waiting():
            self._communicator.all_to_all(source, target)

    def gather_objects(self, thing: Any) -> list[Any]:
        """As the protocol."""
        with self._waiting():
            return self._communicator.gather_objects(thing)

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        """As the protocol."""
        with self._waiting():
            return self._communicator.broadcast_object(thing, root)

    def barrier(self) -> None:
        """As the protocol."""
        with self._waiting():
            self._communicator.barrier()

    def group(self, members: Sequence[int]) -> Communicator | None:
        """As the protocol."""
        with self._waiting():
            group = self._communicator.group(members)
        return WatchedCommunicator(group, self._waiting) if group else None

    def close(self) -> None:
        """As the protocol."""
        self._communicator.close()
