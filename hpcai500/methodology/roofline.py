"""The rooflines of V2.0 section 6: what a workload can attain, which limit binds it, and what would move it.

    attainable FLOPS = min(FLOPS ceiling, bandwidth ceiling x COI)              (equations 3 to 6)

COI, the communication operation intensity, is FLOPs / bytes communicated. The paper counts the bytes of all
accelerators and sets them against the bandwidth of a single link; its own attained FLOPS would then lie far above their
bound (docs/roofline.md). Bytes and bandwidth have to be of the same links, so here

    COI = FLOPs of all accelerators in a step / bytes that go through ONE link in it

with the link that the ceiling is of: an accelerator's in the single-node model, a node's network interface in the
distributed one. All links of a kind carry as much at the same time, so this is the same bound as all bytes against the
sum of all links, and every number that the paper prints keeps its value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hpcai500.errors import UsageError
from hpcai500.methodology.arithmetic import arithmetic_of
from hpcai500.methodology.sent_bytes import BYTES_A_VALUE, TOPOLOGIES, Topology, gradient_bytes

Kind = Literal["computation", "communication"]
Model = Literal["node", "system"]
MoveKind = Literal["compression", "precision", "batch", "topology"]
_ROUNDING = 1e-9
# Both workloads do nearly all their FLOPs in convolutions (docs/methodology.md); a data sheet's peak is nobody's.
_KERNELS = ("CONV", "GEMM", "peak")
# `mixed` is a paper's word for fp16 with sums in fp32.
_SAME_PRECISION = {"fp16": ("mixed",), "bf16": ("mixed",), "mixed": ("fp16", "bf16")}


@dataclass(frozen=True)
class Ceiling:
    """A limit by its name, in FLOPS or bytes a second."""

    name: str
    rate: float


def attainable_flops(flops_ceiling: float, bandwidth: float, coi: float) -> float:
    """min(FLOPS ceiling, bandwidth ceiling x COI): equations 3 to 6.

    Raises:
        UsageError: one of them is no positive number.
    """
    for name, value in (("FLOPS ceiling", flops_ceiling), ("bandwidth", bandwidth), ("COI", coi)):
        if not (value > 0 and math.isfinite(value)):
            raise UsageError(f"roofline: {name}: expected a positive number, got {value}")
    return min(flops_ceiling, bandwidth * coi)


def ridge_point(flops_ceiling: float, bandwidth: float) -> float:
    """The COI where slanted and flat part meet: below it communication binds, above it computation."""
    return flops_ceiling / bandwidth


@dataclass(frozen=True)
class Roof:
    """What bounds one workload: the FLOPS of its kernel in its precision, and the link that its gradients go through.

    `link` is None where nothing is communicated: there is no slanted part then.
    """

    flops: Ceiling
    link: Ceiling | None

    def attainable(self, coi: float | None) -> float:
        """The bound at `coi` (None: it communicates nothing)."""
        if self.link is None or coi is None:
            return self.flops.rate
        return attainable_flops(self.flops.rate, self.link.rate, coi)

    def binding(self, coi: float | None) -> Ceiling:
        """The limit that binds at `coi`; on the ridge point itself, computation."""
        is_flat = self.link is None or coi is None or self.attainable(coi) == self.flops.rate
        return self.flops if is_flat or self.link is None else self.link

    def kind(self, coi: float | None) -> Kind:
        """What binds, in one word."""
        return "computation" if self.binding(coi) is self.flops else "communication"


@dataclass(frozen=True)
class Workload:
    """One run as the model sees it.

    Attributes:
        model: whose links its bytes go through.
        precision: of its arithmetic.
        coi: FLOPs for each byte through one link, as it travelled; None where nothing is communicated.
        compression: type in which gradients travelled.
        topology: how they were summed; None where it is not known.
        nodes: that it ran on.
        ranks_per_node: accelerators on each.
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
        """What the COI would be with gradients in fp32."""
        return None if self.coi is None else self.coi * self.fewer_bytes(compression="none")

    def fewer_bytes(self, compression: str | None = None, topology: Topology | None = None) -> float:
        """How many times fewer bytes would go through the link with another compression or topology."""
        new = compression or self.compression
        now = self.topology
        if now is None:
            return BYTES_A_VALUE[self.compression] / BYTES_A_VALUE[new]
        return self._through_link(now, self.compression) / self._through_link(topology or now, new)

    def _through_link(self, topology: Topology, compression: str) -> float:
        """Bytes for each gradient value."""
        sent = gradient_bytes(topology, 1.0, compression, self.nodes, self.ranks_per_node)
        return sent.rank if self.model == "node" else sent.node


@dataclass(frozen=True)
class Move:
    """Something that can be changed, and what the model says of it."""

    kind: MoveKind
    change: str
    coi_factor: float
    coi: float | None
    attainable_flops: float
    binding: str


def flops_ceiling(precision: str, ceilings: Mapping[str, float]) -> Ceiling:
    """The ceiling of a convolutional network in `precision`: CONV where it was measured, or GEMM, or the peak.

    Args:
        precision: `fp32`, `tf32`, `bf16`, `fp16`, `int8` (whose arithmetic is fp32's) or `mixed`.
        ceilings: FLOPS by name: `CONV fp32`, `GEMM mixed`, `peak fp32`.

    Raises:
        UsageError: there is none in this precision.
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
    """The next higher ceiling of the same kernel in another precision, or None."""
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
    """Narrower types: half the bytes are twice the COI."""
    wider = BYTES_A_VALUE[workload.compression]
    for narrower in ("fp16", "int8"):
        if BYTES_A_VALUE[narrower] < wider and (factor := workload.fewer_bytes(compression=narrower)) > 1:
            yield "compression", f"{narrower} compression", factor
            return


def _topologies(workload: Workload) -> Iterator[_Change]:
    """The topology that sends least through the link, if it is another one."""
    if workload.topology is None:
        return
    best = max(TOPOLOGIES, key=lambda topology: workload.fewer_bytes(topology=topology))
    if (factor := workload.fewer_bytes(topology=best)) > 1 + _ROUNDING:
        yield "topology", f"a {best} instead of a {workload.topology}", factor


def _move(
    kind: MoveKind,
    change: str,
    factor: float,
    workload: Workload,
    roof: Roof,
) -> Move:
    coi = None if workload.coi is None else workload.coi * factor
    return Move(kind, change, factor, coi, roof.attainable(coi), roof.binding(coi).name)
