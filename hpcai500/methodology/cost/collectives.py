"""Seconds of one sum of a buffer over all ranks, by topology and algorithm, on links that cost latency and bytes.

n ranks on N nodes of p; b bytes; a and w are latency and bandwidth of a node's network link, a' and w' of a link within
a node. Adding up costs no time of its own. Sources: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective
communication operations in MPICH" (ring, butterfly, reduce, broadcast); Patarasuk and Yuan 2009 (ring); Sanders, Speck
and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (double binary tree).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hpcai500.errors import UsageError
from hpcai500.methodology.cost.links import Hockney, Layout, Network

# Seconds of a sum of this many bytes.
AllReduce = Callable[[float], float]

TOPOLOGIES = ("flat", "hierarchical", "torus", "parameter-server")
ALGORITHMS = ("ring", "double-binary-tree", "butterfly", "hierarchical-ring")


def all_reduce(
    topology: str, layout: Layout, network: Network, *, algorithm: str = "ring", columns: int = 0
) -> AllReduce:
    """The cost of a sum as `communication.topology` and `communication.algorithm` make it; 0 for one rank.

    Args:
        topology: one of `TOPOLOGIES`; its all-reduces between nodes are rings, as ours are over Gloo, but for `flat`.
        layout: who sums.
        network: over what.
        algorithm: of `flat`: one of `ALGORITHMS`; `default` takes the better one of ring and double binary tree, as
            NCCL does by a model of its own.
        columns: ranks in a row of the torus; 0: those of a node.

    Raises:
        UsageError: there is no such topology or algorithm, or ranks do not fill the rows.
    """
    if layout.ranks == 1:
        return lambda size: 0.0
    match topology:
        case "flat":
            return _flat(layout, network, algorithm)
        case "hierarchical":
            return lambda size: hierarchical(layout, network, size)
        case "torus":
            columns = columns or layout.per_node
            if layout.ranks % columns:
                raise UsageError(f"torus: {layout.ranks} ranks do not fill rows of {columns}")
            return lambda size: torus(layout, network, columns, size)
        case "parameter-server":
            return lambda size: parameter_server(layout, network, size)
    raise UsageError(f"topology: expected one of {', '.join(TOPOLOGIES)}, got {topology!r}")


def _flat(layout: Layout, network: Network, algorithm: str) -> AllReduce:
    match algorithm:
        case "ring":
            return lambda size: ring(layout, network, size)
        case "double-binary-tree":
            return lambda size: double_binary_tree(layout, network, size)
        case "butterfly":
            return lambda size: butterfly(layout, network, size)
        case "hierarchical-ring":
            return lambda size: torus(layout, network, layout.per_node, size)
        case "default":
            return lambda size: min(ring(layout, network, size), double_binary_tree(layout, network, size))
    raise UsageError(f"algorithm: expected default or one of {', '.join(ALGORITHMS)}, got {algorithm!r}")


def ring(layout: Layout, network: Network, size: float) -> float:
    """2 (n - 1) steps of b / n each, all ranks at once; the slowest link sets the pace.

    2 (n - 1) max(a + b / (n w), a' + b / (n w')). A ring in rank order crosses each node's link once, each way.
    """
    return _ring_steps(2, layout.ranks, _links(layout, network), size)


def double_binary_tree(layout: Layout, network: Network, size: float) -> float:
    """A chain in each node, two binary trees over the nodes, each with half of the buffer (NCCL 2.4), pipelined.

    2 (p - 1) a' + 2 ceil(log2 N) a + max(k b / w, b / w'). An edge of a tree carries b / 2 each way. Of two nodes, each
    has one edge in each tree: k = 1. Of more, an inner node has three edges in the one and is a leaf of the other:
    k = 2. Within one node it is a ring, as NCCL makes it.
    """
    if layout.nodes == 1:
        return ring(layout, network, size)
    edges = 1 if layout.nodes == 2 else 2
    latency = 2 * (layout.per_node - 1) * network.within.latency_seconds
    latency += 2 * math.ceil(math.log2(layout.nodes)) * network.between.latency_seconds
    busiest = edges * size / network.between.bytes_per_second
    return latency + (max(busiest, size / network.within.bytes_per_second) if layout.per_node > 1 else busiest)


def butterfly(layout: Layout, network: Network, size: float) -> float:
    """Recursive doubling: ceil(log2 p) exchanges of b within nodes, ceil(log2 N) between, p ranks on one link.

    ceil(log2 p) (a' + b / w') + ceil(log2 N) (a + p b / w).
    """
    near = math.ceil(math.log2(layout.per_node)) * network.within.seconds(size)
    return near + math.ceil(math.log2(layout.nodes)) * network.between.seconds(layout.per_node * size)


def hierarchical(layout: Layout, network: Network, size: float) -> float:
    """Reduce in each node, a ring over the N first ranks, broadcast in each node.

    Reduce: 2 (p - 1) (a' + b / (p w')), a reduce-scatter and a gather (Rabenseifner). Ring: 2 (N - 1) (a + b / (N w)).
    Broadcast: ceil(log2 p) (a' + b / w'), a binomial tree.
    """
    near = _ring_steps(2, layout.per_node, (network.within,), size) + _broadcast(layout.per_node, network.within, size)
    return near + _ring_steps(2, layout.nodes, (network.between,), size)


def torus(layout: Layout, network: Network, columns: int, size: float) -> float:
    """Reduce-scatter and all-gather along rows of c, rings along c columns of r ranks with b / c each.

    Within a node: 2 (c - 1) (a' + b / (c w')) + 2 (r - 1) (a + s b / (c r w)), where s = min(c, p) columns share a
    link. A row over several nodes sends p (c - p) b / c over each link instead of using those within the node.
    """
    rows, per_node = layout.ranks // columns, layout.per_node
    if columns <= per_node:
        row = 2 * (columns - 1) * network.within.seconds(size / columns) if columns > 1 else 0.0
    else:
        far = per_node * (columns - per_node) * size / columns
        link = network.between
        row = 2 * ((columns - 1) * link.latency_seconds + far / link.bytes_per_second)
    if rows == 1:
        return row
    piece = size / columns / rows
    # All columns run at once. With more rows than nodes, neighbours in a column share a node.
    step = network.within.seconds(piece) if rows > layout.nodes else 0.0
    if layout.nodes > 1:
        step = max(step, network.between.seconds(min(columns, per_node) * piece))
    return row + 2 * (rows - 1) * step


def parameter_server(layout: Layout, network: Network, size: float) -> float:
    """Reduce to one rank and broadcast from it, which waits for the link of its node.

    2 (n - 1) (a + b / (n w)) + ceil(log2 n) (a + b / w); a' and w' on one node.
    """
    links = _links(layout, network)
    broadcast = max(_broadcast(layout.ranks, link, size) for link in links)
    return _ring_steps(2, layout.ranks, links, size) + broadcast


def _links(layout: Layout, network: Network) -> tuple[Hockney, ...]:
    """The links that a message between neighbours may go by."""
    within = (network.within,) if layout.per_node > 1 else ()
    between = (network.between,) if layout.nodes > 1 else ()
    return within + between


def _ring_steps(passes: int, members: int, links: tuple[Hockney, ...], size: float) -> float:
    if members == 1:
        return 0.0
    return passes * (members - 1) * max(link.seconds(size / members) for link in links)


def _broadcast(members: int, link: Hockney, size: float) -> float:
    return math.ceil(math.log2(members)) * link.seconds(size)
