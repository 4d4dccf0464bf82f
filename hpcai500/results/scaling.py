"""`hpcai500 scale`: a weak scaling from records on different numbers of processes (V2.0 Fig. 12).

Rates are those of the training steps alone: no evaluation, no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from hpcai500.campaign.standing import world_difference
from hpcai500.drawing import figure_files, write_figures
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.machine import origin_of_run, other_machine
from hpcai500.methodology.samples import IMAGES, Samples
from hpcai500.methodology.weak_scaling import Scaled, weak_scaling
from hpcai500.record import Record
from hpcai500.results.score import ScoredRun, read_runs
from hpcai500.text import count, prefix_of, scaled

# Fields that may differ between the points of a weak scaling; the seed does not change rates.
_VARIED = {("hyperparameters", "seed"), *(("hardware", key) for key in ("nodes", "accelerators_per_node", "ranks"))}


@dataclass(frozen=True)
class ScalingPoint:
    """The record with this number of processes.

    `estimated_efficiency` was measured by the run before its clock started (docs/timeline.md).
    """

    record: str
    processes: int
    nodes: int
    backend: str
    library: str | None
    images_per_second: float
    flops: float
    speedup: float
    parallel_efficiency: float
    communication_fraction: float | None
    estimated_efficiency: float | None

    @property
    def backend_name(self) -> str:
        """Backend and library."""
        return f"{self.backend} ({self.library})" if self.library else self.backend


@dataclass(frozen=True)
class Scaling:
    """All points of one benchmark, by number of processes; efficiencies are relative to the first."""

    benchmark: str
    points: tuple[ScalingPoint, ...]
    samples: Samples = IMAGES

    def lines(self) -> Iterator[str]:
        base = count(self.points[0].processes, "process", "processes")
        work = f"weak scaling of {self.benchmark}, the same batch a process"
        yield f"{work}; rates of training steps; efficiency against {base}"
        unit = self.samples.rate_unit
        wide = max(10, len(unit))
        yield (
            f"{'processes':>9} {'nodes':>5} {unit:>{wide}} {'FLOPS':>12} {'speed-up':>9} {'efficiency':>10} "
            f"{'comm wait':>9}  backend"
        )
        for point in self.points:
            wait = "-" if point.communication_fraction is None else f"{point.communication_fraction:.1%}"
            yield (
                f"{point.processes:>9} {point.nodes:>5} {self.samples.rate(point.images_per_second):>{wide}.1f} "
                f"{scaled(point.flops, 'FLOPS'):>12} {point.speedup:>9.2f} {point.parallel_efficiency:>10.2f} "
                f"{wait:>9}  {point.backend_name}"
            )

    def figure_of_merit_lines(self) -> Iterator[str]:
        """The stable lines for harnesses, for all points but the first."""
        for point in self.points[1:]:
            yield f"HPCAI500 FOM speedup_{point.processes}={point.speedup:.6g} times"
            yield f"HPCAI500 FOM parallel_efficiency_{point.processes}={point.parallel_efficiency:.6g} fraction"

    def document(self) -> dict[str, Any]:
        return {"benchmark": self.benchmark, "points": [asdict(point) for point in self.points]}


def read_scaling(paths: Sequence[Path]) -> Scaling:
    """The weak scaling of the records at `paths`.

    Raises:
        UsageError: there are fewer than two, two have the same number of processes, or they are not comparable: work
            per process, backend, library or machine differ.
        RecordError: one is not a complete record.
        WrongAnswerError: the `result.json` of one differs from its events.
    """
    if len(paths) < 2:
        raise UsageError(f"scaling: expected two or more records of different numbers of processes, got {len(paths)}")
    runs = sorted(read_runs(paths), key=lambda run: run.result.world_size)
    _require_comparable(runs)
    compared = weak_scaling({run.result.world_size: run.images_per_second for run in runs})
    points = tuple(_point(run, compared[run.result.world_size]) for run in runs)
    return Scaling(runs[0].result.benchmark, points, runs[0].result.samples)


def _point(run: ScoredRun, compared: Scaled) -> ScalingPoint:
    result = run.result
    return ScalingPoint(
        record=str(run.path),
        processes=result.world_size,
        nodes=result.nodes,
        backend=result.backend,
        library=result.communication_library,
        images_per_second=run.images_per_second,
        flops=run.images_per_second * result.flops_per_image,
        speedup=compared.speedup,
        parallel_efficiency=compared.parallel_efficiency,
        communication_fraction=result.communication_fraction,
        estimated_efficiency=result.parallel_efficiency,
    )


def _require_comparable(runs: Sequence[ScoredRun]) -> None:
    """Refuse records that are not comparable.

    One process has no backend, so backends and libraries are compared among the runs of several processes.
    """
    for one, other in pairwise(runs):
        size = other.result.world_size
        if one.result.world_size == size:
            raise UsageError(
                f"{other.path}: {count(size, 'process', 'processes')}, as {one.path}: give one record for each"
            )
    first = runs[0].record
    first_of_many = next((run.record for run in runs if run.result.world_size > 1), first)
    for run in runs[1:]:
        record = run.record
        problem = (
            _other_work(first, record, everything=False)
            or _other_work(first_of_many, record, everything=True)
            or world_difference(first_of_many, record, ignored=("world_size", "nodes"))
            or _other_machine(first, record)
        )
        if problem:
            raise UsageError(f"scaling: the records are not comparable: {problem}")


def _other_work(one: Record, other: Record, *, everything: bool) -> str | None:
    """The first field in which two recipes must not differ but do; communication counts only with `everything`."""
    left, right = _fields(one), _fields(other)
    for field in sorted({*left, *right} - _VARIED):
        if left.get(field) != right.get(field) and (everything or field[0] != "communication"):
            return f"{other.path} differs from {one.path} in {'.'.join(field)}"
    is_cpu = left.get(("accelerator", "device")) == "cpu"
    per_node = ("hardware", "accelerators_per_node")
    if is_cpu and left.get(("os", "threads")) == 0 and left.get(per_node) != right.get(per_node):
        return (
            f"{one.path} and {other.path} share the cores of a node among {left.get(per_node)} and "
            f"{right.get(per_node)} processes, so their numbers of threads differ: run both with --set os.threads=N"
        )
    return None


def _fields(record: Record) -> dict[tuple[str, str], Any]:
    return {
        (table, key): value
        for table, values in record.tables.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    }


def _other_machine(one: Record, other: Record) -> str | None:
    if found := other_machine(origin_of_run(other.system), origin_of_run(one.system)):
        return f"{other.path} ran on another machine than {one.path}: {found}"
    if _torch(one) != _torch(other):
        return f"{other.path} differs from {one.path} in the version of torch"
    return None


def _torch(record: Record) -> set[Any]:
    return {node.get("software", {}).get("torch") for node in record.system.get("nodes", [])}


# ----------------------------------------------------------------------------------------------------
# The picture, like V2.0 Fig. 12: FLOPS over processes, below the ideal line.


_MEASURED, _IDEAL = "#0072b2", "#999999"


def draw_scaling(scaling: Scaling) -> dict[str, bytes]:
    """The picture as files: `scaling.svg` and `scaling.png`."""
    return figure_files(lambda figure: _draw(figure.subplots(), scaling), "scaling", (7, 4.5))


def _draw(axes: Any, scaling: Scaling) -> None:
    points = scaling.points
    factor, prefix = prefix_of(points[-1].flops)
    processes = [point.processes for point in points]
    measured = [point.flops / factor for point in points]
    base = measured[0] / processes[0]
    axes.plot(processes, [base * n for n in processes], "--", color=_IDEAL, label="ideal", zorder=1)
    axes.plot(processes, measured, "o-", color=_MEASURED, label="measured", zorder=2)
    for point, height in zip(points, measured, strict=True):
        axes.annotate(
            f"{point.parallel_efficiency:.2f}",
            (point.processes, height),
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            color=_MEASURED,
        )
    # On two logarithmic axes the ideal is a straight line, and the distance below it shows the efficiency.
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(processes, [str(n) for n in processes])
    ideal = [base * n for n in processes]
    axes.set_yticks(ideal, [f"{flops:.3g}" for flops in ideal])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.set_ylim(min(measured) / 1.5, 1.3 * max(*ideal, *measured))
    axes.set_xlabel("processes (the same batch on each)")
    axes.set_ylabel(f"{prefix}FLOPS of the training steps")
    axes.set_title(f"Weak scaling of {scaling.benchmark}, {points[-1].backend_name}", loc="left", fontsize=11)
    axes.text(0.02, 0.8, "numbers: parallel efficiency", transform=axes.transAxes, fontsize=8, color=_MEASURED)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)


# ----------------------------------------------------------------------------------------------------
# The output of the command: table, pictures and stable lines, or one JSON document.


class Table(Protocol):
    """A weak scaling, of runs or of ensembles."""

    def lines(self) -> Iterator[str]: ...

    def figure_of_merit_lines(self) -> Iterator[str]: ...

    def document(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class ScaleReport:
    """A weak scaling and its pictures, and the error that ended it early, if any."""

    scaling: Table | None
    figures: Sequence[Path] = ()
    error: str | None = None
    error_code: int = ExitCode.PASS

    @property
    def verdict(self) -> str:
        """PASS if all points were measured, else INVALID; a scaling cannot be wrong."""
        return "PASS" if self.scaling and self.error is None else "INVALID"

    def lines(self) -> Iterator[str]:
        """The report for a terminal, with the stable lines for harnesses last."""
        if self.scaling:
            yield from self.scaling.lines()
        for figure in self.figures:
            yield f"figure      {figure}"
        if self.error:
            yield f"error       {self.error}"
        if self.scaling:
            yield from self.scaling.figure_of_merit_lines()
        yield f"HPCAI500 RESULT {self.verdict}"

    def document(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "error": self.error,
            **(self.scaling.document() if self.scaling else {"benchmark": None, "points": []}),
            "figures": [str(figure) for figure in self.figures],
        }


def report_scaling(records: Sequence[Path], folder: Path | None) -> ScaleReport:
    """The table of `records`; its pictures are written to `folder`, unless that is None.

    Raises:
        HpcAi500Error: as `read_scaling`, or the pictures cannot be written.
    """
    scaling = read_scaling(records)
    return ScaleReport(scaling, write_figures(folder, draw_scaling(scaling)) if folder else ())


def report_broken_scaling(records: Sequence[Path], error: str, code: int) -> ScaleReport:
    """The points of a scaling that `error` ended; without a picture."""
    try:
        scaling = read_scaling(records)
    except HpcAi500Error:
        # Too few points are left, or reading meets the same error again.
        scaling = None
    return ScaleReport(scaling, error=error, error_code=code)
