"""What every topology gives to the reducer, and how one makes its groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.traffic import Traffic


class Topology(ABC):
    """Sums packed buffers over all ranks. Made by all of them alike, used by one thread at a time.

    Attributes:
        pieces: a buffer has this many equal pieces, each a whole number of the wire's grains.
        groups: the communicators that it made, for whoever closes them.
    """

    pieces: int = 1

    def __init__(self) -> None:
        self.groups: list[Communicator] = []

    @abstractmethod
    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        """The sum of `packed` over all ranks, the same bits on each; `packed` is overwritten or not.

        Raises:
            RunError: a rank is gone.
        """

    @abstractmethod
    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """What this rank sends in `sum` of a buffer of `packed_bytes`."""

    def sent_bytes(self, packed_bytes: int, bucket: int) -> int:
        """Bytes that this rank sends in `sum` of a buffer of `packed_bytes`."""
        return round(self.traffic(packed_bytes, bucket).sent)

    def sent_between_nodes(self, packed_bytes: int, bucket: int) -> int:
        """The part of `sent_bytes` that goes to ranks on other hosts."""
        return round(self.traffic(packed_bytes, bucket).between_nodes)

    def own_group(self, communicator: Communicator, partition: Sequence[Sequence[int]]) -> Communicator | None:
        """Make a group of each part of `partition`; returns this rank's, None where it is alone."""
        mine = None
        for members in partition:
            if len(members) > 1:
                mine = communicator.group(members) or mine
        if mine:
            self.groups.append(mine)
        return mine


def ranks_by_host(hosts: Sequence[str]) -> list[list[int]]:
    """The ranks on each host, hosts in the order of their first rank."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())
