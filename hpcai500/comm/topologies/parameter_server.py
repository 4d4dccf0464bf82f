"""Synchronous parameter server: each bucket is summed by one rank, which tells the others (Li et al. 2014)."""

from __future__ import annotations

from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.topologies.base import Topology
from hpcai500.comm.traffic import Traffic, broadcast_from
from hpcai500.comm.wires import Wire


class ParameterServer(Topology):
    """Bucket i is reduced to rank i mod n and broadcast from there, so that all ranks serve in turn.

    Servers sum gradients; the update is computed by all ranks alike, as in the other topologies.
    """

    def __init__(self, communicator: Communicator, wire: Wire) -> None:
        super().__init__()
        self._all, self._wire = communicator, wire

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        """As `Topology`."""
        server = self._server(bucket)
        total = self._wire.reduce(self._all, packed, server, (bucket, "server"))
        self._all.broadcast(total, server)
        return total

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """b to the server, and (n - 1) b from it."""
        server = self._server(bucket)
        return self._wire.reduce_traffic(self._all, packed_bytes, server) + broadcast_from(
            self._all, packed_bytes, server
        )

    def _server(self, bucket: int) -> int:
        return bucket % self._all.size
