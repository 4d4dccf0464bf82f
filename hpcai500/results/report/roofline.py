"""Where a run lies below the ceilings of its machine, drawn like V2.0 Fig. 9 and 15."""

from __future__ import annotations

from collections.abc import Sequence

from hpcai500.errors import HpcAi500Error
from hpcai500.machine import Machine
from hpcai500.results.given_files import GivenFile
from hpcai500.results.report.blocks import Block, Chart, Charts, Fold, Key, Section, Sentences, Table, Text
from hpcai500.results.report.plot import Level, Line, Plot, Spot
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.scales import Axis, spanning_decades
from hpcai500.results.report.words import quantity, short
from hpcai500.results.roofline import Roofline, RooflinePoint, Roofs
from hpcai500.results.roofline_records import roofline
from hpcai500.results.roofline_words import move_sentence

_MOST_CEILINGS, _MOST_LINKS = 6, 4
# Lines of text closer than this factor stand on each other.
_CLOSE = 1.6
_ALONE = "One rank communicates nothing, so it has no place along an axis of FLOPs a byte."


def roofline_section(subject: Subject, machine: Machine, sources: Sequence[GivenFile]) -> Section:
    """The model that fits the run, with what binds it in a sentence, or why there is none."""
    try:
        model = roofline([subject.path], machine)
    except HpcAi500Error as error:
        return Section("Roofline", [Text(f"No roofline: {short(error)}.", "flag")])
    point, roofs = model.points[0], model.roofs[0]
    blocks: list[Block] = [Text(f"{point.sentence}."), *(Text(f"{short(file.sentence)}.", "soft") for file in sources)]
    if point.moves:
        blocks.append(Sentences([move_sentence(move, point) for move in point.moves]))
    blocks.append(Charts([_chart(model, point, roofs)]) if point.coi else Text(_ALONE, "soft"))
    blocks.append(_table(model, roofs))
    return Section("Roofline", blocks)


def _chart(model: Roofline, point: RooflinePoint, roofs: Roofs) -> Chart:
    """Flat ceilings of FLOPS, slanted ones of bandwidths up to the highest of these, and the run below them."""
    assert point.coi is not None
    ceilings = sorted(roofs.ceilings.items(), key=lambda item: (item[0] != point.flops_ceiling, -item[1]))[
        :_MOST_CEILINGS
    ]
    links = sorted(roofs.bandwidths.items(), key=lambda item: (item[0] != model.bound, -item[1]))[:_MOST_LINKS]
    top = max(rate for _, rate in ceilings)
    x = spanning_decades("FLOPs for each byte communicated", [point.coi, *(top / rate for _, rate in links)], margin=4)
    heights = [point.flops, point.attainable_flops, *(rate for _, rate in ceilings)]
    y = spanning_decades("FLOPS", heights, margin=3)
    lines = [_slant(rate, top, x, y, colour) for colour, (_, rate) in enumerate(links, 1)]
    said = short(f"{point.sentence}.")
    drawing = Plot(
        f"Roofline of {short(model.machine, 80)}",
        said,
        x,
        y,
        lines=lines,
        levels=[
            Level(rate, f"{short(name, 30)} {quantity(rate, 'FLOPS')}")
            for name, rate in _apart(ceilings, point.flops_ceiling)
        ],
        spots=[Spot(point.coi, point.flops, f"this run, {quantity(point.flops, 'FLOPS')}", 4)],
    ).draw()
    keys = [
        Key(f"{short(name, 30)}, {quantity(rate, 'B/s')}", colour, "dashes" if colour > 1 else "line")
        for colour, (name, rate) in enumerate(links, 1)
    ]
    note = f"{short(model.machine, 80)} ({short(model.source, 160)}); ceilings of {roofs.accelerators:,} accelerators"
    return Chart("Roofline (V2.0 section 6)", drawing, note, [*keys, Key("this run", 4, "dot")])


def _slant(rate: float, top: float, x: Axis, y: Axis, colour: int) -> Line:
    """Bandwidth x COI, from the edge of the drawing to the highest ceiling."""
    start = max(x.low, y.low / rate)
    return Line([(start, start * rate), (top / rate, top)], colour, dashed=colour > 1)


def _apart(ceilings: Sequence[tuple[str, float]], binding: str) -> list[tuple[str, float]]:
    """Ceilings whose names do not stand on each other, the run's own among them; the table has all."""
    kept: list[tuple[str, float]] = []
    for name, rate in sorted(ceilings, key=lambda item: item[0] != binding):
        if all(max(rate, other) > _CLOSE * min(rate, other) for _, other in kept):
            kept.append((name, rate))
    return kept


def _table(model: Roofline, roofs: Roofs) -> Fold:
    rows = [
        (short(name, 60), quantity(rate, "FLOPS"), quantity(roofs.ridges[name].get(model.bound or ""), "FLOP/B"))
        for name, rate in sorted(roofs.ceilings.items(), key=lambda item: -item[1])
    ]
    rows += [
        (f"{short(name, 60)}{' (gradients go this way)' if name == model.bound else ''}", quantity(rate, "B/s"), "")
        for name, rate in sorted(roofs.bandwidths.items(), key=lambda item: -item[1])
    ]
    columns = ("ceiling", "rate", f"ridge point with {short(model.bound or 'no link', 40)}")
    return Fold("All ceilings", [Table(f"Ceilings of {roofs.accelerators:,} accelerators", columns, rows, (1, 2))])
