"""Bytes that a rank sends in one collective, by the standard algorithm of each: the count of V2.0's COI model.

n is the number of members, b the size of the whole buffer. A ring (Patarasuk and Yuan 2009, "Bandwidth optimal
all-reduce algorithms") sends to the next member only, so that of consecutive ranks on a host only the last one sends to
another host; the direct algorithms send to everybody. What a library really sends, the network counters tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcai500.comm.base import Communicator


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends: in all, and the part of it that goes to ranks on other hosts."""

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
    """b from each member but the root."""
    if group.rank == root:
        return Traffic()
    return Traffic(buffer_bytes, buffer_bytes if group.hosts[group.rank] != group.hosts[root] else 0.0)


def broadcast_from(group: Communicator, buffer_bytes: float, root: int) -> Traffic:
    """b (n - 1), all of it from the root; where a tree shares the work, the sum over the members is the same."""
    if group.rank != root:
        return Traffic()
    return Traffic(buffer_bytes * (group.size - 1), buffer_bytes * _members_elsewhere(group))


def _members_elsewhere(group: Communicator) -> int:
    return sum(host != group.hosts[group.rank] for host in group.hosts)
