"""Ranks as threads of this process, for many ranks in little time: real arithmetic, no library, no network.

def sums(communicator):
    tensor = torch.ones(3)
    communicator.all_reduce(tensor)
    return tensor

run_threads(sums, hosts=("a", "a", "b"))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm.communicator import Communicator

PATIENCE_SECONDS = 60.0


def run_threads(function: Callable[[Communicator], Any], hosts: Sequence[str]) -> list[Any]:
    """What `function(communicator)` returned on each rank, by rank; raises the first error."""
    world = _Meeting(len(hosts))
    results: list[Any] = [None] * len(hosts)
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadCommunicator(world, rank, tuple(hosts), tuple(range(len(hosts)))))
        except BaseException as error:  # noqa: BLE001
            # Those that wait for the one that failed only say that they waited: its error is the one to be told.
            errors.insert(len(errors) if isinstance(error, threading.BrokenBarrierError) else 0, error)
            world.break_off()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
    return results


class _Meeting:
    """What the members of one group share."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=PATIENCE_SECONDS)
        self._lock = threading.Lock()
        self.board: list[Any] = [None] * size
        self._groups: dict[tuple[int, tuple[int, ...]], _Meeting] = {}

    def wait(self) -> None:
        self._barrier.wait()

    def break_off(self) -> None:
        self._barrier.abort()
        for group in self._groups.values():
            group.break_off()

    def group(self, call: int, members: tuple[int, ...]) -> _Meeting:
        with self._lock:
            return self._groups.setdefault((call, members), _Meeting(len(members)))


class ThreadCommunicator(Communicator):
    """One thread's view of a group."""

    backend = "local"
    library = "threads"

    def __init__(self, meeting: _Meeting, rank: int, hosts: tuple[str, ...], world_ranks: tuple[int, ...]) -> None:
        self._meeting, self.rank, self.size = meeting, rank, len(hosts)
        self.hosts, self.world_ranks = hosts, world_ranks
        self._calls = 0
        self.closed = False
        self.group_type = ThreadCommunicator

    def _everyones(self, thing: Any) -> list[Any]:
        """What each member puts on the board; copies, so that all may go on and write."""
        self._meeting.board[self.rank] = thing.clone() if isinstance(thing, Tensor) else thing
        self._meeting.wait()
        everyones = list(self._meeting.board)
        self._meeting.wait()
        return everyones

    def all_reduce(self, tensor: Tensor) -> None:
        total, *others = self._everyones(tensor)
        total = total.clone()
        for other in others:
            total += other
        tensor.copy_(total)

    def reduce(self, tensor: Tensor, root: int) -> None:
        mine = tensor.clone()
        self.all_reduce(mine)
        # The protocol leaves it undefined elsewhere, so whoever relies on it must fail.
        tensor.copy_(mine if self.rank == root else torch.zeros_like(mine) - 7)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        tensor.copy_(self._everyones(tensor)[root])

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        whole = source.clone()
        self.all_reduce(whole)
        target.copy_(whole.view(self.size, -1)[self.rank])

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        target.copy_(torch.cat(self._everyones(source)))

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        parts = [theirs.view(self.size, -1)[self.rank] for theirs in self._everyones(source)]
        target.copy_(torch.cat(parts))

    def gather_objects(self, thing: Any) -> list[Any]:
        return self._everyones(thing)

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        return self._everyones(thing)[root]

    def barrier(self) -> None:
        self._meeting.wait()

    def group(self, members: Sequence[int]) -> Communicator | None:
        self._calls += 1
        meeting = self._meeting.group(self._calls, tuple(members))
        self._meeting.wait()
        if self.rank not in members:
            return None
        return self.group_type(
            meeting,
            list(members).index(self.rank),
            tuple(self.hosts[member] for member in members),
            tuple(self.world_ranks[member] for member in members),
        )

    def close(self) -> None:
        self.closed = True

    def break_off(self) -> None:
        """As if this rank's process were gone: whoever waits for it, now or later, gets an error."""
        self._meeting.break_off()
