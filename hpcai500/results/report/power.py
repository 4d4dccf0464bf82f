"""Power over time, and the energy that is its integral: docs/power.md has the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.errors import RecordError
from hpcai500.results.report.blocks import Block, Cell, Chart, Charts, Key, Section, Table, Text
from hpcai500.results.report.plot import Line, Plot
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.scales import Axis, spanning
from hpcai500.results.report.words import count, duration, number, quantity, short, tables
from hpcai500.system.power.samples_file import read_samples

# More curves than these cannot be told apart; the nodes that take most are shown.
_MOST_CURVES, _MOST_ROWS = 6, 20


def power_section(subject: Subject) -> Section | None:
    """Curves of the nodes that took most, and a table; None where nothing was to be measured."""
    value = subject.last("power")
    if not value:
        return None
    nodes = tables(value.get("nodes"))
    result = subject.result
    blocks: list[Block] = []
    if result is not None and result.energy_joules is not None:
        mean = f", {quantity(result.watts, 'W')} on average" if result.watts is not None else ""
        blocks.append(Text(f"The run took {quantity(result.energy_joules, 'J')}{mean}."))
    else:
        reason = (result.power_note if result else None) or value.get("reason") or "the run has not come to its end"
        blocks.append(Text(f"The energy of the run is unknown: {short(reason)}.", "flag"))
    ordered = sorted(nodes, key=lambda node: -(number(node.get("mean_watts")) or 0.0))
    curves, problems = _curves(subject, ordered[:_MOST_CURVES])
    blocks += [Text(problem, "flag") for problem in problems]
    if curves:
        blocks.append(Charts([_chart(curves, len(nodes))]))
    if nodes:
        blocks.append(_table(ordered))
    return Section("Power", blocks)


def _curves(subject: Subject, nodes: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, Line]], list[str]]:
    start = next((event for event in subject.record.events if event["key"] == "run_start"), None)
    begin = (number(start.get("time_ms")) or 0.0) / 1000 if start else None
    curves: list[tuple[str, Line]] = []
    problems: list[str] = []
    for node in nodes:
        if not isinstance(node.get("file"), str):
            continue
        try:
            points = list(_points(subject.path, node, begin))
        except RecordError as error:
            problems.append(f"{error}; its curve is left out.")
            continue
        if points:
            curves.append((short(node.get("host", ""), 40), Line(points, len(curves) + 1, dashed=len(curves) % 2 == 1)))
    return curves, problems


def _points(record: Path, node: Mapping[str, Any], begin: float | None) -> Iterator[tuple[float, float]]:
    """(seconds since the run's start, watts) of one node; its file is that of the event, or there were no record.

    Raises:
        RecordError: the file cannot be read as samples.
    """
    offset = number(node.get("clock_offset_seconds")) or 0.0
    samples = read_samples(record / node["file"]).samples(offset)
    first = begin if begin is not None else (samples[0].time_s if samples else 0.0)
    before = None
    for sample in samples:
        watts = sample.watts
        if watts is None and before is not None and sample.joules is not None and before.joules is not None:
            seconds, joules = sample.time_s - before.time_s, sample.joules - before.joules
            watts = joules / seconds if seconds > 0 and joules >= 0 else None
        if watts is not None:
            yield sample.time_s - first, watts
        before = sample


def _chart(curves: Sequence[tuple[str, Line]], of: int) -> Chart:
    points = [point for _, line in curves for point in line.points]
    times = [time for time, _ in points]
    low, high = min(*times, 0.0), max(times)
    axis = Axis("seconds since the run's start", low, high if high > low else low + 1.0)
    note = "" if len(curves) == of else f"the {len(curves)} nodes that take most, of {of:,}"
    drawing = Plot(
        "Power over time",
        f"From {min(watts for _, watts in points):.4g} W to {max(watts for _, watts in points):.4g} W. {note}".strip(),
        axis,
        spanning("watts", [watts for _, watts in points]),
        [line for _, line in curves],
    ).draw()
    keys = [Key(host, line.colour, "dashes" if line.dashed else "line") for host, line in curves]
    return Chart("Power over time", drawing, note, keys)


def _table(nodes: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for node in nodes[:_MOST_ROWS]:
        gaps = [gap for gap in node.get("gaps") or [] if isinstance(gap, list | tuple) and len(gap) == 2]
        missing = sum((number(stop) or 0.0) - (number(start) or 0.0) for start, stop in gaps)
        rows.append(
            (
                short(node.get("host", ""), 60),
                f"{short(node.get('source', ''), 40)}, {short(node.get('scope', ''), 20)}",
                quantity(node.get("mean_watts"), "W"),
                quantity(node.get("energy_joules"), "J"),
                count(node.get("samples"), "sample"),
                Cell(f"{count(len(gaps), 'gap')}, {duration(missing)}", "flag") if gaps else "none",
                short(node.get("reason") or "", 200),
            )
        )
    return Table(
        "Power of each node, the highest first",
        ("host", "source and scope", "mean", "energy", "samples", "gaps", "note"),
        rows,
        numeric=(2, 3, 4),
        left_out=len(nodes) - len(rows),
    )
