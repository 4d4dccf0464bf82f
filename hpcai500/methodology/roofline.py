"""The rooflines of V2.0 section 6: what a workload can attain, its bottleneck, and which changes would help.

    attainable FLOPS = min(FLOPS ceiling, bandwidth ceiling x COI)              (equations 3 to 6)

COI, the communication operation intensity, is FLOPs / bytes communicated. The paper counts the bytes of all
accelerators but takes the bandwidth of a single link; its own attained FLOPS would then lie far above their bound
(docs/roofline.md). Bytes and bandwidth have to be those of the same links, so here

    COI = FLOPs of all accelerators in a step / bytes that go through ONE link in it

with the link of the ceiling: an accelerator's in the single-node model, a node's network interface in the distributed
one. All links of a kind carry as much at the same time, so this is the same bound as all bytes against the sum of all
links, and every number that the paper prints keeps its value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hpcai500.errors import UsageError

# ----------------------------------------------------------------------------------------------------
# The arithmetic of a recipe's precision, which selects the ceilings to compare with.


def arithmetic_of(precision: str) -> str:
    """The precision in which products are computed for a recipe's `accelerator.precision`.

    Training in int8 rounds values to 8 bits, but multiplies in float32: torch has no 8-bit kernels for training.
    """
    return "fp32" if precision == "int8" else precision


# ----------------------------------------------------------------------------------------------------
# Bytes of one all-reduce by topology: what an accelerator sends, and what leaves a node.
#
# The closed forms of what `hpcai500/comm/topologies.py` counts rank by rank, for equal nodes with consecutive ranks.
# With b the bytes of the buffer as it travels, n ranks, N nodes and m = n / N ranks on each:
#
# | topology | one rank, mean | out of one node, mean |
# |---|---|---|
# | ring | 2 b (n - 1) / n | 2 b (n - 1) / n: only one rank of a node has its neighbour elsewhere |
# | tree | 2 b (n - 1) / n | 2 b (N - 1) / N: up and down N - 1 edges (Sanders, Speck and Träff 2009; NCCL) |
# | hierarchical | 2 b (n - 1) / n | 2 b (N - 1) / N: a ring of one rank a node |
# | torus (a row is a node) | 2 b (m - 1) / m + 2 (b / m) (N - 1) / N | 2 b (N - 1) / N: m rings with b / m each |
# | parameter-server | 2 b (n - 1) / n | 2 m b (N - 1) / N: each rank for itself, to and from the server |
#
# No library can sum int8. Its pieces are sent directly to the ranks that sum them (`direct_pass`), and the sums return
# around a ring (`ring_pass`): see `_quantised`. `methodology/cost.py` takes the time of the same passes.


Topology = Literal["ring", "tree", "hierarchical", "torus", "parameter-server"]
TOPOLOGIES: tuple[Topology, ...] = ("ring", "hierarchical", "torus", "tree", "parameter-server")

Compression = Literal["none", "fp16", "bf16", "int8"]
# Bytes that a gradient value takes as it travels; int8 has a scale of 4 bytes for each block of 256.
BYTES_A_VALUE: Mapping[str, float] = {"none": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 260 / 256}


@dataclass(frozen=True)
class SentBytes:
    """Bytes that one rank sends, and that leave one node, to sum one buffer; means over ranks and nodes."""

    rank: float
    node: float


def ring_pass(buffer_bytes: float, nodes: int, ranks_per_node: int) -> SentBytes:
    """Once around a ring of all ranks: a reduce-scatter or an all-gather. One rank of a node sends to another node."""
    ranks = nodes * ranks_per_node
    once = buffer_bytes * (ranks - 1) / ranks
    return SentBytes(once, once if nodes > 1 else 0.0)


def direct_pass(buffer_bytes: float, nodes: int, ranks_per_node: int) -> SentBytes:
    """A piece of 1 / ranks from each rank to each other: all ranks of a node send to all ranks of other nodes."""
    ranks = nodes * ranks_per_node
    return SentBytes(buffer_bytes * (ranks - 1) / ranks, ranks_per_node * buffer_bytes * (nodes - 1) / nodes)


def sent_bytes(topology: Topology, buffer_bytes: float, nodes: int, ranks_per_node: int) -> SentBytes:
    """What `topology` sends to sum `buffer_bytes`, of a type that the library can sum, over equal nodes.

    Raises:
        UsageError: there is no such topology, or a number is not positive.
    """
    _check(topology, buffer_bytes, nodes, ranks_per_node)
    once = ring_pass(buffer_bytes, nodes, ranks_per_node)
    over_nodes = 2 * buffer_bytes * (nodes - 1) / nodes
    match topology:
        case "ring":
            return SentBytes(2 * once.rank, 2 * once.node)
        case "tree" | "hierarchical":
            return SentBytes(2 * once.rank, over_nodes)
        case "torus":
            row = 2 * buffer_bytes * (ranks_per_node - 1) / ranks_per_node
            return SentBytes(row + over_nodes / ranks_per_node, over_nodes)
        case "parameter-server":
            return SentBytes(2 * once.rank, ranks_per_node * over_nodes)


def gradient_bytes(topology: Topology, values: float, compression: str, nodes: int, ranks_per_node: int) -> SentBytes:
    """What `topology` sends to sum `values` gradient values in the type that `compression` names.

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
    """A sum of int8: pieces go directly in flat topologies and to a server; a reduce costs what a broadcast does."""
    usual = sent_bytes(topology, buffer_bytes, nodes, ranks_per_node)
    direct = direct_pass(buffer_bytes, nodes, ranks_per_node)
    back = ring_pass(buffer_bytes, nodes, ranks_per_node)
    match topology:
        case "ring" | "tree":
            return SentBytes(direct.rank + back.rank, direct.node + back.node)
        case "parameter-server":
            return SentBytes(3 * back.rank, 2 * direct.node + back.node)
        case "hierarchical":
            return SentBytes(usual.rank + buffer_bytes * (ranks_per_node - 1) / ranks_per_node, usual.node)
        case "torus":
            return usual


def _check(topology: str, buffer_bytes: float, nodes: int, ranks_per_node: int) -> None:
    if topology not in TOPOLOGIES:
        raise UsageError(f"topology: expected one of {', '.join(TOPOLOGIES)}, got {topology!r}")
    if nodes < 1 or ranks_per_node < 1 or buffer_bytes < 0:
        raise UsageError(
            f"all-reduce: expected positive numbers of nodes and ranks, and 0 bytes or more, got {nodes} x "
            f"{ranks_per_node} and {buffer_bytes} bytes"
        )


# ----------------------------------------------------------------------------------------------------
# Ceilings, attainable FLOPS, and the bottleneck.


Kind = Literal["computation", "communication"]
Model = Literal["node", "system"]
MoveKind = Literal["compression", "precision", "batch", "topology"]
_ROUNDING = 1e-9
# The order of preference: both workloads do nearly all FLOPs in convolutions (docs/methodology.md), and nothing reaches
# the peak of a data sheet.
_KERNELS = ("CONV", "GEMM", "peak")
# `mixed` is the papers' word for fp16 with sums in fp32.
_SAME_PRECISION = {"fp16": ("mixed",), "bf16": ("mixed",), "mixed": ("fp16", "bf16")}


@dataclass(frozen=True)
class Ceiling:
    """A named limit, in FLOPS or bytes a second."""

    name: str
    rate: float


def attainable_flops(flops_ceiling: float, bandwidth: float, coi: float) -> float:
    """min(FLOPS ceiling, bandwidth ceiling x COI): equations 3 to 6.

    Raises:
        UsageError: one of them is not positive and finite.
    """
    for name, value in (("FLOPS ceiling", flops_ceiling), ("bandwidth", bandwidth), ("COI", coi)):
        if not (value > 0 and math.isfinite(value)):
            raise UsageError(f"roofline: {name}: expected a positive number, got {value}")
    return min(flops_ceiling, bandwidth * coi)


def ridge_point(flops_ceiling: float, bandwidth: float) -> float:
    """The COI where the slanted and the flat part meet: below it the bottleneck is communication, above computation."""
    return flops_ceiling / bandwidth


@dataclass(frozen=True)
class Roof:
    """The limits of one workload: FLOPS of its kernel in its precision, and the link that its gradients go through.

    `link` is None if nothing is communicated; then the roof has no slanted part.
    """

    flops: Ceiling
    link: Ceiling | None

    def attainable(self, coi: float | None) -> float:
        """The bound in FLOPS at `coi`; None if nothing is communicated."""
        if self.link is None or coi is None:
            return self.flops.rate
        return attainable_flops(self.flops.rate, self.link.rate, coi)

    def binding(self, coi: float | None) -> Ceiling:
        """The bottleneck at `coi`; at the ridge point itself, computation."""
        is_flat = self.link is None or coi is None or self.attainable(coi) == self.flops.rate
        return self.flops if is_flat or self.link is None else self.link

    def kind(self, coi: float | None) -> Kind:
        return "computation" if self.binding(coi) is self.flops else "communication"


@dataclass(frozen=True)
class Workload:
    """One run, as described to the model.

    Attributes:
        model: which links its bytes go through: an accelerator's (`node`), or a node's to the others (`system`).
        precision: of its arithmetic.
        coi: FLOPs for each byte through one link, as compressed; None if nothing is communicated.
        compression: type in which gradients travelled.
        topology: None if it is not known.
    """

    model: Model
    precision: str
    coi: float | None
    compression: str = "none"
    topology: Topology | None = None
    nodes: int = 1
    ranks_per_node: int = 1

    @property
    def coi_uncompressed(self) -> float | None:
        """The COI with gradients in fp32."""
        return None if self.coi is None else self.coi * self.fewer_bytes(compression="none")

    def fewer_bytes(self, compression: str | None = None, topology: Topology | None = None) -> float:
        """The factor by which another compression or topology would reduce the bytes through the link."""
        new = compression or self.compression
        now = self.topology
        if now is None:
            return BYTES_A_VALUE[self.compression] / BYTES_A_VALUE[new]
        return self._through_link(now, self.compression) / self._through_link(topology or now, new)

    def _through_link(self, topology: Topology, compression: str) -> float:
        sent = gradient_bytes(topology, 1.0, compression, self.nodes, self.ranks_per_node)
        return sent.rank if self.model == "node" else sent.node


@dataclass(frozen=True)
class Move:
    """A possible change, with its effect on COI and bound."""

    kind: MoveKind
    change: str
    coi_factor: float
    coi: float | None
    attainable_flops: float
    binding: str


def flops_ceiling(precision: str, ceilings: Mapping[str, float]) -> Ceiling:
    """The ceiling of a convolutional network in `precision`: that of CONV if it was measured, else GEMM, else the peak.

    `ceilings` are FLOPS by name, such as `CONV fp32`, `GEMM mixed`, `peak fp32`. The arithmetic of `int8` is fp32's.

    Raises:
        UsageError: there is no ceiling in this precision.
    """
    computed = arithmetic_of(precision)
    for kernel in _KERNELS:
        for same in (computed, *_SAME_PRECISION.get(computed, ())):
            if (name := f"{kernel} {same}") in ceilings:
                return Ceiling(name, ceilings[name])
    raise UsageError(
        f"roofline: the machine has no FLOPS ceiling in {precision} (it has {', '.join(ceilings) or 'none'}): "
        "measure it: hpcai500 micro -o micro.json"
    )


def next_precision(roof: Roof, ceilings: Mapping[str, float]) -> Ceiling | None:
    """The next higher ceiling of the same kernel, which is that of another precision, or None."""
    kernel = roof.flops.name.split(" ", 1)[0]
    higher = (
        Ceiling(name, rate)
        for name, rate in ceilings.items()
        if name.startswith(f"{kernel} ") and rate > roof.flops.rate
    )
    return min(higher, key=lambda ceiling: ceiling.rate, default=None)


def moves(workload: Workload, roof: Roof, ceilings: Mapping[str, float]) -> tuple[Move, ...]:
    """What each change alone would do to the bound (V2.0 section 7.5.2): precision, compression, batch, topology."""
    found = []
    if faster := next_precision(roof, ceilings):
        found.append(_move("precision", f"arithmetic at {faster.name}", 1.0, workload, Roof(faster, roof.link)))
    if workload.coi is not None and roof.link is not None:
        changes = (*_compressions(workload), ("batch", "twice the batch", 2.0), *_topologies(workload))
        found += [_move(kind, change, factor, workload, roof) for kind, change, factor in changes]
    return tuple(found)


_Change = tuple[MoveKind, str, float]


def _compressions(workload: Workload) -> Iterator[_Change]:
    """The next narrower type that sends fewer bytes: half the bytes are twice the COI."""
    wider = BYTES_A_VALUE[workload.compression]
    for narrower in ("fp16", "int8"):
        if BYTES_A_VALUE[narrower] < wider and (factor := workload.fewer_bytes(compression=narrower)) > 1:
            yield "compression", f"{narrower} compression", factor
            return


def _topologies(workload: Workload) -> Iterator[_Change]:
    """The topology that sends least through the link, if it is not the current one."""
    if workload.topology is None:
        return
    best = max(TOPOLOGIES, key=lambda topology: workload.fewer_bytes(topology=topology))
    if (factor := workload.fewer_bytes(topology=best)) > 1 + _ROUNDING:
        yield "topology", f"a {best} instead of a {workload.topology}", factor


def _move(kind: MoveKind, change: str, factor: float, workload: Workload, roof: Roof) -> Move:
    coi = None if workload.coi is None else workload.coi * factor
    return Move(kind, change, factor, coi, roof.attainable(coi), roof.binding(coi).name)
