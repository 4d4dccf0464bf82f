"""Bytes that a sum over all ranks takes, by topology: what an accelerator sends, and what leaves a node.

The closed forms of what `hpcai500/comm/traffic.py` counts rank by rank, for equal nodes whose ranks are consecutive.
With b the bytes of the buffer as it travels, n ranks, N nodes and m = n / N ranks on each:

| topology | one rank, mean | out of one node, mean |
|---|---|---|
| ring | 2 b (n - 1) / n | 2 b (n - 1) / n: only one rank of a node has its neighbour elsewhere |
| tree | 2 b (n - 1) / n | 2 b (N - 1) / N: up and down N - 1 edges (Sanders, Speck and Träff 2009; NCCL) |
| hierarchical | 2 b (n - 1) / n | 2 b (N - 1) / N: a ring of one rank a node |
| torus (a row is a node) | 2 b (m - 1) / m + 2 (b / m) (N - 1) / N | 2 b (N - 1) / N: m rings with b / m each |
| parameter-server | 2 b (n - 1) / n | 2 m b (N - 1) / N: each rank for itself, to and from the server |

No library can sum int8. Its pieces go directly to those who sum them, b (n - 1) / n from each rank, so that
m b (N - 1) / N leave a node, and around a ring back: what that changes is in `_quantised`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcai500.errors import UsageError

Topology = Literal["ring", "tree", "hierarchical", "torus", "parameter-server"]
TOPOLOGIES: tuple[Topology, ...] = ("ring", "hierarchical", "torus", "tree", "parameter-server")

# Bytes that a gradient takes on its way; int8 carries a scale of 4 bytes for each block of 256.
BYTES_A_VALUE = {"none": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 260 / 256}


@dataclass(frozen=True)
class SentBytes:
    """In one sum of one buffer: what one rank sends, and what leaves one node; means over ranks and nodes."""

    rank: float
    node: float


def sent_bytes(topology: Topology, buffer_bytes: float, nodes: int, ranks_per_node: int) -> SentBytes:
    """What `topology` sends to sum `buffer_bytes`, in a type that the library can sum, over equal nodes.

    Raises:
        UsageError: there is no such topology, or a number is not positive.
    """
    _check(topology, buffer_bytes, nodes, ranks_per_node)
    ranks = nodes * ranks_per_node
    over_ranks = 2 * buffer_bytes * (ranks - 1) / ranks
    over_nodes = 2 * buffer_bytes * (nodes - 1) / nodes
    match topology:
        case "ring":
            return SentBytes(over_ranks, over_ranks if nodes > 1 else 0.0)
        case "tree" | "hierarchical":
            return SentBytes(over_ranks, over_nodes)
        case "torus":
            row = 2 * buffer_bytes * (ranks_per_node - 1) / ranks_per_node
            return SentBytes(row + over_nodes / ranks_per_node, over_nodes)
        case "parameter-server":
            return SentBytes(over_ranks, ranks_per_node * over_nodes)


def gradient_bytes(topology: Topology, values: float, compression: str, nodes: int, ranks_per_node: int) -> SentBytes:
    """What `topology` sends to sum so many gradient `values` in the type that `compression` names.

    Raises:
        UsageError: as `sent_bytes`, or there is no such type.
    """
    if compression not in BYTES_A_VALUE:
        raise UsageError(f"compression: expected one of {', '.join(BYTES_A_VALUE)}, got {compression!r}")
    buffer_bytes = values * BYTES_A_VALUE[compression]
    if compression == "int8":
        return _quantised(topology, buffer_bytes, nodes, ranks_per_node)
    return sent_bytes(topology, buffer_bytes, nodes, ranks_per_node)


def _quantised(topology: Topology, buffer_bytes: float, nodes: int, ranks_per_node: int) -> SentBytes:
    """A sum of int8: a flat one, and the server's, are direct; a reduce to one rank costs what one to all does."""
    usual = sent_bytes(topology, buffer_bytes, nodes, ranks_per_node)
    ranks = nodes * ranks_per_node
    once = buffer_bytes * (ranks - 1) / ranks
    direct = ranks_per_node * buffer_bytes * (nodes - 1) / nodes
    back = once if nodes > 1 else 0.0
    match topology:
        case "ring" | "tree":
            return SentBytes(usual.rank, direct + back)
        case "parameter-server":
            return SentBytes(3 * once, 2 * direct + back)
        case "hierarchical":
            return SentBytes(usual.rank + buffer_bytes * (ranks_per_node - 1) / ranks_per_node, usual.node)
        case "torus":
            return usual


def _check(topology: str, buffer_bytes: float, nodes: int, ranks_per_node: int) -> None:
    if topology not in TOPOLOGIES:
        raise UsageError(f"topology: expected one of {', '.join(TOPOLOGIES)}, got {topology!r}")
    if nodes < 1 or ranks_per_node < 1 or buffer_bytes < 0:
        raise UsageError(
            f"bytes of a sum: expected nodes, ranks and bytes, got {nodes} x {ranks_per_node} and {buffer_bytes} bytes"
        )
