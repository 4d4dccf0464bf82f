"""What `hpcai500 track` writes beside its table: a page, the newest values for Prometheus, a dashboard for Grafana."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcai500.methodology.changes import LEAST_VALUES
from hpcai500.results.report.blocks import Block, Cell, Chart, Charts, Key, Row, Section, Table, Text, Tone, render
from hpcai500.results.report.drawing import Axis, Line, Plot, Spot, spanning
from hpcai500.results.track.folder import MICRO, Group
from hpcai500.results.track.trends import Finding, Mark, Tracked, Trend, day_of
from hpcai500.text import count, legible, short

# ----------------------------------------------------------------------------------------------------
# The page: a chart of each trend.


_MOST_CHARTS = 60
_MOST_ROWS = 200
_DAY_MS = 86_400_000
_VALUE, _GOOD, _BAD, _MARK = 1, 3, 4, 6


def track_page(tracked: Tracked) -> str:
    """The trends as one HTML page."""
    observations = tracked.folder.observations
    sections = [_worse_section(tracked)] if tracked.alarms else []
    for group in dict.fromkeys(trend.group for trend in tracked.trends):
        sections.append(_group_section(tracked, group))
    sections += [_mark_section(tracked.marks), *_left_out_section(tracked)]
    first, last = (day_of(observations[place].time_ms) for place in (0, -1))
    return render(
        "track.html.j2",
        title=f"HPC AI500: {count(len(observations), 'record')} of one machine",
        subtitle=f"{first} to {last}",
        tone="fail" if tracked.alarms else "pass" if tracked.tested else "amber",
        word="✗ GOT WORSE" if tracked.alarms else "✓ NOTHING GOT WORSE" if tracked.tested else "! TOO EARLY TO TELL",
        sentence=tracked.sentence,
        facts=[
            ("Tested", f"{tracked.tested} of {count(len(tracked.trends), 'trend')}: {LEAST_VALUES} values or more"),
            (
                "False alarms",
                f"at most {100 * tracked.false_alarms:g} % of looks at an unchanged machine, if days are independent",
            ),
            ("Least change", f"{100 * tracked.least_change:g} %, or points of a share of time"),
            ("Value", "the median over the records of a day" if tracked.by == "day" else "that of each record"),
        ],
        sections=sections,
    )


def _worse_section(tracked: Tracked) -> Section:
    found = [(trend, trend.alarm) for trend in tracked.alarms]
    rows = [_finding_row(trend, one) for trend, one in found if one]
    return Section("What got worse", [_finding_table("Changes for the worse that are still present", rows)])


def _finding_table(caption: str, rows: Sequence[Row]) -> Table:
    columns = (
        "metric",
        "before",
        "after",
        "change",
        "95 % interval",
        "first record after it",
        "between",
        "also changed",
    )
    return Table(caption, columns, rows[:_MOST_ROWS], numeric=(1, 2, 3, 4), left_out=max(0, len(rows) - _MOST_ROWS))


def _finding_row(trend: Trend, finding: Finding) -> Row:
    change, metric = finding.change, trend.metric
    tone: Tone = "bad" if finding.alarms else "good" if finding.state == "better" else "soft"
    slowly = "; a slow change" if change.shape == "trend" else ""
    return (
        trend.name,
        metric.shown(change.before),
        metric.shown(change.after),
        Cell(f"{metric.size(change.size)} {finding.state}", tone),
        metric.interval(change.low, change.high),
        f"{finding.point.records[0]}, {day_of(finding.point.time_ms)}{slowly}",
        f"{day_of(finding.earliest_ms)} and {day_of(finding.latest_ms)}",
        "; ".join(mark.sentence for mark in finding.marks[:3]) or "nothing that the records show",
    )


def _group_section(tracked: Tracked, group: Group) -> Section:
    trends = [trend for trend in tracked.trends if trend.group == group]
    # Those of nodes with a change come first, where there are too many for a page.
    ordered = sorted(trends, key=lambda trend: bool(trend.node) and not trend.findings)
    shown = [trend for trend in trends if trend in ordered[:_MOST_CHARTS]]
    blocks: list[Block] = [Charts([_chart(trend, tracked.marks) for trend in shown])]
    if len(trends) > len(shown):
        left = count(len(trends) - len(shown), "trend")
        blocks.append(Text(f"{left} of nodes, most without a change, are not drawn.", "soft"))
    rows = [_finding_row(trend, one) for trend in trends for one in trend.findings]
    if rows:
        blocks.append(_finding_table("All changes", rows))
    return Section(group.name, blocks)


def _chart(trend: Trend, marks: Sequence[Mark]) -> Chart:
    start = trend.points[0].time_ms
    times = [(point.time_ms - start) / _DAY_MS for point in trend.points]
    is_share = trend.metric.unit == "fraction"
    factor = 100.0 if is_share else 1.0
    values = [factor * point.value for point in trend.points]
    axis = spanning("% of the time" if is_share else trend.metric.unit or "ratio", values, zero=False)
    own = [mark for mark in marks if start < mark.time_ms <= trend.points[-1].time_ms and _concerns(mark, trend)]
    moments = sorted({(mark.time_ms - start) / _DAY_MS for mark in own})
    alarm = trend.alarm
    text = f"{count(len(values), 'value')}; " + (
        "; ".join(f"{trend.metric.size(one.change.size)} since {day_of(one.point.time_ms)}" for one in trend.findings)
        or ("no change" if trend.is_tested else f"too few to be tested, which takes {LEAST_VALUES}")
    )
    drawing = Plot(
        trend.name,
        text,
        Axis(f"days since {day_of(start)} (UTC)", 0.0, max(times[-1], 1.0)),
        axis,
        [
            *(Line([(at, axis.low), (at, axis.high)], _MARK, dashed=True) for at in moments),
            Line(list(zip(times, values, strict=True)), _VALUE, marked=True, joined=False),
            *_levels(trend, times, factor),
        ],
        spots=[
            Spot(times[place], values[place], trend.metric.size(one.change.size), _colour(one))
            for one in trend.findings
            for place in (one.change.position,)
        ],
    ).draw()
    keys = [Key("a day's median" if any(len(one.records) > 1 for one in trend.points) else "a record", _VALUE, "dot")]
    if trend.findings:
        keys.append(Key("median before and after a change", _BAD if alarm else _GOOD, "line"))
    if moments:
        keys.append(Key("hardware, firmware or software changed", _MARK, "dashes"))
    return Chart(trend.name, drawing, text, keys)


def _levels(trend: Trend, times: Sequence[float], factor: float) -> Iterator[Line]:
    """The median of each stretch between two changes."""
    changes = [one.change for one in trend.findings]
    ends = [0, *(one.position for one in changes), len(times)]
    levels = [changes[0].before, *(one.after for one in changes)] if changes else []
    colours = [_GOOD, *map(_colour, trend.findings)]
    for level, colour, first, end in zip(levels, colours, ends, ends[1:], strict=False):
        yield Line([(times[first], factor * level), (times[end - 1], factor * level)], colour)


def _colour(finding: Finding) -> int:
    return _BAD if finding.alarms else _GOOD


def _concerns(mark: Mark, trend: Trend) -> bool:
    return not trend.where or any(trend.where == host or trend.where.endswith(f" on {host}") for host in mark.hosts)


def _mark_section(marks: Sequence[Mark]) -> Section:
    if not marks:
        return Section("Hardware, firmware and software", [Text("The records show no change of them.")])
    rows = [
        (mark.day, mark.record, mark.field, mark.before, mark.after, short(", ".join(mark.hosts), 200))
        for mark in reversed(marks)
    ]
    table = Table(
        "What changed, the newest first",
        ("day", "first record", "field of system.json", "before", "after", "hosts"),
        rows[:_MOST_ROWS],
        left_out=max(0, len(rows) - _MOST_ROWS),
    )
    return Section("Hardware, firmware and software", [table])


def _left_out_section(tracked: Tracked) -> Iterator[Section]:
    blocks: list[Block] = []
    rows = [(short(one.name, 200), one.reason) for one in tracked.folder.left_out]
    if rows:
        left = max(0, len(rows) - _MOST_ROWS)
        blocks.append(Table("Records that were not used", ("record", "reason"), rows[:_MOST_ROWS], left_out=left))
    blocks += [Text(note, "flag") for note in tracked.folder.notes[:_MOST_ROWS]]
    if blocks:
        yield Section("Left out, or doubtful", blocks)


# ----------------------------------------------------------------------------------------------------
# OpenMetrics: the newest value of each trend, for the textfile collector of Prometheus's node_exporter.


@dataclass(frozen=True)
class Family:
    """A family of gauges; `unit` is the end of its name, or ""."""

    name: str
    unit: str
    help: str


_PERFORMANCE = (
    Family("hpcai500_images_per_second", "images_per_second", "Images a second of a run, newest value."),
    Family("hpcai500_valid_flops", "flops", "VFLOPS of a run, newest value."),
    Family("hpcai500_epoch_seconds", "seconds", "Training time of an epoch, newest value."),
    Family("hpcai500_data_wait_ratio", "ratio", "Share of the training time spent waiting for data."),
    Family("hpcai500_communication_ratio", "ratio", "Share of the training time spent in communication."),
    Family("hpcai500_image_joules", "joules", "Energy of an image, newest value."),
    Family("hpcai500_ceiling_flops", "flops", "FLOPS of matrix products before a run, newest value."),
    Family("hpcai500_step_ratio", "ratio", "Own time of a step of a node or rank over the median of the others."),
    Family("hpcai500_micro_flops", "flops", "FLOPS of matrix products or convolutions, by hpcai500 micro."),
    Family("hpcai500_micro_bytes_per_second", "bytes_per_second", "Bandwidths, by hpcai500 micro."),
    Family("hpcai500_micro_samples_per_second", "samples_per_second", "Samples a second of the input, by micro."),
    Family("hpcai500_micro_seconds", "seconds", "Latency of the slowest pair of nodes, by hpcai500 micro."),
    Family("hpcai500_micro_ratio", "ratio", "Slowest pair of nodes over the median pair, by hpcai500 micro."),
)
_WORSE = Family("hpcai500_worse", "", "1 if the metric got worse, beyond the stated rate of false alarms; else 0.")
_SIZE = Family("hpcai500_worse_change_ratio", "ratio", "Size of the change for the worse, for a share its difference.")
_SINCE = Family("hpcai500_worse_since_seconds", "seconds", "UNIX time of the first record after it.")
_NEWEST = Family("hpcai500_newest_record_seconds", "seconds", "UNIX time of the newest comparable record.")
_CHANGED = Family("hpcai500_changed_seconds", "seconds", "UNIX time of the first record with this change.")
_LOOKED = Family("hpcai500_track_look_seconds", "seconds", "UNIX time of this look at the records.")
_RECORDS = Family("hpcai500_track_records", "records", "Records that were used.")
_LEFT_OUT = Family("hpcai500_track_left_out_records", "records", "Records that were not used.")
_TESTED = Family("hpcai500_track_tested_trends", "trends", "Trends with enough values to be tested.")
FAMILIES = (*_PERFORMANCE, _WORSE, _SIZE, _SINCE, _NEWEST, _CHANGED, _LOOKED, _RECORDS, _LEFT_OUT, _TESTED)
# A label of each change costs Prometheus memory for as long as it is kept.
_MOST_MARKS = 100
_MOST_LABEL = 120

Labels = Mapping[str, str]


def openmetrics_text(tracked: Tracked, now_s: float) -> str:
    """The newest value of each trend, and whether it got worse, in the text format of OpenMetrics 1.0.

    Without timestamps, which node_exporter refuses: `hpcai500_newest_record_seconds` has them.
    """
    samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for trend in tracked.trends:
        labels = _labels(trend)
        named = {**labels, "metric": trend.metric.name}
        samples[trend.metric.family].append((labels, trend.points[-1].value))
        if trend.is_tested:
            samples[_WORSE.name].append((named, float(trend.alarm is not None)))
        if trend.alarm:
            samples[_SIZE.name].append((named, trend.alarm.change.size))
            samples[_SINCE.name].append((named, trend.alarm.point.time_ms / 1000))
    newest: dict[Group, int] = {one.group: one.time_ms for one in tracked.folder.observations}
    samples[_NEWEST.name] = [(_group_labels(group), time_ms / 1000) for group, time_ms in newest.items()]
    for mark in tracked.marks[-_MOST_MARKS:]:
        changed = {"field": mark.field, "before": mark.before, "after": mark.after, "record": mark.record}
        samples[_CHANGED.name] += [({"host": host, **changed}, mark.time_ms / 1000) for host in mark.hosts]
    samples[_CHANGED.name] = samples[_CHANGED.name][-_MOST_MARKS:]
    samples[_LOOKED.name] = [({}, now_s)]
    samples[_RECORDS.name] = [({}, float(len(tracked.folder.observations)))]
    samples[_LEFT_OUT.name] = [({}, float(len(tracked.folder.left_out)))]
    samples[_TESTED.name] = [({}, float(tracked.tested))]
    lines: list[str] = []
    for family in FAMILIES:
        if not samples[family.name]:
            continue
        lines.append(f"# TYPE {family.name} gauge")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}")
        lines.append(f"# HELP {family.name} {family.help}")
        lines += [f"{family.name}{_written(labels)} {value:.10g}" for labels, value in samples[family.name]]
    return "\n".join([*lines, "# EOF", ""])


def _group_labels(group: Group) -> dict[str, str]:
    """`group` tells groups apart that differ in data, library or hardware only."""
    digest = hashlib.sha256(json.dumps(asdict(group), sort_keys=True).encode()).hexdigest()
    own = {"benchmark": group.benchmark, "recipe": group.recipe[:8], "group": digest[:8]}
    return {**own, "ranks": str(group.ranks), "nodes": str(group.nodes), "host": group.host}


def _labels(trend: Trend) -> dict[str, str]:
    labels = _group_labels(trend.group)
    if trend.node:
        rank = re.fullmatch(r"rank (\d+) on (.*)", trend.node)
        labels |= {"rank": rank[1], "host": rank[2]} if rank else {"host": trend.node}
    if trend.group.benchmark == MICRO:
        labels["measurement"] = trend.metric.name
    return labels


def _written(labels: Labels) -> str:
    """`{host="n1"}`, without labels that are empty, which Prometheus takes for absent ones."""
    texts = {name: legible(short(value, _MOST_LABEL)) for name, value in labels.items() if value}
    escaped = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in texts.items()
    }
    return "{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + "}" if escaped else ""


# ----------------------------------------------------------------------------------------------------
# Grafana: a dashboard of these families.


# Grafana's version 9 writes this version of the format; newer ones still read it.
_GRAFANA_SCHEMA = 37
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_CHOSEN = 'benchmark=~"$benchmark", recipe=~"$recipe", host=~"$host"'
# Names of units in Grafana.
_UNITS = {"flops": "flops", "seconds": "s", "ratio": "percentunit", "joules": "joule", "bytes_per_second": "Bps"}
_WIDTH, _HEIGHT, _TOP_HEIGHT = 12, 8, 5


def grafana_dashboard() -> dict[str, Any]:
    """The dashboard, to be imported; it asks for the data source."""
    panels: list[dict[str, Any]] = []

    def add(
        kind: str, title: str, query: str, legend: str, unit: str, place: tuple[int, int, int, int], **more: Any
    ) -> None:
        x, y, width, height = place
        defaults = {"unit": unit, **more.pop("defaults", {})}
        panels.append(
            {
                "id": len(panels) + 1, "type": kind, "title": title, "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "targets": [{"refId": "A", "datasource": _SOURCE, "expr": query, "legendFormat": legend, **more}],
                "fieldConfig": {"defaults": defaults, "overrides": []}, "options": {},
            }
        )  # fmt: skip

    colours = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
    red: dict[str, Any] = {"thresholds": {"mode": "absolute", "steps": colours}}
    top: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("Trends that got worse", f"sum({_WORSE.name}{{{_CHOSEN}}}) or vector(0)", "none", red),
        ("Since the newest record", f"time() - max({_NEWEST.name})", "s", {}),
        ("Since the last look", f"time() - max({_LOOKED.name})", "s", {}),
        ("Records left out", f"sum({_LEFT_OUT.name})", "none", {}),
    )
    for place, (title, query, unit, defaults) in enumerate(top):
        add("stat", title, query, "", unit, (6 * place, 0, 6, _TOP_HEIGHT), defaults=defaults, instant=True)
    changes = f"{_SIZE.name}{{{_CHOSEN}}}"
    add("bargauge", "Changes for the worse", changes, "{{metric}} {{host}} {{rank}} {{benchmark}}", "percentunit",
        (0, _TOP_HEIGHT, 24, _HEIGHT), instant=True)  # fmt: skip
    for place, family in enumerate(_PERFORMANCE):
        left, top_of = _WIDTH * (place % 2), _TOP_HEIGHT + _HEIGHT * (1 + place // 2)
        legend = "{{benchmark}} {{recipe}} {{measurement}} {{host}} {{rank}}"
        # A ratio of step times is no share.
        unit = "none" if family.name == "hpcai500_step_ratio" else _UNITS.get(family.unit, "none")
        query = f"{family.name}{{{_CHOSEN}}}"
        add("timeseries", family.help.rstrip("."), query, legend, unit, (left, top_of, _WIDTH, _HEIGHT))
    return {
        "title": "HPC AI500 trends", "uid": "hpcai500-track", "tags": ["hpcai500"], "timezone": "utc",
        "schemaVersion": _GRAFANA_SCHEMA, "version": 1, "editable": True, "refresh": "5m",
        "time": {"from": "now-180d", "to": "now"}, "panels": panels,
        "templating": {"list": [_source_variable(), *map(_variable, ("benchmark", "recipe", "host"))]},
        "annotations": {"list": [_changed_annotation()]},
    }  # fmt: skip


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(label: str) -> dict[str, Any]:
    return {
        "name": label, "label": label, "type": "query", "datasource": _SOURCE, "refresh": 2, "hide": 0,
        "query": {"query": f'label_values({{__name__=~"hpcai500_.+"}}, {label})', "refId": "A"},
        # Also what lacks the label, as runs on several nodes lack a host.
        "includeAll": True, "multi": True, "allValue": ".*", "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _changed_annotation() -> dict[str, Any]:
    """A line at each change of hardware or software, whose time is the value of the series, in milliseconds."""
    return {
        "name": "Hardware, firmware, software", "datasource": _SOURCE, "enable": True, "iconColor": "blue",
        "expr": f'1000 * {_CHANGED.name}{{host=~"$host"}}', "step": "1h", "useValueForTime": True,
        "titleFormat": "{{field}} on {{host}}", "textFormat": "{{before}} -> {{after}}",
    }  # fmt: skip
