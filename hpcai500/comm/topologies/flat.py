"""Flat: one all-reduce over all ranks."""

from __future__ import annotations

from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.topologies.base import Topology
from hpcai500.comm.traffic import Traffic
from hpcai500.comm.wires import Wire


class Flat(Topology):
    """One all-reduce, by the library's algorithm where the library can sum."""

    def __init__(self, communicator: Communicator, wire: Wire) -> None:
        super().__init__()
        self._all, self._wire = communicator, wire

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        """As `Topology`."""
        return self._wire.all_reduce(self._all, packed, (bucket, "all"))

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """2 b (n - 1) / n."""
        return self._wire.all_reduce_traffic(self._all, packed_bytes)
