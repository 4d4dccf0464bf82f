"""Topologies: ways to sum a buffer over all ranks (V2.0 section 5.1.6).

In formulas of traffic, b is the size of the buffer in bytes and n the number of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from hpcai500.comm.codecs import Buffers, Codec
from hpcai500.comm.communicator import Communicator, Traffic, broadcast_from, ring_pass
from hpcai500.errors import RecipeError
from hpcai500.layers import Communication

# ----------------------------------------------------------------------------------------------------
# The interface of a topology, and its groups.


class Topology(ABC):
    """Sums packed buffers over all ranks. All ranks make the same one; one thread at a time uses it.

    Attributes:
        pieces: a buffer must have this many equal pieces, each a multiple of the codec's grain.
        groups: the communicators that it made; the caller closes them.
    """

    pieces: int = 1

    def __init__(self, communicator: Communicator, codec: Codec) -> None:
        self._all, self._codec = communicator, codec
        self.groups: list[Communicator] = []

    @abstractmethod
    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        """The sum of `packed` over all ranks, bitwise equal on all of them; `packed` may be overwritten.

        Raises:
            RunError: a rank is lost.
        """

    @abstractmethod
    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """Bytes this rank sends in `sum` of a buffer of `packed_bytes`."""

    def own_group(self, partition: Sequence[Sequence[int]]) -> Communicator | None:
        """Make a group of each part of `partition`; returns this rank's group, None if it is alone."""
        mine = None
        for members in partition:
            if len(members) > 1:
                mine = self._all.group(members) or mine
        if mine:
            self.groups.append(mine)
        return mine


def ranks_by_host(hosts: Sequence[str]) -> list[list[int]]:
    """The ranks on each host, hosts in the order of their first rank."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())


# ----------------------------------------------------------------------------------------------------
# The topologies.


class Flat(Topology):
    """One all-reduce over all ranks, by the library's algorithm if the library can sum."""

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        return self._codec.all_reduce(self._all, packed, (bucket, "all"))

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """2 b (n - 1) / n."""
        return self._codec.all_reduce_traffic(self._all, packed_bytes)


class Hierarchical(Topology):
    """Reduce within a node to its first rank, all-reduce between these leaders, broadcast within the node.

    Only one rank of each node communicates with other nodes (Goyal et al. 2017, section 4.1). Ranks with the same host
    name are on one node. Nodes may have different numbers of ranks.
    """

    def __init__(self, communicator: Communicator, codec: Codec) -> None:
        super().__init__(communicator, codec)
        nodes = ranks_by_host(communicator.hosts)
        self._node = self.own_group(nodes)
        self._leaders = self.own_group([[node[0] for node in nodes]])

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        if self._node:
            packed = self._codec.reduce(self._node, packed, 0, (bucket, "node"))
        if self._leaders:
            packed = self._codec.all_reduce(self._leaders, packed, (bucket, "leaders"))
        if self._node:
            self._node.broadcast(packed, 0)
        return packed

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """b from each rank to its leader; from a leader of m ranks (m - 1) b, and 2 b (l - 1) / l to l - 1 others."""
        traffic = Traffic()
        if self._node:
            traffic += self._codec.reduce_traffic(self._node, packed_bytes, 0) + broadcast_from(
                self._node, packed_bytes, 0
            )
        if self._leaders:
            traffic += self._codec.all_reduce_traffic(self._leaders, packed_bytes)
        return traffic


class ParameterServer(Topology):
    """Synchronous parameter server (Li et al. 2014): bucket i is reduced to rank i mod n and broadcast from there.

    Servers only sum gradients; all ranks compute the update, as in the other topologies.
    """

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        server = self._server(bucket)
        total = self._codec.reduce(self._all, packed, server, (bucket, "server"))
        self._all.broadcast(total, server)
        return total

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """b to the server, and (n - 1) b from it."""
        server = self._server(bucket)
        return self._codec.reduce_traffic(self._all, packed_bytes, server) + broadcast_from(
            self._all, packed_bytes, server
        )

    def _server(self, bucket: int) -> int:
        return bucket % self._all.size


class Torus(Topology):
    """2D torus (Mikami et al. 2018): reduce-scatter along rows, all-reduce along columns, all-gather along rows.

    Every rank sends a share of the traffic to other nodes. A row is `columns` consecutive ranks (0: the ranks of a
    node); column c has rank c of each row.

    Raises:
        RecipeError: the ranks do not fill the rows, or a row is a node and nodes differ in size.
    """

    def __init__(self, communicator: Communicator, codec: Codec, buffers: Buffers, *, columns: int) -> None:
        super().__init__(communicator, codec)
        self._buffers = buffers
        size = communicator.size
        self.pieces = columns or _ranks_of_a_node(communicator.hosts)
        if size % self.pieces:
            raise RecipeError(
                f"communication.torus_columns: {size} ranks do not fill rows of {self.pieces}: "
                f"use one of {', '.join(str(count) for count in range(1, size + 1) if size % count == 0)}"
            )
        self._row = self.own_group([range(first, first + self.pieces) for first in range(0, size, self.pieces)])
        self._column = self.own_group([range(column, size, self.pieces) for column in range(self.pieces)])

    def sum(self, packed: Tensor, bucket: int) -> Tensor:
        piece = self._codec.reduce_scatter(self._row, packed, (bucket, "row")) if self._row else packed
        if self._column:
            piece = self._codec.all_reduce(self._column, piece, (bucket, "column"))
        if self._row is None:
            return piece
        whole = self._buffers.take("torus", len(packed), packed.dtype)
        self._row.all_gather(piece, whole)
        return whole

    def traffic(self, packed_bytes: int, bucket: int) -> Traffic:
        """With c columns and r rows: 2 b (c - 1) / c along the row and 2 (b / c) (r - 1) / r along the column."""
        traffic = Traffic()
        if self._row:
            traffic += self._codec.reduce_scatter_traffic(self._row, packed_bytes) + ring_pass(self._row, packed_bytes)
        if self._column:
            traffic += self._codec.all_reduce_traffic(self._column, packed_bytes // self.pieces)
        return traffic


def _ranks_of_a_node(hosts: tuple[str, ...]) -> int:
    nodes = ranks_by_host(hosts)
    sizes = sorted({len(node) for node in nodes})
    if len(sizes) > 1:
        raise RecipeError(
            f"communication.torus_columns: 0 makes a row of each node, but nodes have {' or '.join(map(str, sizes))} "
            "ranks: start the same number on each node, or state the ranks of a row"
        )
    if any(node != list(range(node[0], node[0] + len(node))) for node in nodes):
        raise RecipeError(
            "communication.torus_columns: 0 makes a row of each node, but the ranks of a node are not consecutive: "
            "have the launcher place ranks node by node (srun --distribution=block, mpirun --map-by slot), or state "
            "the ranks of a row"
        )
    return sizes[0]


def make_topology(settings: Communication, communicator: Communicator, codec: Codec, buffers: Buffers) -> Topology:
    """The topology that `settings` names, over all members of `communicator`, which all make the same call.

    Raises:
        RecipeError: it does not fit these ranks.
    """
    match settings.topology:
        case "flat":
            return Flat(communicator, codec)
        case "hierarchical":
            return Hierarchical(communicator, codec)
        case "torus":
            return Torus(communicator, codec, buffers, columns=settings.torus_columns)
        case "parameter-server":
            return ParameterServer(communicator, codec)
