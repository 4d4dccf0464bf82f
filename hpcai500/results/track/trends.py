"""Trends: series of comparable values, their changes, what else changed then, and the verdict."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hpcai500.errors import ExitCode
from hpcai500.methodology.changes import FALSE_ALARMS, LEAST_VALUES, Change, Floats, Series, find_changes, shift
from hpcai500.methodology.nodes import node_differences
from hpcai500.methodology.samples import IMAGES, samples_of
from hpcai500.progress import Tracker, silent
from hpcai500.results.acceptance.contract import METRICS as CRITERIA
from hpcai500.results.track.folder import MICRO, STEP_RATIO, Folder, Group, Observation, read_folder
from hpcai500.text import count, listed, scaled, short, text_table

SCHEMA = "hpcai500-track-1"
# Smaller changes than this share (of fractions: this difference) raise no alarm, however certain they are.
LEAST_CHANGE = 0.01
Better = Literal["higher", "lower"]
By = Literal["day", "record"]
BY: tuple[By, ...] = ("day", "record")


# ----------------------------------------------------------------------------------------------------
# Metrics.


@dataclass(frozen=True)
class Metric:
    """A number that is followed.

    Attributes:
        unit: of its values; "" for a ratio, `fraction` for a share of time, whose changes are differences.
        family: its name for Prometheus.
    """

    name: str
    title: str
    unit: str
    better: Better
    family: str

    @property
    def relative(self) -> bool:
        return self.unit != "fraction"

    def shown(self, value: float) -> str:
        """A value with its unit."""
        if self.unit == "fraction":
            return f"{value:.2%}".replace("%", " %")
        if self.unit in ("images/s", "samples/s", "s", "J"):
            return f"{value:{',.0f' if abs(value) >= 1000 else '.4g'}} {self.unit}"
        return scaled(value, "B/s" if self.unit == "bytes/s" else self.unit, 4) if self.unit else f"{value:.3f}"

    def size(self, value: float) -> str:
        """A change: `-4.8 %`, of shares of time `+0.3 points`."""
        return f"{100 * value:+.1f} %" if self.relative else f"{100 * value:+.2f} points"

    def interval(self, low: float, high: float) -> str:
        ends = f"{100 * low:+.1f} to {100 * high:+.1f}" if self.relative else f"{100 * low:+.2f} to {100 * high:+.2f}"
        return f"{ends} {'%' if self.relative else 'points'}"

    def is_worse(self, size: float) -> bool:
        return size < 0 if self.better == "higher" else size > 0


METRICS = (
    Metric("images_per_second", "Images per second", "images/s", "higher", "hpcai500_images_per_second"),
    Metric("vflops", "VFLOPS", "FLOPS", "higher", "hpcai500_valid_flops"),
    Metric("epoch_seconds", "Training time of an epoch", "s", "lower", "hpcai500_epoch_seconds"),
    Metric("data_wait_fraction", "Data wait, share", "fraction", "lower", "hpcai500_data_wait_ratio"),
    Metric("communication_fraction", "Communication, share", "fraction", "lower", "hpcai500_communication_ratio"),
    Metric("joules_per_image", "Energy per image", "J", "lower", "hpcai500_image_joules"),
    Metric("ceiling_flops", "Matrix products before the run", "FLOPS", "higher", "hpcai500_ceiling_flops"),
    Metric(STEP_RATIO, "Step time / that of others", "", "lower", "hpcai500_step_ratio"),
)
_BY_NAME = {metric.name: metric for metric in METRICS}
# Families of micro's numbers, by their units.
_MICRO_FAMILIES = {
    "FLOPS": "hpcai500_micro_flops",
    "bytes/s": "hpcai500_micro_bytes_per_second",
    "samples/s": "hpcai500_micro_samples_per_second",
    "s": "hpcai500_micro_seconds",
    "fraction": "hpcai500_micro_ratio",
}


def metric_of(group: Group, name: str) -> Metric:
    """The metric `name` of records, or of micro."""
    if group.benchmark != MICRO:
        metric, called = _BY_NAME[name], samples_of(group.benchmark).name
        if called == IMAGES.name:
            return metric
        title = metric.title.replace("Image", called.capitalize()).replace("image", called)
        return replace(metric, title=title, unit=metric.unit.replace("image", called))
    criterion = CRITERIA[name]
    return Metric(name, name, criterion.unit, criterion.better, _MICRO_FAMILIES[criterion.unit])


# ----------------------------------------------------------------------------------------------------
# Trends, and what changed.


@dataclass(frozen=True)
class Point:
    """One value of a trend: of one record, or the median over the records of a day (UTC)."""

    time_ms: int
    value: float
    records: tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """A change of hardware, firmware or software: `field` is its path in system.json, on these hosts since `record`."""

    time_ms: int
    record: str
    field: str
    before: str
    after: str
    hosts: tuple[str, ...]

    @property
    def day(self) -> str:
        return day_of(self.time_ms)

    @property
    def sentence(self) -> str:
        more = f" and {len(self.hosts) - 3} more" if len(self.hosts) > 3 else ""
        return f"{self.field}: {self.before} -> {self.after} on {', '.join(self.hosts[:3])}{more}"


@dataclass(frozen=True)
class Finding:
    """A change in a trend.

    Attributes:
        point: the first one after it.
        earliest: time of the last point that may still have been before it (95 %), UNIX time.
        latest: time of the last point that may be the first one after it.
        is_worse: whether the metric got worse.
        counts: whether it changed by at least the least change that raises an alarm.
        is_present: whether it has not been made good since.
        marks: what else changed between `earliest` and `latest`.
    """

    change: Change
    point: Point
    earliest_ms: int
    latest_ms: int
    is_worse: bool
    counts: bool
    is_present: bool
    marks: tuple[Mark, ...]

    @property
    def alarms(self) -> bool:
        return self.is_worse and self.counts and self.is_present

    @property
    def state(self) -> str:
        """`WORSE`, if it raises an alarm; else why it does not."""
        if not self.counts:
            return "small"
        return ("WORSE" if self.is_present else "worse, mended") if self.is_worse else "better"


@dataclass(frozen=True)
class Trend:
    """One metric of one group, of a node or rank or ("") of the whole run; `findings` are in the order of time."""

    group: Group
    node: str
    metric: Metric
    points: tuple[Point, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def where(self) -> str:
        """The node or rank, else the host, else ""."""
        return self.node or self.group.host

    @property
    def name(self) -> str:
        return f"{self.metric.title}{f', {self.where}' if self.where else ''}"

    @property
    def is_tested(self) -> bool:
        return len(self.points) >= LEAST_VALUES

    @property
    def alarm(self) -> Finding | None:
        """The first change for the worse that is still present."""
        return next((one for one in self.findings if one.alarms), None)


@dataclass(frozen=True)
class Tracked:
    """All trends of a folder, and the verdict."""

    folder: Folder
    trends: tuple[Trend, ...]
    marks: tuple[Mark, ...]
    false_alarms: float
    least_change: float
    by: By

    @property
    def alarms(self) -> tuple[Trend, ...]:
        """Trends that got worse: of nodes first, as they say what to mend, then by the size of the change."""
        found = [(trend, trend.alarm) for trend in self.trends]
        worse = [(trend, alarm) for trend, alarm in found if alarm]
        ordered = sorted(worse, key=lambda one: (not one[0].node, not one[0].metric.relative, -abs(one[1].change.size)))
        return tuple(trend for trend, _ in ordered)

    @property
    def tested(self) -> int:
        return sum(trend.is_tested for trend in self.trends)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.TOO_SLOW if self.alarms else ExitCode.PASS

    @property
    def verdict(self) -> Literal["PASS", "FAIL"]:
        return "FAIL" if self.alarms else "PASS"

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if not self.tested:
            longest = max((len(trend.points) for trend in self.trends), default=0)
            return f"too early to tell: a trend needs {LEAST_VALUES} {self.by}s, the longest has {longest}"
        if not self.alarms:
            return f"no metric got worse ({count(self.tested, 'trend')} tested)"
        first = self.alarms[0]
        alarm = first.alarm
        assert alarm
        more = f"; {count(len(self.alarms) - 1, 'more metric')} got worse" if self.alarms[1:] else ""
        beside = f" ({alarm.marks[0].sentence})" if alarm.marks else ""
        how = "since" if alarm.change.shape == "step" else "slowly, most around"
        return (
            f"worse {how} {day_of(alarm.point.time_ms)}: {first.name} {first.metric.size(alarm.change.size)}, "
            f"first in {alarm.point.records[0]}{beside}{more}"
        )

    def document(self) -> dict[str, Any]:
        """As JSON."""
        groups = list(dict.fromkeys(trend.group for trend in self.trends))
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_code": int(self.exit_code),
            "sentence": self.sentence,
            "false_alarms": self.false_alarms,
            "least_change": self.least_change,
            "by": self.by,
            "records": len(self.folder.observations),
            "tested": self.tested,
            "left_out": [asdict(one) for one in self.folder.left_out],
            "notes": list(self.folder.notes),
            "marks": [{**asdict(mark), "hosts": list(mark.hosts)} for mark in self.marks],
            "groups": [{"group": number, **asdict(group)} for number, group in enumerate(groups)],
            "trends": [
                {
                    "group": groups.index(trend.group),
                    "node": trend.where or None,
                    "metric": trend.metric.name,
                    "unit": trend.metric.unit or None,
                    "better": trend.metric.better,
                    "tested": trend.is_tested,
                    "worse": trend.alarm is not None,
                    "points": [{**asdict(point), "records": list(point.records)} for point in trend.points],
                    "changes": [_finding_document(one, trend.metric) for one in trend.findings],
                }
                for trend in self.trends
            ],
        }


def _finding_document(finding: Finding, metric: Metric) -> dict[str, Any]:
    change = finding.change
    return {
        "record": finding.point.records[0],
        "time_ms": finding.point.time_ms,
        "earliest_ms": finding.earliest_ms,
        "latest_ms": finding.latest_ms,
        "size": change.size,
        "interval": [change.low, change.high],
        "relative": metric.relative,
        "before": change.before,
        "after": change.after,
        "p": change.p,
        "autocorrelation": change.autocorrelation,
        "shape": change.shape,
        "worse": finding.is_worse,
        "counts": finding.counts,
        "present": finding.is_present,
        "marks": [mark.sentence for mark in finding.marks],
    }


def track(
    path: Path,
    *,
    false_alarms: float = FALSE_ALARMS,
    least_change: float = LEAST_CHANGE,
    by: By = "day",
    since_ms: int = 0,
    signers: Path | None = None,
    now_ms: int | None = None,
    tracker: Tracker = silent,
) -> Tracked:
    """Read the folder `path`, and find what changed.

    Args:
        false_alarms: probability of any change found in one look at a folder without changes.
        least_change: smaller changes raise no alarm.
        by: what is one value of a trend. Records of a day share what drifts from day to day.
        since_ms: leave out older records, UNIX time.

    Raises:
        HpcAi500Error: as `read_folder` and `find_changes`.
    """
    folder = read_folder(path, since_ms=since_ms, signers=signers, now_ms=now_ms, tracker=tracker)
    marks = _marks(folder)
    trends = _trends(folder.observations, by)
    series = [Series([point.value for point in trend.points], _is_relative(trend)) for trend in trends]
    found = find_changes(series, false_alarms)
    judged = tuple(
        Trend(trend.group, trend.node, trend.metric, trend.points, _findings(trend, changes, marks, least_change))
        for trend, changes in zip(trends, found, strict=True)
    )
    return Tracked(folder, judged, marks, false_alarms, least_change, by)


def day_of(time_ms: int) -> str:
    """`2026-05-04`, in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")


def _is_relative(trend: Trend) -> bool:
    # VFLOPS are 0 where a run has learned nothing.
    return trend.metric.relative and all(point.value > 0 for point in trend.points)


def _trends(observations: Sequence[Observation], by: By) -> list[Trend]:
    """All trends, the whole run before its nodes, in the order of `METRICS`."""
    values: dict[tuple[Group, str, str], list[tuple[Observation, float]]] = defaultdict(list)
    for one in observations:
        for (node, metric), value in one.values.items():
            values[one.group, node, metric].append((one, value))
    order = {metric.name: place for place, metric in enumerate(METRICS)}
    ordered = sorted(
        values.items(), key=lambda item: (*_key(item[0][0]), item[0][1], order.get(item[0][2], 0), item[0][2])
    )
    return [
        Trend(group, node, metric_of(group, metric), tuple(_points(found, by)))
        for (group, node, metric), found in ordered
    ]


def _key(group: Group) -> tuple[str, ...]:
    return tuple(f"{one:09d}" if isinstance(one, int) else one for one in asdict(group).values())


def _points(found: Sequence[tuple[Observation, float]], by: By) -> Iterator[Point]:
    days: dict[object, list[tuple[Observation, float]]] = defaultdict(list)
    for place, (one, value) in enumerate(found):
        days[day_of(one.time_ms) if by == "day" else place].append((one, value))
    for same in days.values():
        names = tuple(one.name for one, _ in same)
        yield Point(same[0][0].time_ms, statistics.median(value for _, value in same), names)


def _findings(trend: Trend, changes: Sequence[Change], marks: Sequence[Mark], least: float) -> tuple[Finding, ...]:
    return tuple(_finding(trend, changes, place, marks, least) for place in range(len(changes)))


def _finding(trend: Trend, changes: Sequence[Change], place: int, marks: Sequence[Mark], least: float) -> Finding:
    change, points = changes[place], trend.points
    earliest, latest = points[change.earliest - 1].time_ms, points[change.latest].time_ms
    hosts = {trend.where} if trend.where else set()
    # A rank's name ends with its host.
    named = {host for mark in marks for host in mark.hosts if trend.where.endswith(f" on {host}")}
    return Finding(
        change,
        points[change.position],
        earliest,
        latest,
        trend.metric.is_worse(change.size),
        abs(change.size) >= least,
        _is_present(trend, changes, place),
        tuple(
            mark
            for mark in marks
            if earliest < mark.time_ms <= latest and (not trend.where or (hosts | named) & set(mark.hosts))
        ),
    )


def _is_present(trend: Trend, changes: Sequence[Change], place: int) -> bool:
    """Whether the values after the last change are still on that side of those before this one."""
    if place == len(changes) - 1:
        return True
    import numpy as np

    values = np.array([point.value for point in trend.points])
    start = changes[place - 1].position if place else 0
    before: Floats = values[start : changes[place].position]
    last: Floats = values[changes[-1].position :]
    _, low, high = shift(before, last, changes[-1].autocorrelation)
    return high < 0 if changes[place].size < 0 else low > 0


# ----------------------------------------------------------------------------------------------------
# What changed in hardware, firmware and software.


# Fields that hardly matter for speed are left out, except those of a maintenance.
_MAINTENANCE = ("firmware", "microcode", "bios", "version", "driver", "hpcai500")
_MOST_VALUE = 60
# Of a host without a document, such as those that micro names.
_NONE = ""


def _marks(folder: Folder) -> tuple[Mark, ...]:
    """Differences between the documents of each host in the order of time; the same one of several hosts is one."""
    last: dict[str, str] = {}
    found: dict[tuple[int, str, str, str, str], list[str]] = defaultdict(list)
    known: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for one in folder.observations:
        for host, document in one.nodes.items():
            if document == _NONE:
                continue
            before = last.get(host, document)
            if before != document:
                if (before, document) not in known:
                    known[before, document] = list(_differences(folder.documents[before], folder.documents[document]))
                for field, old, new in known[before, document]:
                    found[one.time_ms, one.name, field, old, new].append(host)
            last[host] = document
    return tuple(Mark(*key, tuple(hosts)) for key, hosts in found.items())


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(field, value before, value after) of each difference that may matter."""
    for one in node_differences([{**before, "host": "before"}, {**after, "host": "after"}]):
        if one.matters or any(word in one.field.lower() for word in _MAINTENANCE):
            values = {host: variant.value for variant in one.variants for host in variant.nodes}
            yield one.field, _shown(values.get("before")), _shown(values.get("after"))


def _shown(value: Any) -> str:
    return short(json.dumps(value) if isinstance(value, dict) else listed(value), _MOST_VALUE)


# ----------------------------------------------------------------------------------------------------
# For a terminal.


_MOST_LINES = 40
# Nodes without a change are listed only if they are few.
_FEW_NODES = 8
_HEADER = ("metric", "days", "first", "last", "change", "95 % interval", "p", "since")


def track_lines(tracked: Tracked) -> Iterator[str]:
    """The trends of each group, what changed in the software, what was left out, and the verdict."""
    folder = tracked.folder
    first, last = (day_of(folder.observations[place].time_ms) for place in (0, -1))
    yield f"folder      {folder.path}: {count(len(folder.observations), 'record')}, {first} to {last}"
    yield (
        f"tested      {count(tracked.tested, 'trend')} of {len(tracked.trends)}; false alarms: at most "
        f"{100 * tracked.false_alarms:g} % of looks, if days are independent (docs/track.md)"
    )
    for group in dict.fromkeys(trend.group for trend in tracked.trends):
        trends = [trend for trend in tracked.trends if trend.group == group]
        of_nodes = [trend for trend in trends if trend.node and not trend.findings]
        hidden = of_nodes if len(of_nodes) > _FEW_NODES else []
        yield ""
        header = (*_HEADER[:1], "days" if tracked.by == "day" else "records", *_HEADER[2:])
        rows = [row for trend in trends if trend not in hidden for row in _rows(trend)]
        yield from text_table(group.name, rows, header)
        if hidden:
            yield f"  and {count(len(hidden), 'trend')} of nodes without a change (--json has them)"
    yield from _list("changed", tracked.marks, lambda mark: f"{mark.day}  {mark.sentence}")
    yield from _list("left out", folder.left_out, lambda one: f"{one.name}: {one.reason}")
    yield from _list("doubtful", folder.notes, str)
    yield ""
    yield f"verdict     {tracked.sentence}"
    yield f"HPCAI500 RESULT {tracked.verdict}"


def _rows(trend: Trend) -> Iterator[tuple[str, ...]]:
    metric, points = trend.metric, trend.points
    ends = (str(len(points)), metric.shown(points[0].value), metric.shown(points[-1].value))
    if not trend.findings:
        nothing = "none" if trend.is_tested else "too few"
        yield (trend.name, *ends, nothing, "", "", "")
    for place, one in enumerate(trend.findings):
        change = one.change
        how = " (slowly)" if change.shape == "trend" else ""
        yield (
            *((trend.name, *ends) if not place else ("", "", "", "")),
            f"{metric.size(change.size)} {one.state}",
            metric.interval(change.low, change.high),
            f"{change.p:.1g}",
            f"{day_of(one.point.time_ms)} {one.point.records[0]}{how}",
        )


def _list(title: str, items: Sequence[Any], text: Any) -> Iterator[str]:
    if items:
        yield ""
        yield f"{title}"
        # The newest are the most interesting ones.
        left = len(items) - _MOST_LINES
        if left > 0:
            yield f"  {count(left, 'earlier one')} (--json has them)"
        yield from (f"  {text(one)}" for one in items[-_MOST_LINES:])
