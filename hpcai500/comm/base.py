"""What every communication library gives to the parts above it: collectives on tensors and on small objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class Communicator(Protocol):
    """A group of ranks that talk to each other, as one of its members sees it.

    Collectives are called by all members in the same order, one at a time: whoever wants a second conversation beside a
    running one takes a `group` of its own. On CPU tensors they return when they are done; on CUDA tensors they are put
    on the current stream. Tensors are contiguous; sums are in the tensor's own type.

    Attributes:
        backend: the recipe's word: `local`, `torch` or `horovod`.
        library: who moves the bytes, with its version, for the record: `Gloo`, `NCCL 2.27`, `Open MPI 4.1.4`.
        rank: this member, 0 to size - 1.
        size: how many members.
        hosts: host name of each member, by rank.
        world_ranks: rank in the whole job of each member.

    Raises (all methods):
        RunError: a member is gone or does not answer; `monitor` knows which.
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
        """Put the `source` (n,) of all members, one after the other, into `target` (size * n,)."""

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        """Member r's `target` (size * n,) gets elements r * n ... of every member's `source` (size * n,)."""

    def gather_objects(self, thing: Any) -> list[Any]:
        """What every member gave, by rank, on every member; for small things (plain data, pickled)."""

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        """What member `root` gave."""

    def barrier(self) -> None:
        """Wait until all members are here."""

    def group(self, members: Sequence[int]) -> Communicator | None:
        """A communicator of its own over `members` (ranks of this one, ascending); None for a rank that is not one.

        Called by all members of this one alike, also by those that are left out, and only on a communicator of all
        ranks of the job, or on a part that `TorchCommunicator.split` gave: libraries make groups with everybody's help.
        `range(size)` gives a second, independent conversation of the same ranks.
        """

    def close(self) -> None:
        """Leave; nothing can be said afterwards. Never waits for a member that is gone."""
