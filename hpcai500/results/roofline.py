"""`hpcai500 roofline`: runs below the ceilings of a machine: the bottleneck of each, and what would move it.

FLOPS are those of the training steps, by all accelerators together. COI is the communication operation intensity:
FLOPs for each byte sent through one link. Ceilings are FLOPS (flat) or bandwidths in bytes a second (slanted);
the model is of one node (`node`) or of several (`system`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcai500.drawing import figure_files
from hpcai500.errors import RecordError, UsageError
from hpcai500.machine import Level, Machine, PaperPoint, origin_of_run, ranks_of_each_node, why_not_of
from hpcai500.methodology.roofline import (
    Ceiling,
    Model,
    Move,
    Roof,
    Topology,
    Workload,
    flops_ceiling,
    gradient_bytes,
    moves,
    ridge_point,
)
from hpcai500.recipe import global_batch
from hpcai500.results.given_files import GivenFile
from hpcai500.results.score import ScoredRun, read_runs
from hpcai500.text import count, prefix_of, scaled, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------------------------------
# The bottleneck of a run, in sentences.


_DOUBLE = 2.0
_ROUNDING = 1e-9


def precise(value: float, unit: str) -> str:
    """`25990000000000.0, "FLOPS"` -> `25.99 TFLOPS`: with four digits, as in the papers."""
    return scaled(value, unit, digits=4)


def flops_per_byte(coi: float) -> str:
    """A COI with its unit: `67.4 kFLOP/B`."""
    return precise(coi, "FLOP/B")


def point_sentence(name: str, workload: Workload, roof: Roof, flops: float) -> str:
    """The bottleneck of a run, and how near the run comes to its bound."""
    coi, attainable = workload.coi, roof.attainable(workload.coi)
    allows = precise(attainable, "FLOPS")
    if roof.link is None or coi is None:
        limit = f"communicates nothing and is bound by computation: {roof.flops.name} allows {allows}"
    elif roof.kind(coi) == "communication":
        rate = precise(roof.link.rate, "B/s")
        limit = (
            f"is bound by communication: at a COI of {flops_per_byte(coi)} {roof.link.name} ({rate}) allows {allows}"
        )
    else:
        ridge = flops_per_byte(ridge_point(roof.flops.rate, roof.link.rate))
        limit = (
            f"is bound by computation: {roof.flops.name} allows {allows}, and its COI of {flops_per_byte(coi)} is "
            f"above the ridge point with {roof.link.name} ({ridge})"
        )
    share = flops / attainable
    doubt = ": more than its bound, so a ceiling was measured too low or on another machine" if share > 1 else ""
    return f"{name} {limit}; its training steps attain {precise(flops, 'FLOPS')}, {share:.0%} of that{doubt}"


def move_sentence(move: Move, point: RooflinePoint) -> str:
    """What one change does: `fp16 compression doubles COI to X and lifts the bound from Y to Z, set by W`."""
    before, after = point.attainable_flops, move.attainable_flops
    changes = f"{move.change}{_of_coi(move)}"
    if after <= before * (1 + _ROUNDING):
        return f"{changes} does not lift the bound: {move.binding} is still the bottleneck"
    still = "is still" if move.binding == point.binding else "is then"
    bounds = f"from {precise(before, 'FLOPS')} to {precise(after, 'FLOPS')}"
    return f"{changes} lifts the bound {bounds}; {move.binding} {still} the bottleneck"


def _of_coi(move: Move) -> str:
    if move.coi is None or move.coi_factor == 1:
        return ""
    if abs(move.coi_factor - _DOUBLE) < _ROUNDING:
        return f" doubles COI to {flops_per_byte(move.coi)} and"
    return f" multiplies COI by {move.coi_factor:.3g}, to {flops_per_byte(move.coi)}, and"


# ----------------------------------------------------------------------------------------------------
# The place of a run below the ceilings of as many accelerators as it used.


@dataclass(frozen=True)
class Roofs:
    """Ceilings of `accelerators` accelerators: FLOPS of all of them, bytes a second through one link, ridge points.

    `ridges` has the COI at which a FLOPS ceiling meets a bandwidth ceiling, by the names of both.
    """

    accelerators: int
    ceilings: Mapping[str, float]
    bandwidths: Mapping[str, float]
    ridges: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class RooflinePoint:
    """One run in the model.

    Attributes:
        compression: type of the gradients that were sent.
        flops: FLOPS of its training steps, of all accelerators together.
        coi: with gradients as sent; None if nothing was communicated.
        coi_uncompressed: the COI with gradients in fp32.
        bound: `communication` or `computation`.
        binding: name of the ceiling that is the bottleneck; it allows `attainable_flops`.
        share: flops / attainable_flops.
        flops_ceiling: name of the flat part of its roof.
        bandwidth: name of the slanted part; None if there is none.
        source: the record's path, or the publication.
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
    """One model of one machine with its points; `roofs` has the ceilings of each number of accelerators.

    `draws_whole` says whether the whole machine is drawn too: without runs, and with published ones. `sources` are the
    files with the ceilings.
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
        """As JSON: `ceilings` and `bandwidths` are those of the whole machine; those of each point are in `roofs`."""
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
        kind = "distributed" if self.model == "system" else "single-node"
        yield f"{kind} roofline of {self.machine}"
        yield f"source      {self.source}"
        yield from (f"signature   {file.sentence}" for file in self.sources)
        for roofs in {self.whole.accelerators: self.whole, **{one.accelerators: one for one in self.roofs}}.values():
            yield from _roof_lines(roofs, self.bound)
        if not self.points:
            yield ""
            yield "No run in this roofline, only ceilings. Name a record to add its run."
        for point in self.points:
            yield ""
            yield f"{point.sentence}"
            for move in point.moves:
                yield f"  {move_sentence(move, point)}"


def roofline(records: Sequence[Path], machine: Machine, model: Model | None = None) -> Roofline:
    """The model of `machine` with the runs of `records`; without records, with the published runs of the machine.

    `model` is `node` for one node and `system` for several. None takes the one that fits the runs; without runs,
    `system`, if the machine has it.

    Raises:
        UsageError: the model does not fit the runs, or the machine lacks the model or a ceiling.
        RecordError: one is not a complete record, or does not say how many bytes it sent.
        WrongAnswerError: the `result.json` of one differs from its events.
    """
    if records:
        runs = read_runs(records)
        chosen = _model(runs, model)
        points = [_point(run, machine, chosen) for run in runs]
    else:
        chosen = model or ("system" if machine.system else "node")
        points = [_published(point, machine) for point in machine.points if point.model == chosen]
    level = _level_of(machine, chosen)
    sizes = sorted({point.accelerators for point in points})
    return Roofline(
        model=chosen,
        machine=machine.name,
        source=machine.source,
        bound=level.bound,
        whole=_roofs(level),
        points=tuple(points),
        roofs=tuple(_roofs(level.of(size)) for size in sizes),
        draws_whole=not records,
    )


def _level_of(machine: Machine, model: Model) -> Level:
    level = machine.node if model == "node" else machine.system
    if level is None:
        other = "node" if model == "system" else "system"
        raise UsageError(f"{machine.name}: no model `{model}`: it has only --model {other} ({machine.source})")
    return level


def _place(
    workload: Workload, level: Level, *, name: str, benchmark: str, accelerators: int, flops: float, source: str
) -> RooflinePoint:
    """The place of a run under the ceilings of as many accelerators as it used.

    Raises:
        UsageError: the machine has no ceiling for its precision, or no bandwidth for its communication.
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


def _published(point: PaperPoint, machine: Machine) -> RooflinePoint:
    per_node = min(point.accelerators, machine.accelerators_per_node)
    nodes = -(-point.accelerators // per_node)
    workload = Workload(point.model, point.precision, point.coi, point.compression, point.topology, nodes, per_node)
    return _place(
        workload,
        _level_of(machine, point.model),
        name=point.name,
        benchmark=point.benchmark,
        accelerators=point.accelerators,
        flops=point.flops,
        source=point.source,
    )


def _ceilings(level: Level) -> dict[str, float]:
    """All flat ceilings by name; those of the data sheet as `peak fp32`."""
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
        mark = "  carries the gradients" if name == bound else ""
        yield f"  {name:18} {precise(rate, 'B/s'):>12}{mark}"


# ----------------------------------------------------------------------------------------------------
# Points from records of runs.


def _model(runs: Sequence[ScoredRun], model: Model | None) -> Model:
    for run in runs:
        fits: Model = "system" if run.result.nodes > 1 else "node"
        model = model or fits
        if fits != model:
            raise UsageError(
                f"{run.path}: a run on {count(run.result.nodes, 'node')} needs --model {fits}, not {model}: draw runs "
                "on one node and on several nodes separately"
            )
    assert model is not None
    return model


def _point(run: ScoredRun, machine: Machine, model: Model) -> RooflinePoint:
    result = run.result
    per_node = ranks_of_each_node(result.world_size, result.nodes, run.path)
    device = str(run.record.tables["accelerator"]["device"])
    if reason := why_not_of(machine, device, per_node, origin_of_run(run.record.system)):
        raise UsageError(f"{run.path}: {reason}")
    workload = _workload(run, model, per_node)
    return _place(
        workload,
        _level_of(machine, model),
        name=_name(run, workload),
        benchmark=result.benchmark,
        accelerators=result.world_size,
        flops=(result.images + result.padded_images) * result.flops_per_image / run.training_seconds,
        source=str(run.path),
    )


def _workload(run: ScoredRun, model: Model, per_node: int) -> Workload:
    result, tables = run.result, run.record.tables
    precision, compression = str(tables["accelerator"]["precision"]), str(tables["communication"]["compression"])
    if result.world_size == 1:
        return Workload(model, precision, None)
    # Older records have data parallelism only, and do not name it.
    if (mode := tables["programming"].get("parallel_mode", "data")) != "data":
        raise UsageError(
            f"{run.path}: its parallel mode is {mode}: the roofline covers data parallelism only, in which ranks send "
            "nothing but gradients"
        )
    if result.bytes_per_step is None or not result.bytes_per_step.sent:
        raise RecordError(f"{run.path}: no event communication, so the bytes sent are unknown")
    topology = _topology(run, per_node)
    sent = result.bytes_per_step.sent
    if model == "system":
        if topology is None:
            raise UsageError(
                f"{run.path}: the rows of its torus are not nodes, so the bytes that leave a node are unknown: run "
                "with communication.torus_columns = 0"
            )
        shares = gradient_bytes(topology, 1.0, compression, result.nodes, per_node)
        sent *= shares.node / shares.rank
    # FLOPs of all ranks in one update, however many ranks share its images.
    coi = float(global_batch(tables) * result.flops_per_image) / sent
    return Workload(model, precision, coi, compression, topology, result.nodes, per_node)


def _topology(run: ScoredRun, per_node: int) -> Topology | None:
    """The recipe's topology in the model's terms; None for a torus whose rows are not the nodes."""
    options = run.record.tables["communication"]
    match options["topology"]:
        case "hierarchical":
            return "hierarchical"
        case "parameter-server":
            return "parameter-server"
        case "torus":
            return "torus" if options["torus_columns"] in (0, per_node) else None
        case "flat":
            return "tree" if options["algorithm"] == "double-binary-tree" else "ring"
        case other:
            raise UsageError(
                f"{run.path}: unknown topology {short(other, 40)!r}: use the version of hpcai500 that made the record"
            )


def _name(run: ScoredRun, workload: Workload) -> str:
    compressed = f", {workload.compression} compression" if workload.compression != "none" else ""
    return f"{run.result.benchmark.upper()} {workload.precision}{compressed} ({run.path.name})"


# ----------------------------------------------------------------------------------------------------
# The pictures, like V2.0 Fig. 9 and 15: FLOPS over COI, both logarithmic.
#
# A point is a run, with its number in the legend below. An arrow starts where the run would be with gradients in fp32;
# a dotted line leads up to its bound. Colours repeat what the numbers say.


# The frame of the axes, in inches: names of ceilings are right of it, the legend of points below.
_WIDTH, _FRAME_LEFT, _FRAME_WIDTH, _FRAME_HEIGHT = 9.0, 0.77, 6.3, 4.3
_ABOVE, _BELOW, _LEGEND_LINE = 0.46, 0.67, 0.19
# As in V2.0 Fig. 15: EWA blue, Image Classification red.
_COLOURS = {"ewa": "#1f4fbf", "ic": "#c8141e"}
_OTHER = "#333333"
_INK, _FAINT = "#1a1a1a", "#6e6e6e"
_SMALL, _MEDIUM = 8, 9
# Letters of a name that fit into a line of the legend, and lines that fit into a picture.
_NAME_LETTERS, _MOST_NAMED = 60, 100
# Runs whose COI agree within this share differ only in compression.
_SAME_COI = 0.01
# If an axis spans less than this factor, powers of ten are too few ticks.
_FEW_DECADES = 300
# The place of a slanted ceiling's name along its line; names of lines closer than this factor are on other sides.
_NAME_AT, _NEAR = 0.38, 2.0


def draw_roofline(roofline: Roofline) -> dict[str, bytes]:
    """The pictures as files, one for each number of accelerators: `roofline-MODEL-ACCELERATORS.svg` and `.png`.

    Runs are drawn below the ceilings of as many accelerators as they used (V2.0 Fig. 15). The whole machine (Fig. 9) is
    drawn if there is no run, and with published ones.
    """
    sizes = {roofs.accelerators: roofs for roofs in roofline.roofs}
    if roofline.draws_whole:
        sizes.setdefault(roofline.whole.accelerators, roofline.whole)
    files: dict[str, bytes] = {}
    for accelerators, roofs in sizes.items():
        picture = Picture(roofline, roofs)
        files |= figure_files(picture.draw, f"roofline-{roofline.model}-{accelerators}", picture.inches)
    return files


class Picture:
    """The ceilings of one number of accelerators, and the points under them; `inches` are its width and height."""

    def __init__(self, roofline: Roofline, roofs: Roofs) -> None:
        self._roofline, self._roofs = roofline, roofs
        self._points = [point for point in roofline.points if point.accelerators == roofs.accelerators]
        self._slanted = dict(roofs.bandwidths) if roofline.bound else {}
        flat = roofs.ceilings.values()
        self._peak, self._least = max(flat), min(flat)
        self._bottom = min(self._least / 12, *(point.flops / 3 for point in self._points), self._peak)
        self._top = max(self._peak, *(point.flops for point in self._points), 0) * 1.8
        self._left, self._right = self._reach()
        # The same unit for all numbers: the largest in which the lowest is at least one.
        self._factor, self._prefix = prefix_of(self._least)
        self._floor = _BELOW + (_LEGEND_LINE * (min(len(self._points), _MOST_NAMED) + 1) if self._points else 0.0)
        self.inches = (_WIDTH, self._floor + _FRAME_HEIGHT + _ABOVE)

    def draw(self, figure: Figure) -> None:
        figure.set_layout_engine("none")
        width, height = self.inches
        axes = figure.add_axes(
            (_FRAME_LEFT / width, self._floor / height, _FRAME_WIDTH / width, _FRAME_HEIGHT / height)
        )
        axes.set(xscale="log", yscale="log", xlim=(self._left, self._right), ylim=(self._bottom, self._top))
        self._draw_axes(axes)
        self._draw_flat(axes)
        self._draw_slanted(axes)
        self._draw_points(axes)
        if not self._points:
            axes.text(
                0.985, 0.03, "No run in this roofline, only ceilings.", transform=axes.transAxes, ha="right",
                fontsize=_SMALL, color=_INK, parse_math=False,
            )  # fmt: skip
        signers = "; ".join(file.sentence for file in self._roofline.sources)
        figure.text(0.008, 0.06 / height, short(signers, 150), fontsize=_SMALL - 1, color=_FAINT, parse_math=False)

    def _reach(self) -> tuple[float, float]:
        """Lowest and highest COI: from the slanted part of the fastest link to the flat part above the slowest."""
        cois = [coi for point in self._points for coi in (point.coi, point.coi_uncompressed) if coi is not None]
        if self._slanted:
            fastest, slowest = max(self._slanted.values()), min(self._slanted.values())
            cois += [self._least / fastest / 2, self._peak / slowest]
        return (min(cois) / 3, max(cois) * 30) if cois else (1.0, 1e3)

    def _flops(self, flops: float) -> str:
        return f"{flops / self._factor:.4g} {self._prefix}FLOPS"

    def _draw_axes(self, axes: Axes) -> None:
        from matplotlib.ticker import LogLocator  # slow to load

        roofline, several = self._roofline, self._roofs.accelerators != 1
        axes.grid(which="major", color=_FAINT, alpha=0.2, linewidth=0.6)
        axes.set_axisbelow(True)
        link = "an accelerator's link" if roofline.model == "node" else "a node's network link"
        axes.set_xlabel(f"COI: FLOPs of all accelerators for each byte through {link}")
        axes.set_ylabel(f"{self._prefix}FLOPS attained")
        axes.xaxis.set_major_formatter(lambda coi, _: scaled(coi, "").strip())
        axes.yaxis.set_major_formatter(lambda flops, _: f"{flops / self._factor:g}")
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.yaxis.set_minor_formatter(lambda *_: "")
        if self._top / self._bottom < _FEW_DECADES:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        if not self._slanted:
            axes.set_xticks([])
            axes.set_xticks([], minor=True)
            axes.set_xlabel("nothing is communicated: there is no slanted part")
        kind = "Distributed" if roofline.model == "system" else "Single-node"
        whole = roofline.whole.accelerators
        part = f" of {whole}" if self._roofs.accelerators < whole else ""
        size = f"{self._roofs.accelerators}{part} accelerator{'s' if several or part else ''}"
        axes.set_title(f"{kind} roofline, {size}: {roofline.machine}", loc="left", fontsize=10.5, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)

    def _draw_flat(self, axes: Axes) -> None:
        """Each ceiling from where the fastest link reaches it; names right of the frame, without overlap."""
        line_height = 1.25 * _SMALL / 72 / _FRAME_HEIGHT
        label_at = math.inf
        for name, flops in sorted(self._roofs.ceilings.items(), key=lambda item: -item[1]):
            start = max(self._left, flops / max(self._slanted.values())) if self._slanted else self._left
            is_peak = name.startswith("peak")
            style: dict[str, Any] = (
                {"color": _INK, "linewidth": 1.6} if is_peak else {"color": _FAINT, "linewidth": 1.1}
            )
            axes.plot([start, self._right], [flops, flops], zorder=2, **style)
            at = math.log(flops / self._bottom) / math.log(self._top / self._bottom)
            label_at = min(at, label_at - line_height)
            # The line to the name in three pieces: out of the frame, to the name's height, to the name.
            axes.plot(
                [1.0, 1.008, 1.03, 1.036], [at, at, label_at, label_at],
                transform=axes.transAxes, color=_FAINT, linewidth=0.7, clip_on=False,
            )  # fmt: skip
            axes.text(
                1.042, label_at, f"{name}  {self._flops(flops)}", transform=axes.transAxes, va="center",
                fontsize=_SMALL, color=_INK if is_peak else "#3d3d3d", parse_math=False,
            )  # fmt: skip

    def _draw_slanted(self, axes: Axes) -> None:
        """Each bandwidth from the edge up to the highest ceiling, with its name along the line."""
        across = _FRAME_WIDTH / math.log(self._right / self._left)
        up = _FRAME_HEIGHT / math.log(self._top / self._bottom)
        angle = math.atan2(up, across)
        above = math.inf
        for name, rate in sorted(self._slanted.items(), key=lambda item: -item[1]):
            start, end = max(self._left, self._bottom / rate), self._peak / rate
            axes.plot(
                (start, end), (start * rate, end * rate), zorder=2, solid_capstyle="butt",
                **({"color": _INK, "linewidth": 1.8} if name == self._roofline.bound
                   else {"color": _FAINT, "linestyle": "--"}),
            )  # fmt: skip
            coi = start ** (1 - _NAME_AT) * end**_NAME_AT
            side = -1 if above / rate < _NEAR else 1
            axes.annotate(
                f"{name}  {precise(rate, 'B/s')}", (coi, coi * rate),
                xytext=(-4 * side * math.sin(angle), 4 * side * math.cos(angle)), textcoords="offset points",
                rotation=math.degrees(angle), rotation_mode="anchor", ha="center", va="top" if side < 0 else "bottom",
                fontsize=_MEDIUM, color=_INK, parse_math=False,
            )  # fmt: skip
            above = rate

    def _draw_points(self, axes: Axes) -> None:
        if not self._points:
            return
        for number, point in enumerate(self._points, 1):
            (x, y), colour = self._place(point), _COLOURS.get(point.benchmark, _OTHER)
            axes.plot([x, x], [y, point.attainable_flops], ":", color=colour, linewidth=1.0, alpha=0.75, zorder=3)
            for start in self._before(point):
                if start[1] == y and all(other.coi != start[0] for other in self._points):
                    axes.plot(*start, "o", color=colour, markersize=8, markerfacecolor="white", zorder=5)
                style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 6, "shrinkB": 6}
                axes.annotate("", (x, y), start, arrowprops=style, zorder=5)
            name = short(point.name, _NAME_LETTERS)
            text = f"{number}  {name}: {self._flops(point.flops)}, {point.share:.0%} of its bound"
            axes.plot(
                x, y, "o", color=colour, markersize=11, markeredgecolor="white", markeredgewidth=0.8, zorder=6,
                label=text if number <= _MOST_NAMED else None,
            )  # fmt: skip
            axes.text(x, y, str(number), color="white", fontsize=7, ha="center", va="center_baseline", zorder=7)
        more = len(self._points) - _MOST_NAMED
        title = "dotted: distance to the bound; arrow: effect of gradient compression"
        legend = axes.legend(
            title=f"{title}; {more} more are not named here" if more > 0 else title, title_fontsize=_SMALL,
            alignment="left", loc="upper left", bbox_to_anchor=(0.0, -0.5 / _FRAME_HEIGHT), frameon=False,
            fontsize=_SMALL, markerscale=0.6, borderpad=0, borderaxespad=0, handlelength=1,
            labelspacing=_LEGEND_LINE * 72 / _SMALL - 1,
        )  # fmt: skip
        for text_ in legend.get_texts():
            text_.set_parse_math(False)

    def _place(self, point: RooflinePoint) -> tuple[float, float]:
        """A run that communicates nothing is placed far to the right, where no link would limit it."""
        return (point.coi if point.coi is not None else (self._left * self._right**3) ** 0.25, point.flops)

    def _before(self, point: RooflinePoint) -> Iterator[tuple[float, float]]:
        """Where a compressed run would be without compression: at a measured run, or else at its own FLOPS."""
        if point.coi is None or point.coi_uncompressed is None or point.compression == "none":
            return
        runs = [
            (other.coi, other.flops)
            for other in self._points
            if (other.benchmark, other.precision, other.compression) == (point.benchmark, point.precision, "none")
            and other.coi is not None
            and abs(other.coi / point.coi_uncompressed - 1) < _SAME_COI
        ]
        yield from runs or [(point.coi_uncompressed, point.flops)]
