"""2D torus: ranks in rows and columns, so that every rank carries a share of what goes far (Mikami et al. 2018)."""

from __future__ import annotations

from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.topologies.base import Topology, ranks_by_host
from hpcai500.comm.traffic import Traffic, ring_pass
from hpcai500.comm.wires import Wire
from hpcai500.comm.working_memory import Buffers
from hpcai500.errors import RecipeError


class Torus(Topology):
    """Reduce-scatter along rows, all-reduce along columns, all-gather along rows.

    A row is `columns` consecutive ranks; column c has rank c of each row.

    Args:
        communicator: all ranks.
        wire: arithmetic on buffers.
        buffers: to work in.
        columns: ranks in a row; 0 takes the ranks of a node.

    Raises:
        RecipeError: the ranks do not fill the rows, or nodes differ where a row is a node.
    """

    def __init__(self, communicator: Communicator, wire: Wire, buffers: Buffers, *, columns: int) -> None:
        super().__init__()
        self._wire, self._buffers = wire, buffers
        size = communicator.size
        self.pieces = columns or _ranks_of_a_node(communicator.hosts)
        if size % self.pieces:
            raise RecipeError(
                f"communication.torus_columns: {size} ranks do not fill rows of {self.pieces}: "
                f"use one of {', '.join(str(count) for count in range(1, size + 1) if size % count == 0)}"
            )
        self._row = self.own_group(
            communicator, [range(first, first + self.pieces) for first in range(0, size, self.pieces)]
        )
        self._column = self.own_group(communicator, [range(column, size, self.pieces) for column in range(self.pieces)])

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        """As `Topology`."""
        piece = self._wire.reduce_scatter(self._row, packed, (bucket, "row")) if self._row else packed
        if self._column:
            piece = self._wire.all_reduce(self._column, piece, (bucket, "column"))
        if self._row is None:
            return piece
        whole = self._buffers.take("torus", len(packed), packed.dtype)
        self._row.all_gather(piece, whole)
        return whole

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """With c columns and r rows: 2 b (c - 1) / c along the row and 2 (b / c) (r - 1) / r along the column."""
        traffic = Traffic()
        if self._row:
            traffic += self._wire.reduce_scatter_traffic(self._row, packed_bytes) + ring_pass(self._row, packed_bytes)
        if self._column:
            traffic += self._wire.all_reduce_traffic(self._column, packed_bytes // self.pieces)
        return traffic


def _ranks_of_a_node(hosts: tuple[str, ...]) -> int:
    nodes = ranks_by_host(hosts)
    sizes = sorted({len(node) for node in nodes})
    if len(sizes) > 1:
        raise RecipeError(
            f"communication.torus_columns: 0 makes a row of each node, but nodes have {' or '.join(map(str, sizes))} "
            "ranks: start as many on each node, or state the ranks of a row"
        )
    if any(node != list(range(node[0], node[0] + len(node))) for node in nodes):
        raise RecipeError(
            "communication.torus_columns: 0 makes a row of each node, but the ranks of a node are not consecutive: "
            "have the launcher place ranks node by node (srun --distribution=block, mpirun --map-by slot), or state "
            "the ranks of a row"
        )
    return sizes[0]
