"""What `hpcai500 track` writes: a page, metrics that Prometheus's own tool accepts, and a dashboard that uses them."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Typed, error_of
from builders.months import FIRST_S, HOSTS, WEEK_SECONDS, nodes_of, update_of, write_micro, write_months
from builders.needs import needs_promtool

from hpcai500.record import Event
from hpcai500.results.track.outputs import FAMILIES, grafana_dashboard, openmetrics_text, track_page
from hpcai500.results.track.trends import Tracked, track

ROOT = Path(__file__).resolve().parents[2]
NOW_S = 1_760_000_000.0
HOSTILE = '<script>alert(1)</script>"\'\\\n{x="y"} 7'


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    """Runs of two sizes and files of micro over half a year; node-3 gets slower after an update of its kernel."""
    folder = tmp_path_factory.mktemp("records")
    slow = {"node-3": (15, 0.06)}
    write_months(folder / "large", 25, slow=slow, change=update_of("kernel", "5.14.0-570", 15, ("node-3",)))
    write_months(folder / "one", 9, hosts=["node-1"], start_s=FIRST_S + 3600)
    for week in range(3):
        rates = dict.fromkeys(HOSTS, 5e14)
        write_micro(folder / f"micro-{week}.json", round(1000 * (FIRST_S + week * WEEK_SECONDS)), rates)
    return track(folder)


@pytest.fixture(scope="module")
def text(tracked: Tracked) -> str:
    return openmetrics_text(tracked, NOW_S)


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each sample, by the grammar of OpenMetrics 1.0."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        found = re.fullmatch(r'([a-z0-9_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)', line)
        assert found, line
        labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
        yield found[1], labels, float(found[3])


# --- OpenMetrics.


@needs_promtool
def test_prometheus_accepts_the_metrics(text: str) -> None:
    ended = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@needs_promtool
def test_prometheus_reads_it_as_openmetrics(text: str, tmp_path: Path) -> None:
    """The parser of `tsdb create-blocks-from openmetrics` is strict, also about the end; it wants times, too."""
    timed = re.sub(r"^([^#\n]+)$", rf"\1 {NOW_S:.0f}", text, flags=re.MULTILINE)
    for content, is_valid in ((timed, True), (timed.removesuffix("# EOF\n"), False)):
        (tmp_path / "metrics").write_text(content)
        command: list[str | Path] = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
        command += [tmp_path / "metrics", tmp_path / "blocks"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ended.returncode == 0) is is_valid, ended.stderr
    assert list((tmp_path / "blocks").iterdir())


def test_each_family_is_described_once_and_ends_with_its_unit(text: str) -> None:
    assert text.endswith("\n# EOF\n")
    described = re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE)
    assert described == [family.name for family in FAMILIES if family.name in described]
    units = dict(re.findall(r"^# UNIT (\S+) (\S+)$", text, re.MULTILINE))
    assert all(name.startswith("hpcai500_") for name in described)
    assert all(name.endswith(f"_{unit}") for name, unit in units.items())
    # All samples of a family are together, and none occurs twice.
    names = [name for name, _, _ in samples(text)]
    assert list(dict.fromkeys(names)) == described
    assert len({(name, *sorted(labels.items())) for name, labels, _ in samples(text)}) == len(names)


def test_the_newest_values_and_what_got_worse_are_there(text: str, tracked: Tracked) -> None:
    found = list(samples(text))
    ((labels, ratio),) = [
        (labels, value) for name, labels, value in found
        if name == "hpcai500_step_ratio" and labels["host"] == "node-3"
    ]  # fmt: skip
    assert (labels["benchmark"], labels["ranks"], labels["nodes"]) == ("ic", "32", "4")
    assert ratio == pytest.approx(1.06, abs=0.02)
    worse = {labels.get("host"): value for name, labels, value in found
             if name == "hpcai500_worse" and labels["metric"] == "step_ratio" and labels["nodes"] == "4"}  # fmt: skip
    assert worse == {"node-1": 0.0, "node-2": 0.0, "node-3": 1.0, "node-4": 0.0}
    (size,) = (value for name, labels, value in found if name == "hpcai500_worse_change_ratio" and "host" in labels)
    assert size == pytest.approx(0.06, abs=0.01)
    since = {value for name, _, value in found if name == "hpcai500_worse_since_seconds"}
    assert since == {FIRST_S + 15 * WEEK_SECONDS}
    micro = [labels for name, labels, _ in found if name == "hpcai500_micro_flops"]
    assert {one.get("host") for one in micro} == {None, *HOSTS}
    assert {one["measurement"] for one in micro} == {"gemm bf16"}
    assert ("hpcai500_track_look_seconds", {}, NOW_S) in found
    (changed,) = (labels for name, labels, _ in found if name == "hpcai500_changed_seconds")
    assert (changed["host"], changed["field"], changed["after"]) == ("node-3", "kernel", "5.14.0-570")
    # One rank of a run on one node.
    assert any(labels.get("rank") == "7" and labels["host"] == "node-1" for _, labels, _ in found)
    assert tracked.exit_code == 5


@needs_promtool
def test_names_of_strangers_cannot_break_the_metrics_or_the_page(tmp_path: Path) -> None:
    def change(run: int, events: list[Event]) -> None:
        for node in nodes_of(events):
            node["kernel"] = f"{HOSTILE} {run}"
            node["cpu"] = {"Model name": HOSTILE}

    write_months(tmp_path, 2, change=change)
    tracked = track(tmp_path)
    assert len(tracked.marks) == 1
    text = openmetrics_text(tracked, NOW_S)
    assert len(list(samples(text))) > 10
    ended = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "<script>" not in track_page(tracked)


# --- Grafana.


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return grafana_dashboard()


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    """All queries, as Grafana sends them if all of each variable is chosen."""
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for query in [*queries, *(one["expr"] for one in dashboard["annotations"]["list"])]:
        yield re.sub(r"\$(benchmark|recipe|host)\b", ".*", query)


@needs_promtool
def test_prometheus_accepts_the_queries_of_the_dashboard(dashboard: dict[str, Any], tmp_path: Path) -> None:
    rules = [{"record": f"query:{place}", "expr": one} for place, one in enumerate(expressions(dashboard))]
    assert len(rules) > 10
    # JSON is YAML, too.
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    ended = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"{len(rules)} rules found" in ended.stdout


@needs_promtool
def test_prometheus_accepts_the_alerts_of_the_documentation(text: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "track.md").read_text()
    (rules,) = re.findall(r"^    groups:\n(?:    .*\n)+", page, re.MULTILINE)
    (tmp_path / "alerts.yml").write_text(textwrap.dedent(rules))
    command: list[str | Path] = ["promtool", "check", "rules", tmp_path / "alerts.yml"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "2 rules found" in ended.stdout
    assert set(re.findall(r"hpcai500_\w+", rules)) <= {name for name, _, _ in samples(text)}


def test_each_family_is_documented() -> None:
    page = (ROOT / "docs" / "track.md").read_text()
    for family in FAMILIES:
        short = family.name.removeprefix("hpcai500")
        assert (
            family.name in page
            or f"`{short}`" in page
            or f"`{short.removeprefix('_track')}`" in page
            or ("`_micro_…`" in page and short.startswith("_micro_"))
        ), family.name


def test_the_dashboard_uses_the_names_of_the_metrics_and_no_other(dashboard: dict[str, Any], text: str) -> None:
    used = {name for query in expressions(dashboard) for name in re.findall(r"hpcai500_\w+", query)}
    assert used <= {family.name for family in FAMILIES}
    measured = {name for name, _, _ in samples(text) if not name.startswith("hpcai500_track")}
    assert measured - {"hpcai500_worse_since_seconds"} <= used
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    queries = json.dumps([panel["targets"] for panel in dashboard["panels"]])
    assert set(re.findall(r"\$\{?(\w+)", queries)) <= variables
    labels = {label for _, labels, _ in samples(text) for label in labels}
    assert set(re.findall(r"\{\{(\w+)\}\}", queries)) <= labels


def test_the_dashboard_has_the_fields_that_grafana_documents(dashboard: dict[str, Any]) -> None:
    """https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/"""
    assert dashboard.keys() >= {
        "title", "uid", "tags", "timezone", "editable", "time", "templating", "annotations", "refresh",
        "schemaVersion", "version", "panels",
    }  # fmt: skip
    assert isinstance(dashboard["schemaVersion"], int)
    # Null, so that Grafana gives it one of its own.
    assert dashboard.get("id") is None
    assert dashboard["time"].keys() == {"from", "to"}
    assert len(dashboard["uid"]) <= 40
    panels = dashboard["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    assert {panel["type"] for panel in panels} == {"stat", "bargauge", "timeseries"}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["w"] > 0
        assert place["x"] + place["w"] <= 24
        assert {"title", "type", "datasource", "targets", "fieldConfig", "options"} <= panel.keys()
        assert [target["refId"] for target in panel["targets"]] == ["A"]
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    for variable in dashboard["templating"]["list"]:
        assert {"name", "type", "query"} <= variable.keys()


# --- The page, and the command.


def test_the_page_has_a_chart_of_each_trend_and_loads_nothing(tracked: Tracked) -> None:
    html = track_page(tracked)
    assert "✗ GOT WORSE" in html
    assert html.count("<svg") == len(tracked.trends)
    assert not re.search(r"<script|<link|src=\"http|@import", html)
    assert "kernel: 5.14.0-503.el9.x86_64 -&gt; 5.14.0-570 on node-3" in html
    assert "too few to be tested, which takes 8" in html


def test_the_page_of_a_machine_without_a_change_says_so(tmp_path: Path) -> None:
    write_months(tmp_path, 9, seed=3)
    html = track_page(track(tmp_path))
    assert "✓ NOTHING GOT WORSE" in html
    write_months(tmp_path / "b", 1, hosts=["node-1"])
    assert "! TOO EARLY TO TELL" in track_page(track(tmp_path, since_ms=round(1000 * (FIRST_S + 6 * WEEK_SECONDS))))


def test_the_command_writes_all_files_whole(typed: Typed, tmp_path: Path) -> None:
    write_months(tmp_path / "runs", 1)
    (tmp_path / "trends.prom").write_text("old")
    files = ("-o", "trends.html", "--openmetrics", "trends.prom", "--grafana", "trends.json")
    ended = typed("track", "runs", *files)
    assert ended.returncode == 0
    assert (tmp_path / "trends.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "trends.prom").read_text().endswith("# EOF\n")
    assert json.loads((tmp_path / "trends.json").read_text()) == grafana_dashboard()
    # Nothing is left beside them, which node_exporter would read.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "trends.html", "trends.json", "trends.prom"]
    assert "give another --openmetrics FILE" in error_of(typed("track", "runs", "--openmetrics", "none/trends.prom"))
