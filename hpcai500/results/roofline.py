"""`hpcai500 roofline`: where runs lie below the ceilings of a machine, what binds them, and what would move it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcai500.errors import UsageError
from hpcai500.machine import Level, Machine, PaperPoint
from hpcai500.methodology.roofline import Ceiling, Model, Move, Roof, Workload, flops_ceiling, moves, ridge_point
from hpcai500.results.given_files import GivenFile
from hpcai500.results.roofline_words import flops_per_byte, move_sentence, point_sentence, precise


@dataclass(frozen=True)
class Roofs:
    """All ceilings of so many accelerators: FLOPS of all of them, bytes a second through one link, and ridge points.

    `ridges` holds the COI (FLOPs a byte) where a FLOPS ceiling meets a bandwidth ceiling, by the names of both.
    """

    accelerators: int
    ceilings: Mapping[str, float]
    bandwidths: Mapping[str, float]
    ridges: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class RooflinePoint:
    """One run in the model.

    Attributes:
        name: what people call it.
        benchmark: `ic`, `ewa`, or a plug-in's.
        precision: of its arithmetic.
        compression: type in which its gradients travelled.
        accelerators: that it ran on.
        flops: attained in its training steps, by all accelerators together.
        coi: FLOPs for each byte through one link, as it travelled; None where nothing is communicated.
        coi_uncompressed: what that would be with gradients in fp32.
        bound: `communication` or `computation`.
        binding: the ceiling that binds.
        attainable_flops: what that allows.
        share: flops / attainable_flops.
        flops_ceiling: the flat part of its roof.
        bandwidth: the slanted one; None where there is none.
        moves: what would change the bound.
        sentence: all of it for people.
        source: the record's path, or where it was published.
    """

    name: str
    benchmark: str
    precision: str
    compression: str
    accelerators: int
    flops: float
    coi: float | None
    coi_uncompressed: float | None
    bound: str
    binding: str
    attainable_flops: float
    share: float
    flops_ceiling: str
    bandwidth: str | None
    moves: tuple[Move, ...]
    sentence: str
    source: str


@dataclass(frozen=True)
class Roofline:
    """One model of one machine, with the points in it. `roofs` has the ceilings of each number of accelerators.

    `draws_whole` says whether the whole machine is of interest: where no run is, and beside published ones. `sources`
    are the files that the ceilings were given in.
    """

    model: Model
    machine: str
    source: str
    bound: str | None
    whole: Roofs
    points: tuple[RooflinePoint, ...]
    roofs: tuple[Roofs, ...]
    draws_whole: bool
    sources: tuple[GivenFile, ...] = ()

    def document(self) -> dict[str, Any]:
        """For programs. `ceilings` and `bandwidths` are those of the whole machine; each point's are in `roofs`."""
        return {
            "model": self.model,
            "machine": self.machine,
            "source": self.source,
            "sources": [file.document() for file in self.sources],
            "bound": self.bound,
            **asdict(self.whole),
            "roofs": [asdict(roofs) for roofs in self.roofs],
            "points": [
                {**asdict(point), "moves": [{**asdict(m), "sentence": move_sentence(m, point)} for m in point.moves]}
                for point in self.points
            ],
            "sentence": " ".join(f"{point.sentence}." for point in self.points) or None,
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        kind = "distributed" if self.model == "system" else "single-node"
        yield f"{kind} roofline of {self.machine}"
        yield f"source      {self.source}"
        yield from (f"signature   {file.sentence}" for file in self.sources)
        for roofs in {self.whole.accelerators: self.whole, **{one.accelerators: one for one in self.roofs}}.values():
            yield from _roof_lines(roofs, self.bound)
        for point in self.points:
            yield ""
            yield f"{point.sentence}"
            for move in point.moves:
                yield f"  {move_sentence(move, point)}"


def machine_roofline(machine: Machine, model: Model | None = None) -> Roofline:
    """The model of `machine` with the points that were published for it; by default the distributed one, if it has one.

    Raises:
        UsageError: the machine has no such model, or no ceiling for a point.
    """
    chosen: Model = model or ("system" if machine.system else "node")
    level = level_of(machine, chosen)
    points = [_published(point, machine, level) for point in machine.points if point.model == chosen]
    return make_roofline(machine, chosen, points, draws_whole=True)


def make_roofline(
    machine: Machine, model: Model, points: Sequence[RooflinePoint], *, draws_whole: bool = False
) -> Roofline:
    """The model with these points in it."""
    level = level_of(machine, model)
    sizes = sorted({point.accelerators for point in points})
    return Roofline(
        model=model,
        machine=machine.name,
        source=machine.source,
        bound=level.bound,
        whole=_roofs(level),
        points=tuple(points),
        roofs=tuple(_roofs(level.of(size)) for size in sizes),
        draws_whole=draws_whole,
    )


def level_of(machine: Machine, model: Model) -> Level:
    """The ceilings of one of the machine's models.

    Raises:
        UsageError: it has none.
    """
    level = machine.node if model == "node" else machine.system
    if level is None:
        other = "node" if model == "system" else "system"
        raise UsageError(f"{machine.name}: no model `{model}`: it has only --model {other} ({machine.source})")
    return level


def place(
    workload: Workload, level: Level, *, name: str, benchmark: str, accelerators: int, flops: float, source: str
) -> RooflinePoint:
    """Where a run lies under the ceilings of as many accelerators as it had.

    Raises:
        UsageError: the machine has no ceiling for its precision, or none for what it communicates.
    """
    scaled_level = level.of(accelerators)
    ceilings = _ceilings(scaled_level)
    if workload.coi is not None and level.bound is None:
        raise UsageError(
            f"{source}: its ranks communicate, but the machine has no bandwidth between them: measure it: "
            "hpcai500 micro --procs N -o micro.json, or state bandwidths and bound"
        )
    link = Ceiling(level.bound, level.bandwidths[level.bound]) if level.bound and workload.coi is not None else None
    roof = Roof(flops_ceiling(workload.precision, ceilings), link)
    attainable = roof.attainable(workload.coi)
    return RooflinePoint(
        name=name,
        benchmark=benchmark,
        precision=workload.precision,
        compression=workload.compression,
        accelerators=accelerators,
        flops=flops,
        coi=workload.coi,
        coi_uncompressed=workload.coi_uncompressed,
        bound=roof.kind(workload.coi),
        binding=roof.binding(workload.coi).name,
        attainable_flops=attainable,
        share=flops / attainable,
        flops_ceiling=roof.flops.name,
        bandwidth=link.name if link else None,
        moves=moves(workload, roof, ceilings),
        sentence=point_sentence(name, workload, roof, flops),
        source=source,
    )


def _published(point: PaperPoint, machine: Machine, level: Level) -> RooflinePoint:
    per_node = min(point.accelerators, machine.accelerators_per_node)
    nodes = -(-point.accelerators // per_node)
    workload = Workload(point.model, point.precision, point.coi, point.compression, point.topology, nodes, per_node)
    return place(
        workload,
        level,
        name=point.name,
        benchmark=point.benchmark,
        accelerators=point.accelerators,
        flops=point.flops,
        source=point.source,
    )


def _ceilings(level: Level) -> dict[str, float]:
    """All flat ceilings by name, the data sheet's as `peak fp32`."""
    return {**{f"peak {name}": flops for name, flops in level.peak_flops.items()}, **level.ceilings}


def _roofs(level: Level) -> Roofs:
    ceilings, bandwidths = _ceilings(level), dict(level.bandwidths)
    ridges = {
        name: {link: ridge_point(flops, rate) for link, rate in bandwidths.items()} for name, flops in ceilings.items()
    }
    return Roofs(level.accelerators, ceilings, bandwidths, ridges)


def _roof_lines(roofs: Roofs, bound: str | None) -> Iterator[str]:
    yield ""
    ridge = f"  ridge point with {bound}" if bound else ""
    size = f"{roofs.accelerators} accelerator{'s' if roofs.accelerators != 1 else ''}"
    yield f"{size:20} {'FLOPS':>12}{ridge}"
    for name, flops in sorted(roofs.ceilings.items(), key=lambda item: -item[1]):
        meets = f"  {flops_per_byte(roofs.ridges[name][bound])}" if bound else ""
        yield f"  {name:18} {precise(flops, 'FLOPS'):>12}{meets}"
    for name, rate in sorted(roofs.bandwidths.items(), key=lambda item: -item[1]):
        mark = "  gradients go this way" if name == bound else ""
        yield f"  {name:18} {precise(rate, 'B/s'):>12}{mark}"
