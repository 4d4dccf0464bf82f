"""Sections of a record's page about its speed: steps, stragglers, communication, roofline, power and profile."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.errors import HpcAi500Error, RecordError
from hpcai500.machine import Machine
from hpcai500.methodology.communication import rank_name, with_stragglers
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.results.profile import why_not_of_run
from hpcai500.results.report.blocks import Block, Cell, Chart, Charts, Fold, Key, Row, Section, Sentences, Table, Text
from hpcai500.results.report.drawing import Axis, Bar, Level, Line, Plot, Spot, bars, spanning, spanning_decades
from hpcai500.results.report.reading import Subject
from hpcai500.results.roofline import Roofline, RooflinePoint, Roofs, move_sentence, roofline
from hpcai500.system.power_samples import read_samples
from hpcai500.text import count, duration, listed, number, plain, quantity, share, short, table, tables

# ----------------------------------------------------------------------------------------------------
# The parts of a step's time, over all ranks and for each rank, and the stragglers.


# With more ranks than these, the slowest ones and quantiles are shown instead of all.
MOST_RANKS = 20
_PARTS = {
    "data_wait_seconds": "data wait",
    "compute_seconds": "compute",
    "communication_wait_seconds": "communication",
    "other_seconds": "other",
}
# Compute in blue; lost time in warmer colours.
_COLOURS = (2, 1, 4, 6)
_STEP_SHARE = Axis("share of step time, %", 0, 100)
_QUANTILES = {"least": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "most": 1.0}


def step_section(subject: Subject) -> Section:
    """The split of a step into data wait, compute, communication and other: of the run, and of each rank."""
    split = subject.step_split
    if split is None:
        unknown = (
            "This record does not say for what the time of a step was used."
            if subject.values("epoch_stop")
            else "No epoch was trained to its end, so the time of steps is unknown."
        )
        return Section("Where the time goes", [Text(unknown, "soft")])
    source = f"Input: {subject.result.input}." if subject.result and getattr(subject.result, "input", None) else ""
    ranks = _ranks(subject.last("steps").get("ranks"))
    shares = [split.data_wait, split.compute, split.communication, split.other]
    text = ", ".join(f"{name} {share(part)}" for name, part in zip(_PARTS.values(), shares, strict=True))
    sentence = f"Of the time of all training steps, mean over the ranks: {text}."
    blocks: list[Block] = [Text(f"{sentence} {source}".strip()), *_throttled(ranks)]
    blocks.append(_split_chart(ranks, shares, sentence))
    if ranks:
        blocks.append(Fold("Seconds of each rank", [_rank_table(ranks)]))
    if len(ranks) > MOST_RANKS:
        blocks.append(_quantile_table(ranks))
    return Section("Where the time goes", blocks)


def _throttled(ranks: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """A warning if a CPU quota stopped ranks while they trained."""
    found = [(rank, table(rank.get("throttling"))) for rank in ranks]
    stopped = [(rank, its) for rank, its in found if number(its.get("throttled_periods"))]
    if not stopped:
        return
    rank, its = max(stopped, key=lambda one: number(one[1].get("throttled_seconds")) or 0.0)
    share_ = f"{number(its.get('throttled_periods')) or 0:,.0f} of {count(its.get('periods'), 'period')}"
    yield Text(
        f"A CPU quota stopped {count(len(stopped), 'rank')} of {len(ranks):,} while they trained: {rank_name(rank)} in "
        f"{share_}, for {duration(its.get('throttled_seconds'))} in sum over its cores.",
        "bad",
    )


def straggler_section(subject: Subject) -> Section | None:
    """The slow ranks, by their own time; None for a run of one rank, or if it was not measured."""
    value = with_stragglers(subject.last("communication"))
    ranks = [rank for rank in tables(value["ranks"]) if number(rank.get("own_seconds"))]
    if len(ranks) < 2:
        return None
    slow = [rank for rank in ranks if rank.get("straggler")]
    middle = statistics.median(rank["own_seconds"] for rank in ranks)
    if slow:
        names = ", ".join(short(rank_name(rank), 60) for rank in slow[:MOST_RANKS])
        more = f" and {len(slow) - MOST_RANKS:,} more" if len(slow) > MOST_RANKS else ""
        slow_down = f"{'slows' if len(slow) == 1 else 'slow'} the others down"
        text = Text(f"{count(len(slow), 'rank')} of {len(ranks):,} {slow_down}: {names}{more}.", "bad")
    elif value.get("stragglers") is None:
        text = Text("Too few steps to find slow ranks.", "soft")
    else:
        text = Text(f"None of {len(ranks):,} ranks slows the others down.", "good")
    worst = sorted(ranks, key=lambda rank: -rank["own_seconds"])[:MOST_RANKS]
    return Section("Stragglers", [text, _own_chart(worst, middle, len(ranks)), _own_table(worst, len(ranks))])


def _ranks(found: Any) -> list[dict[str, Any]]:
    return [
        dict(rank)
        for rank in tables(found)
        if number(rank.get("seconds")) and all(number(rank.get(part)) is not None for part in _PARTS)
    ]


def _split_chart(ranks: Sequence[Mapping[str, Any]], shares: Sequence[float], sentence: str) -> Chart:
    """Bars of the whole run, and of several ranks since the last start."""
    shown = _slowest(ranks) if len(ranks) > 1 else []
    rows = [Bar("all ranks", _hundred(shares), _COLOURS)]
    rows += [
        Bar(short(rank_name(rank), 30), _hundred([rank[part] / rank["seconds"] for part in _PARTS]), _COLOURS)
        for rank in shown
    ]
    of = f"the {len(shown)} slowest of {len(ranks):,} ranks, by their own time" if len(shown) < len(ranks) > 1 else ""
    drawing = bars("Parts of step time", f"{sentence} {of}".strip(), _STEP_SHARE, rows)
    keys = [Key(name, colour) for name, colour in zip(_PARTS.values(), _COLOURS, strict=True)]
    return Chart("Parts of step time", drawing, of, keys)


def _slowest(ranks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Few ranks in their order; of many, those with the longest own time."""
    if len(ranks) <= MOST_RANKS:
        return list(ranks)
    return sorted(ranks, key=lambda rank: -(rank["data_wait_seconds"] + rank["compute_seconds"]))[:MOST_RANKS]


def _rank_table(ranks: Sequence[Mapping[str, Any]]) -> Table:
    shown = _slowest(ranks)
    rows = [
        (
            str(rank.get("rank")),
            short(rank.get("host", ""), 60),
            str(rank.get("steps")),
            duration(rank["seconds"]),
            *(f"{duration(rank[part])} ({share(rank[part] / rank['seconds'])})" for part in _PARTS),
        )
        for rank in shown
    ]
    return Table(
        "Sums over the training steps of each rank since the last start"
        + (", the slowest first" if len(shown) < len(ranks) else ""),
        ("rank", "host", "steps", "all", *_PARTS.values()),
        rows,
        numeric=(0, 2, 3, 4, 5, 6, 7),
        left_out=len(ranks) - len(shown),
    )


def _quantile_table(ranks: Sequence[Mapping[str, Any]]) -> Table:
    ordered = {part: sorted(rank[part] / rank["seconds"] for rank in ranks) for part in _PARTS}
    rows = [
        (name, *(share(ordered[part][round(at * (len(ranks) - 1))]) for part in _PARTS))
        for name, at in _QUANTILES.items()
    ]
    caption = f"Quantiles over {len(ranks):,} ranks of the shares of step time, for each column separately"
    return Table(caption, ("quantile", *_PARTS.values()), rows, numeric=(1, 2, 3, 4))


def _own_chart(worst: Sequence[Mapping[str, Any]], middle: float, of: int) -> Chart:
    rows = [
        Bar(
            short(rank_name(rank), 30),
            [rank["own_seconds"] * 1e3],
            [4 if rank.get("straggler") else 1],
            duration(rank["own_seconds"]) + (" ◀" if rank.get("straggler") else ""),
        )
        for rank in worst
    ]
    axis = spanning("own time of a step: data wait and compute, ms", [rank["own_seconds"] * 1e3 for rank in worst])
    text = f"Median over the steps of each rank; the dashed line is the median of {of:,} ranks, {duration(middle)}."
    drawing = bars("Own time of each rank", text, axis, rows, middle * 1e3)
    keys = [Key("rank", 1), Key("median of the ranks", 0, "dashes")]
    if any(rank.get("straggler") for rank in worst):
        keys.append(Key("straggler (◀)", 4))
    return Chart("Own time of the slowest ranks", drawing, text, keys)


def _own_table(worst: Sequence[Mapping[str, Any]], of: int) -> Fold:
    rows: list[Row] = [
        (
            str(rank.get("rank")),
            short(rank.get("host", ""), 60),
            *(duration(rank.get(f"{part}_seconds")) for part in ("step", "data_wait", "compute", "communication_wait")),
            duration(rank["own_seconds"]),
            Cell("straggler", "bad") if rank.get("straggler") else "",
        )
        for rank in worst
    ]
    shown = Table(
        "Medians over the steps of each rank, the slowest first",
        ("rank", "host", "step", "data wait", "compute", "communication wait", "own time", ""),
        rows,
        numeric=(0, 2, 3, 4, 5, 6),
        left_out=of - len(worst),
    )
    return Fold("The slowest ranks in numbers", [shown])


def _hundred(shares: Sequence[float]) -> list[float]:
    return [part * 100 for part in shares]


# ----------------------------------------------------------------------------------------------------
# The cost of the all-reduce of gradients; docs/timeline.md defines each number.


def communication_section(subject: Subject) -> Section | None:
    """Fractions, bytes and the stages of an all-reduce (V2.0 Table 12); None for one rank."""
    value = subject.last("communication")
    if not value:
        return None
    sizes = table(value.get("bytes_per_step"))
    efficiency = subject.result.parallel_efficiency if subject.result else None
    unknown = subject.result.parallel_efficiency_note if subject.result else None
    split = subject.step_split
    text = (
        f"{share(split.communication if split else None)} of step time is spent waiting for the all-reduce; "
        f"{share(value.get('overlap'))} of all-reduce time is hidden behind computation. "
        f"A rank exchanges {quantity(sizes.get('gradient'), 'B')} of gradients a step "
        f"and sends {quantity(sizes.get('sent'), 'B')} for them."
    )
    if efficiency is not None:
        text += f" Parallel efficiency, estimated before the clock started: {efficiency:.2f}."
    elif unknown:
        text += f" Parallel efficiency is unknown: {short(unknown, 200)}."
    if (network := table(value.get("network"))).get("verdict"):
        text += f" Network counters: {short(network['verdict'], 200)}."
    if value.get("all_reduces", 0) is None:
        text = "Its cost is unknown: torch communicates within the passes of a sharded model."
        return Section("Communication", [Text(text)])
    stages = table(value.get("stages"))
    return Section("Communication", [Text(text), *([_stage_table(stages, value)] if stages else [])])


def _stage_table(stages: Mapping[str, Any], value: Mapping[str, Any]) -> Table:
    known = {name: times for name, times in stages.items() if isinstance(times, dict)}
    whole = sum(number(times.get("mean_seconds")) or 0.0 for times in known.values())
    rows = []
    for name, times in list(stages.items())[:20]:
        mean = number(times.get("mean_seconds")) if isinstance(times, dict) else None
        if mean is None:
            rows.append((_stage_name(name), "not seen", "", "", ""))
            continue
        middle, late = duration(times.get("median_seconds")), duration(times.get("p95_seconds"))
        rows.append((_stage_name(name), duration(mean), middle, late, share(mean / whole) if whole else ""))
    caption = (
        f"One all-reduce of a bucket, mean over {count(value.get('all_reduces'), 'all-reduce')} in "
        f"{count(value.get('steps'), 'step')} on each rank"
    )
    return Table(caption, ("stage", "mean", "median", "95 %", "share"), rows, numeric=(1, 2, 3, 4))


def _stage_name(name: object) -> str:
    return "all-reduce" if name == "all_reduce" else short(name, 60).replace("_", " ")


# ----------------------------------------------------------------------------------------------------
# The run below the ceilings of its machine, drawn like V2.0 Fig. 9 and 15.


_MOST_CEILINGS, _MOST_LINKS = 6, 4
# Labels of values that differ by less than this factor overlap.
_CLOSE = 1.6
_ALONE = "One rank does not communicate, so there is no chart of FLOPs for each byte."


def roofline_section(subject: Subject, machine: Machine, sources: Sequence[GivenFile]) -> Section:
    """The roofline of the run with its bottleneck, or why there is none."""
    try:
        model = roofline([subject.path], machine)
    except HpcAi500Error as error:
        return Section("Roofline", [Text(f"No roofline: {short(error)}.", "flag")])
    point, roofs = model.points[0], model.roofs[0]
    blocks: list[Block] = [Text(f"{point.sentence}."), *(Text(f"{short(file.sentence)}.", "soft") for file in sources)]
    if point.moves:
        blocks.append(Sentences([move_sentence(move, point) for move in point.moves]))
    blocks.append(_roofline_chart(model, point, roofs) if point.coi else Text(_ALONE, "soft"))
    blocks.append(_ceiling_table(model, roofs))
    return Section("Roofline", blocks)


def _roofline_chart(model: Roofline, point: RooflinePoint, roofs: Roofs) -> Chart:
    """Flat ceilings of FLOPS, slanted ceilings of bandwidths up to the highest flat one, and the run below them."""
    assert point.coi is not None
    ceilings = sorted(roofs.ceilings.items(), key=lambda item: (item[0] != point.flops_ceiling, -item[1]))[
        :_MOST_CEILINGS
    ]
    links = sorted(roofs.bandwidths.items(), key=lambda item: (item[0] != model.bound, -item[1]))[:_MOST_LINKS]
    top = max(rate for _, rate in ceilings)
    x = spanning_decades("FLOPs for each byte communicated", [point.coi, *(top / rate for _, rate in links)], margin=4)
    heights = [point.flops, point.attainable_flops, *(rate for _, rate in ceilings)]
    y = spanning_decades("FLOPS", heights, margin=3)
    lines = [_bandwidth_line(rate, top, x, y, colour) for colour, (_, rate) in enumerate(links, 1)]
    drawing = Plot(
        f"Roofline of {short(model.machine, 80)}",
        short(f"{point.sentence}."),
        x,
        y,
        lines=lines,
        levels=[
            Level(rate, f"{short(name, 30)} {quantity(rate, 'FLOPS')}")
            for name, rate in _apart(ceilings, point.flops_ceiling)
        ],
        spots=[Spot(point.coi, point.flops, f"its steps, {quantity(point.flops, 'FLOPS')}", 4)],
    ).draw()
    keys = [
        Key(f"{short(name, 30)}, {quantity(rate, 'B/s')}", colour, "dashes" if colour > 1 else "line")
        for colour, (name, rate) in enumerate(links, 1)
    ]
    note = f"{short(model.machine, 80)} ({short(model.source, 160)}); ceilings of {roofs.accelerators:,} accelerators"
    return Chart("Roofline (V2.0 section 6)", drawing, note, [*keys, Key("training steps of this run", 4, "dot")])


def _bandwidth_line(rate: float, top: float, x: Axis, y: Axis, colour: int) -> Line:
    """Bandwidth x COI, from the edge of the drawing to the highest ceiling."""
    start = max(x.low, y.low / rate)
    return Line([(start, start * rate), (top / rate, top)], colour, dashed=colour > 1)


def _apart(ceilings: Sequence[tuple[str, float]], binding: str) -> list[tuple[str, float]]:
    """Ceilings whose names do not overlap, among them the run's own; the table has all."""
    kept: list[tuple[str, float]] = []
    for name, rate in sorted(ceilings, key=lambda item: item[0] != binding):
        if all(max(rate, other) > _CLOSE * min(rate, other) for _, other in kept):
            kept.append((name, rate))
    return kept


def _ceiling_table(model: Roofline, roofs: Roofs) -> Fold:
    rows = [
        (short(name, 60), quantity(rate, "FLOPS"), quantity(roofs.ridges[name].get(model.bound or ""), "FLOP/B"))
        for name, rate in sorted(roofs.ceilings.items(), key=lambda item: -item[1])
    ]
    rows += [
        (f"{short(name, 60)}{' (carries the gradients)' if name == model.bound else ''}", quantity(rate, "B/s"), "")
        for name, rate in sorted(roofs.bandwidths.items(), key=lambda item: -item[1])
    ]
    columns = ("ceiling", "rate", f"ridge point with {short(model.bound or 'no link', 40)}")
    return Fold("All ceilings", [Table(f"Ceilings of {roofs.accelerators:,} accelerators", columns, rows, (1, 2))])


# ----------------------------------------------------------------------------------------------------
# Power over time, and its integral, the energy; docs/power.md has the rules.


# More curves could not be distinguished; those of the nodes with the highest power are shown.
_MOST_CURVES, _MOST_NODES = 6, 20


def power_section(subject: Subject) -> Section | None:
    """Curves of the nodes with the highest power, and a table; None if power was not measured."""
    value = subject.last("power")
    if not value:
        return None
    nodes, beside = tables(value.get("nodes")), tables(value.get("beside"))
    result = subject.result
    blocks: list[Block] = []
    if result is not None and result.energy_joules is not None:
        mean = f", {quantity(result.watts, 'W')} on average" if result.watts is not None else ""
        blocks.append(Text(f"The run took {quantity(result.energy_joules, 'J')}{mean}."))
    else:
        reason = (result.power_note if result else None) or value.get("reason") or "the run is not finished"
        blocks.append(Text(f"The energy of the run is unknown: {short(reason)}.", "flag"))
    ordered = sorted(nodes, key=lambda node: -(number(node.get("mean_watts")) or 0.0))
    curves, problems = _curves(subject, ordered[:_MOST_CURVES])
    blocks += [Text(problem, "flag") for problem in problems]
    if curves:
        blocks.append(_power_chart(curves, len(nodes)))
    if nodes:
        blocks.append(_power_table("Power of each node, the highest first", ordered))
    if beside:
        comparisons = tables(value.get("comparisons"))
        blocks += [Text(f"{short(one['finding'], 300)}.", "flag") for one in comparisons if one.get("finding")]
        blocks.append(_comparison_table(comparisons))
        blocks.append(_power_table("Sources beside it, which do not count", beside))
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
            points = list(_watts_over_time(subject.path, node, begin))
        except RecordError as error:
            problems.append(f"{error}; its curve is left out.")
            continue
        if points:
            curves.append((short(node.get("host", ""), 40), Line(points, len(curves) + 1, dashed=len(curves) % 2 == 1)))
    return curves, problems


def _watts_over_time(record: Path, node: Mapping[str, Any], begin: float | None) -> Iterator[tuple[float, float]]:
    """(seconds since the run's start, watts) of one node; reading the record has checked the file's hash.

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


def _power_chart(curves: Sequence[tuple[str, Line]], of: int) -> Chart:
    points = [point for _, line in curves for point in line.points]
    times = [time for time, _ in points]
    low, high = min(*times, 0.0), max(times)
    axis = Axis("seconds since the run's start", low, high if high > low else low + 1.0)
    note = "" if len(curves) == of else f"the {len(curves)} nodes with the highest power, of {of:,}"
    drawing = Plot(
        "Power over time",
        f"From {min(watts for _, watts in points):.4g} W to {max(watts for _, watts in points):.4g} W. {note}".strip(),
        axis,
        spanning("watts", [watts for _, watts in points]),
        [line for _, line in curves],
    ).draw()
    keys = [Key(host, line.colour, "dashes" if line.dashed else "line") for host, line in curves]
    return Chart("Power over time", drawing, note, keys)


# What the other source measures, for people.
_RELATIONS = {"same": "the same", "part": "a part", "whole": "the whole"}


def _comparison_table(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for one in comparisons[:_MOST_NODES]:
        hosts, ratio = one.get("hosts"), number(one.get("ratio"))
        shown = ", ".join(short(host, 40) for host in hosts[:4]) if isinstance(hosts, list) else ""
        percent = "" if ratio is None else f"{ratio:.1%}"
        rows.append(
            (
                shown,
                f"{short(one.get('other', ''), 40)} by {short(one.get('source', ''), 40)}",
                _RELATIONS.get(str(one.get("relation")), "another part"),
                quantity(one.get("watts"), "W"),
                quantity(one.get("other_watts"), "W"),
                Cell(percent, "flag") if one.get("finding") else percent,
                short(one.get("reason") or "", 200),
            )
        )
    return Table(
        "Sources compared",
        ("hosts", "sources", "the other measures", "first", "other", "ratio", "note"),
        rows,
        numeric=(3, 4, 5),
        left_out=len(comparisons) - len(rows),
    )


def _power_table(title: str, nodes: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for node in nodes[:_MOST_NODES]:
        gaps = [gap for gap in node.get("gaps") or [] if isinstance(gap, list | tuple) and len(gap) == 2]
        missing = sum((number(stop) or 0.0) - (number(start) or 0.0) for start, stop in gaps)
        rows.append(
            (
                short(node.get("host", ""), 60),
                f"{short(node.get('source', ''), 40)}, {short(node.get('scope', ''), 20)}",
                quantity(node.get("mean_watts"), "W"),
                quantity(node.get("energy_joules"), "J"),
                _caps(node),
                _resolution(node),
                count(node.get("samples"), "sample"),
                Cell(f"{count(len(gaps), 'gap')}, {duration(missing)}", "flag") if gaps else "none",
                short(node.get("reason") or "", 200),
            )
        )
    return Table(
        title,
        ("host", "source and scope", "mean", "energy", "cap", "resolution", "samples", "gaps", "note"),
        rows,
        numeric=(2, 3, 6),
        left_out=len(nodes) - len(rows),
    )


def _caps(node: Mapping[str, Any]) -> str:
    """The power limits of a node's parts, such as `8 x 700 W`; the note says if they changed."""
    caps = node.get("caps")
    if not isinstance(caps, dict):
        return ""
    found = Counter(watts for one in caps.values() if (watts := number(one)) is not None)
    parts = [(f"{many} x " if many > 1 else "") + quantity(watts, "W") for watts, many in found.most_common(3)]
    return ", ".join(parts) or "none"


def _resolution(node: Mapping[str, Any]) -> str:
    """Smallest step and usual time between two changes, as the samples show them."""
    step, period = number(node.get("step")), number(node.get("update_seconds"))
    shown = [quantity(step, short(node.get("step_unit") or "", 2)) if step is not None else None]
    shown.append(f"every {duration(period)}" if period is not None else None)
    return ", ".join(one for one in shown if one)


# ----------------------------------------------------------------------------------------------------
# A profile of the same benchmark on the same machine, from the `profile.json` of `hpcai500 profile`.


_MOST_CLASSES, _MOST_KERNELS, _MOST_CONVERSIONS = 12, 20, 10


def given_profile(folder: Path) -> GivenFile:
    """The file of the profile in `folder`, and its signer.

    Raises:
        RecordError: there is none.
        WrongAnswerError: its signature does not match it.
    """
    path = folder / "profile.json"
    if not path.is_file():
        raise RecordError(f"{folder}: no profile.json; make one: hpcai500 profile ic --out {folder}")
    return given_file(path)


def profile_section(subject: Subject, given: GivenFile | None) -> Section | None:
    """Kernel classes, the top kernels, layout conversions, utilisation and bandwidth over time.

    The profile is `given` if it has the run's recipe and machine, else the record's own; None if there is neither.

    Raises:
        RecordError: profile.json cannot be read.
        WrongAnswerError: its signature does not match it.
    """
    if given and why_not_of_run(given.tables(), subject.record) is None:
        file = given
    elif (own := subject.path / "profile" / "profile.json").is_file():
        file = given_profile(own.parent)
    else:
        return None
    document = file.tables()
    if reason := why_not_of_run(document, subject.record):
        return Section("Profile", [Text(f"Not shown, because it is of another run: {reason}.", "flag")])
    text = (
        f"{listed(document.get('benchmark'))} on {listed(document.get('device'))}: "
        f"{count(document.get('steps'), 'step')} in {duration(document.get('seconds'))}. "
        f"Unclassified: {share(document.get('unclassified_share'))} of kernel time."
    )
    blocks: list[Block] = [Text(text), Text(f"{short(file.sentence)}.", "soft")]
    classes = {name: kind for name, kind in table(document.get("classes")).items() if isinstance(kind, dict)}
    charts = [_class_chart(classes)] if classes else []
    charts += [chart for chart in (_utilisation_chart(document), _bandwidth_chart(document)) if chart]
    blocks.append(Charts(charts))
    blocks += _layout(table(document.get("layout")))
    top = tables(document.get("top"))
    if top:
        blocks.append(Fold("The kernels that take most time", [_kernel_table(top)]))
    return Section("Profile", blocks)


def _class_chart(classes: Mapping[str, Mapping[str, Any]]) -> Chart:
    ordered = sorted(classes.items(), key=lambda item: -(number(item[1].get("share")) or 0.0))[:_MOST_CLASSES]
    shares = [(short(name, 40), 100 * (number(kind.get("share")) or 0.0), kind) for name, kind in ordered]
    rows = [Bar(name, [part], [1], f"{part:.1f} %") for name, part, _ in shares]
    text = "; ".join(f"{name} {part:.1f} %" for name, part, _ in shares)
    drawing = bars(
        "Kernel classes by share of time",
        text,
        spanning("share of kernel time, %", [part for _, part, _ in shares]),
        rows,
    )
    return Chart("Kernel classes (V2.0 Fig. 10)", drawing)


def _utilisation_chart(document: Mapping[str, Any]) -> Chart | None:
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
    text = f"{plain(mean)} % on average."
    drawing = Plot(
        "Device utilisation over time",
        text,
        _time_axis([time for time, _ in points]),
        Axis("utilisation, %", 0, 100),
        [Line(points, 3)],
    ).draw()
    return Chart("Device utilisation", drawing, text)


def _bandwidth_chart(document: Mapping[str, Any]) -> Chart | None:
    rows = [row for row in tables(document.get("bandwidth")) if number(row.get("t_s")) is not None]
    if len(rows) < 2:
        return None
    lines = [
        Line(
            [(row["t_s"], value) for row in rows if (value := number(row.get(key))) is not None],
            colour,
            dashed=colour > 1,
        )
        for colour, key in enumerate(("sent_bytes_per_second", "received_bytes_per_second"), 1)
    ]
    values = [value for line in lines for _, value in line.points]
    if not values:
        return None
    text = f"At most {quantity(max(values), 'B/s')}."
    drawing = Plot(
        "Communication bandwidth over time",
        text,
        _time_axis([row["t_s"] for row in rows]),
        spanning("bytes/s", values),
        lines,
    ).draw()
    keys = [Key("sent", 1, "line"), Key("received", 2, "dashes")]
    return Chart("Communication bandwidth (V2.0 Fig. 13)", drawing, text, keys)


def _layout(layout: Mapping[str, Any]) -> list[Block]:
    if number(layout.get("share")) is None:
        return []
    text = f"Layout conversions take {duration(layout.get('seconds'))}, {share(layout['share'])} of kernel time."
    conversions = tables(layout.get("conversions"))
    if not conversions:
        return [Text(text)]
    columns = list(dict.fromkeys(key for one in conversions[:_MOST_CONVERSIONS] for key in one))[:6]
    rows = [[listed(one.get(key)) for key in columns] for one in conversions[:_MOST_CONVERSIONS]]
    shown = Table(
        "Layout conversions", [short(key, 40) for key in columns], rows, left_out=max(0, len(conversions) - len(rows))
    )
    return [Text(text), Fold("Layout conversions", [shown])]


def _kernel_table(top: list[Mapping[str, Any]]) -> Table:
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
