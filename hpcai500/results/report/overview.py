"""Several records on one page: a line each, the mean of a series, the scaling of several sizes."""

from __future__ import annotations

from collections.abc import Sequence

from hpcai500.errors import HpcAi500Error
from hpcai500.results.report.blocks import Block, Cell, Chart, Charts, Key, Row, Section, Table, Text
from hpcai500.results.report.plot import Line, Plot, Spot
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.scales import Axis
from hpcai500.results.report.words import count, duration, plain, quantity, share, short
from hpcai500.results.scaling import Scaling, read_scaling
from hpcai500.results.score import summarise_trials, why_no_mean

_MOST_ROWS = 200
_UNITS = {"vflops": "FLOPS", "flops": "FLOPS", "images_per_second": "images/s"}


def overview_sections(subjects: Sequence[Subject]) -> list[Section]:
    """The summary of all records of a page; nothing for one."""
    if len(subjects) < 2:
        return []
    sections = [Section("All records", [_table(subjects)])]
    sizes = {subject.world_size for subject in subjects}
    good = [subject for subject in subjects if subject.result]
    if len(sizes) > 1:
        benchmarks = {str(subject.record.tables.get("benchmark")) for subject in good}
        return [*sections, _scaling(good)] if len(good) > 1 and len(benchmarks) == 1 else sections
    return [*sections, _series(good)] if len(good) > 1 else sections


def _table(subjects: Sequence[Subject]) -> Table:
    rows: list[Row] = []
    for index, subject in enumerate(subjects[:_MOST_ROWS]):
        result = subject.result
        rankable = Cell("yes", "good") if result and result.rankable else Cell("no", "flag")
        tables = subject.record.tables
        rows.append(
            (
                f"{index + 1}. {short(subject.path.name, 60)}",
                Cell(subject.verdict, "good" if subject.verdict == "PASS" else "bad"),
                rankable,
                short(tables.get("benchmark", ""), 20),
                f"{subject.world_size:,}",
                quantity(result.vflops, "FLOPS") if result else "",
                quantity(result.flops, "FLOPS") if result else "",
                plain(result.quality.achieved, ".4f") if result else "",
                duration(result.seconds) if result else "",
                quantity(result.energy_joules, "J") if result else "",
            )
        )
    return Table(
        "One line a record",
        ("record", "verdict", "rankable", "benchmark", "ranks", "VFLOPS", "FLOPS", "quality", "time", "energy"),
        rows,
        numeric=(4, 5, 6, 7, 8, 9),
        left_out=len(subjects) - len(rows),
    )


def _series(subjects: Sequence[Subject]) -> Section:
    """Mean and variation of runs that belong together, or why there is none."""
    reason = why_no_mean([subject.path for subject in subjects])
    results = [subject.result for subject in subjects if subject.result]
    if reason:
        return Section("Mean", [Text(f"No mean: {short(reason)}.", "flag")])
    rows = [
        (name.replace("_", " "), _metric(name, summary.mean), share(summary.variation), str(summary.runs))
        for name, summary in summarise_trials(results).items()
    ]
    said = (
        "The mean is that without the highest and the lowest run (V2.0 section 5.3.2); the variation, standard "
        "deviation over mean, is that of all."
    )
    caption = f"Mean of {count(len(results), 'run')} of one recipe"
    return Section("Mean", [Text(said), Table(caption, ("metric", "mean", "variation", "runs"), rows, (1, 2, 3))])


def _metric(name: str, value: float) -> str:
    if name.endswith("seconds"):
        return duration(value)
    return quantity(value, _UNITS[name]) if name in _UNITS else plain(value, ".4f")


def _scaling(subjects: Sequence[Subject]) -> Section:
    """FLOPS over processes below the ideal line (V2.0 Fig. 12), or why these records give none."""
    try:
        scaling = read_scaling([subject.path for subject in subjects])
    except HpcAi500Error as error:
        return Section("Scaling", [Text(short(error), "flag")])
    rows = [
        (
            f"{point.processes:,}",
            f"{point.nodes:,}",
            f"{plain(point.images_per_second)} images/s",
            quantity(point.flops, "FLOPS"),
            plain(point.speedup, ".2f"),
            plain(point.parallel_efficiency, ".2f"),
            share(point.communication_fraction) if point.communication_fraction is not None else "",
        )
        for point in scaling.points
    ]
    table = Table(
        f"Weak scaling of {scaling.benchmark}: the same batch a process; efficiency against the smallest",
        ("processes", "nodes", "rate", "FLOPS", "speed-up", "efficiency", "communication wait"),
        rows,
        numeric=range(7),
    )
    blocks: list[Block] = [Charts([_scaling_chart(scaling)]), table]
    return Section("Scaling", blocks)


def _scaling_chart(scaling: Scaling) -> Chart:
    points = [(float(point.processes), point.flops) for point in scaling.points]
    base = points[0][1] / points[0][0]
    ideal = [(processes, base * processes) for processes, _ in points]
    heights = [flops for _, flops in (*points, *ideal)]
    axis = Axis("processes", points[0][0] / 1.15, points[-1][0] * 1.25, log=True, ticks=[at for at, _ in points])
    said = "; ".join(
        f"{point.processes} processes: efficiency {point.parallel_efficiency:.2f}" for point in scaling.points
    )
    drawing = Plot(
        "Weak scaling",
        said,
        axis,
        Axis("FLOPS", min(heights) / 1.4, max(heights) * 1.4, log=True),
        [Line(ideal, 6, dashed=True), Line(points, 1, marked=True)],
        spots=[
            Spot(point.processes, point.flops, f"{point.parallel_efficiency:.2f}", is_above=True)
            for point in scaling.points[1:]
        ],
    ).draw()
    return Chart(
        "Weak scaling",
        drawing,
        "FLOPS of the training steps; the numbers are the parallel efficiency",
        [Key("measured", 1, "line"), Key("ideal", 6, "dashes")],
    )
