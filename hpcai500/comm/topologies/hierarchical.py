"""Hierarchical all-reduce: only one rank of each node speaks to other nodes (Goyal et al. 2017, section 4.1)."""

from __future__ import annotations

from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.topologies.base import Topology, ranks_by_host
from hpcai500.comm.traffic import Traffic, broadcast_from
from hpcai500.comm.wires import Wire


class Hierarchical(Topology):
    """Reduce in the node to its first rank, all-reduce between these leaders, broadcast in the node.

    A node is what has one host name. Nodes may have different numbers of ranks.
    """

    def __init__(self, communicator: Communicator, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        nodes = ranks_by_host(communicator.hosts)
        self._node = self.own_group(communicator, nodes)
        self._leaders = self.own_group(communicator, [[node[0] for node in nodes]])

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        """As `Topology`."""
        if self._node:
            packed = self._wire.reduce(self._node, packed, 0, (bucket, "node"))
        if self._leaders:
            packed = self._wire.all_reduce(self._leaders, packed, (bucket, "leaders"))
        if self._node:
            self._node.broadcast(packed, 0)
        return packed

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """b from each rank to its leader; from a leader of m ranks (m - 1) b, and 2 b (l - 1) / l to l - 1 others."""
        traffic = Traffic()
        if self._node:
            traffic += self._wire.reduce_traffic(self._node, packed_bytes, 0) + broadcast_from(
                self._node, packed_bytes, 0
            )
        if self._leaders:
            traffic += self._wire.all_reduce_traffic(self._leaders, packed_bytes)
        return traffic
