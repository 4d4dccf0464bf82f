"""A profile of the same benchmark on the same machine: `hpcai500 profile` made it, profile.json holds it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcai500.errors import RecordError
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.results.report.bars import Bar, bars
from hpcai500.results.report.blocks import Block, Chart, Charts, Fold, Key, Section, Table, Text
from hpcai500.results.report.plot import Line, Plot
from hpcai500.results.report.scales import Axis, spanning
from hpcai500.results.report.words import count, duration, listed, number, plain, quantity, share, short, table, tables

_MOST_CLASSES, _MOST_KERNELS, _MOST_CONVERSIONS = 12, 20, 10


def given_profile(folder: Path) -> GivenFile:
    """The file of the profile in `folder`, and who stands for it.

    Raises:
        RecordError: there is none.
        WrongAnswerError: the signature beside it is not one of it.
    """
    path = folder / "profile.json"
    if not path.is_file():
        raise RecordError(f"{folder}: no profile.json there; make one: hpcai500 profile ic --out {folder}")
    return given_file(path)


def profile_section(record: Path, given: GivenFile | None) -> Section | None:
    """Kernel classes, the top kernels, layout conversions, utilisation and bandwidth over time.

    Args:
        record: whose own profile is shown where none is given; None comes back where it has none.
        given: the file of another one.

    Raises:
        RecordError: profile.json cannot be read.
        WrongAnswerError: the signature beside it is not one of it.
    """
    if given is None and not (record / "profile" / "profile.json").is_file():
        return None
    file = given or given_profile(record / "profile")
    document = file.tables()
    said = (
        f"{listed(document.get('benchmark'))} on {listed(document.get('device'))}: "
        f"{count(document.get('steps'), 'step')} in {duration(document.get('seconds'))}. "
        f"Unclassified: {share(document.get('unclassified_share'))} of kernel time."
    )
    blocks: list[Block] = [Text(said), Text(f"{short(file.sentence)}.", "soft")]
    classes = {name: kind for name, kind in table(document.get("classes")).items() if isinstance(kind, dict)}
    charts = [_class_chart(classes)] if classes else []
    charts += [chart for chart in (_utilisation(document), _bandwidth(document)) if chart]
    blocks.append(Charts(charts))
    blocks += _layout(table(document.get("layout")))
    top = tables(document.get("top"))
    if top:
        blocks.append(Fold("The kernels that take most time", [_kernels(top)]))
    return Section("Profile", blocks)


def _class_chart(classes: Mapping[str, Mapping[str, Any]]) -> Chart:
    ordered = sorted(classes.items(), key=lambda item: -(number(item[1].get("share")) or 0.0))[:_MOST_CLASSES]
    shares = [(short(name, 40), 100 * (number(kind.get("share")) or 0.0), kind) for name, kind in ordered]
    rows = [Bar(name, [part], [1], f"{part:.1f} %") for name, part, _ in shares]
    said = "; ".join(f"{name} {part:.1f} %" for name, part, _ in shares)
    drawing = bars(
        "Kernel classes by share of time",
        said,
        spanning("share of kernel time, %", [part for _, part, _ in shares]),
        rows,
    )
    return Chart("Kernel classes (V2.0 Fig. 10)", drawing)


def _utilisation(document: Mapping[str, Any]) -> Chart | None:
    found = document.get("utilisation")
    pairs = (
        [pair for pair in found if isinstance(pair, list | tuple) and len(pair) == 2] if isinstance(found, list) else []
    )
    points = [
        (time, 100 * part)
        for time, part in ((number(a), number(b)) for a, b in pairs)
        if time is not None and part is not None
    ]
    if len(points) < 2:
        return None
    mean = sum(part for _, part in points) / len(points)
    said = f"{plain(mean)} % on average."
    drawing = Plot(
        "Device utilisation over time",
        said,
        _time_axis([time for time, _ in points]),
        Axis("utilisation, %", 0, 100),
        [Line(points, 3)],
    ).draw()
    return Chart("Device utilisation", drawing, said)


def _bandwidth(document: Mapping[str, Any]) -> Chart | None:
    rows = [row for row in tables(document.get("bandwidth")) if number(row.get("t_s")) is not None]
    if len(rows) < 2:
        return None
    names = {"sent_bytes_per_second": "sent", "received_bytes_per_second": "received"}
    lines = [
        Line(
            [(row["t_s"], value) for row in rows if (value := number(row.get(key))) is not None],
            colour,
            dashed=colour > 1,
        )
        for colour, key in enumerate(names, 1)
    ]
    values = [value for line in lines for _, value in line.points]
    if not values:
        return None
    said = f"At most {quantity(max(values), 'B/s')}."
    drawing = Plot(
        "Communication bandwidth over time",
        said,
        _time_axis([row["t_s"] for row in rows]),
        spanning("bytes/s", values),
        lines,
    ).draw()
    keys = [Key("sent", 1, "line"), Key("received", 2, "dashes")]
    return Chart("Communication bandwidth (V2.0 Fig. 13)", drawing, said, keys)


def _layout(layout: Mapping[str, Any]) -> list[Block]:
    if number(layout.get("share")) is None:
        return []
    said = f"Layout conversions take {duration(layout.get('seconds'))}, {share(layout['share'])} of kernel time."
    conversions = tables(layout.get("conversions"))
    if not conversions:
        return [Text(said)]
    columns = list(dict.fromkeys(key for one in conversions[:_MOST_CONVERSIONS] for key in one))[:6]
    rows = [[listed(one.get(key)) for key in columns] for one in conversions[:_MOST_CONVERSIONS]]
    shown = Table(
        "Layout conversions", [short(key, 40) for key in columns], rows, left_out=max(0, len(conversions) - len(rows))
    )
    return [Text(said), Fold("Layout conversions", [shown])]


def _kernels(top: list[Mapping[str, Any]]) -> Table:
    rows = [
        (
            short(kernel.get("name", ""), 160),
            short(kernel.get("class", ""), 40),
            duration(kernel.get("seconds")),
            share(kernel.get("share")),
            plain(kernel.get("calls"), ",.0f"),
        )
        for kernel in top[:_MOST_KERNELS]
    ]
    return Table(
        "Top kernels", ("kernel", "class", "time", "share", "calls"), rows, (2, 3, 4), max(0, len(top) - len(rows))
    )


def _time_axis(times: list[float]) -> Axis:
    low, high = min(times), max(times)
    return Axis("seconds", low, high if high > low else low + 1.0)
