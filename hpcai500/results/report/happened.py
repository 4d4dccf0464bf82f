"""What happened when: the run along its clock, and its events in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.chain import Event
from hpcai500.results.report.blocks import Block, Cell, Chart, Charts, Fold, Key, Row, Section, Table, Text, Tone
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.scales import Axis
from hpcai500.results.report.strip import Happening, Stretch, strip
from hpcai500.results.report.words import count, duration, listed, moment, number, plain, short

_MOST_ROWS = 150
# What is told of each kind of event; others are shown with their values as they are.
_QUIET = {"epoch_start", "eval_start", "eval_stop", "system"}
_SIGNS = {
    "run_start": "▶",
    "run_resume": "↻",
    "run_stop": "■",
    "run_error": "✗",
    "diverged": "✗",
    "not_finite": "✗",
    "interrupted": "‖",
}
_BAD = {"run_error", "diverged", "not_finite", "interrupted", "picture_error"}


def event_section(subject: Subject) -> Section:
    """The strip, and a table of the events that tell something."""
    events = subject.record.events
    if not events:
        return Section("Events", [Text("The record has no events.", "flag")])
    elapsed = _elapsed(subject)
    blocks: list[Block] = [Text(_sentence(subject))]
    if elapsed and max(elapsed.values()) > 0:
        blocks.append(Charts([_chart(subject, elapsed)]))
    told = [event for event in events if event["key"] not in _QUIET]
    rows = [_row(event, elapsed) for event in told]
    half = _MOST_ROWS // 2
    shown = rows if len(rows) <= _MOST_ROWS else [*rows[:half], *rows[-half:]]
    table = Table(
        "Events; the clock is that of the run" + ("" if len(shown) == len(rows) else ", those in the middle left out"),
        ("at", "event", "what it says"),
        shown,
        numeric=[0],
        left_out=len(rows) - len(shown),
    )
    blocks.append(Fold(f"Events, {len(rows):,} of {len(events):,} that tell something", [table]))
    return Section("Events", blocks)


def _sentence(subject: Subject) -> str:
    events, result = subject.record.events, subject.result
    said = f"From {moment(events[0].get('time_ms'))} to {moment(events[-1].get('time_ms'))}, {len(events):,} events."
    restarts = sum(event["key"] == "run_resume" for event in events)
    if restarts:
        down = f", {duration(result.downtime_seconds)} down, which counts as run time" if result else ""
        said += f" {count(restarts, 'restart')}{down}."
    warnings = sum(number(value.get("warnings")) or 0 for value in subject.values("epoch_stop"))
    said += f" {count(warnings, 'warning')} while training." if warnings else " No warnings."
    if subject.record.torn_bytes:
        said += f" The last line was cut off by a crash ({count(subject.record.torn_bytes, 'byte')})."
    return said


def _elapsed(subject: Subject) -> dict[int, float]:
    """Event -> seconds since the run's start, or since the first event where it never started; {} without a clock."""
    events = subject.record.events
    try:
        clock = subject.clock()
    except (TypeError, KeyError):
        return {}
    start = next((event for event in events if event["key"] == "run_start"), events[0])
    return {event["seq"]: clock.between(start, event) for event in events}


def _chart(subject: Subject, elapsed: Mapping[int, float]) -> Chart:
    events = subject.record.events
    stretches = list(_stretches(events, elapsed))
    marks = [Happening(elapsed[event["seq"]], _SIGNS[event["key"]]) for event in events if event["key"] in _SIGNS]
    axis = Axis("seconds since the run's start", min(elapsed.values()), max(elapsed.values()))
    said = f"{count(len(stretches), 'stretch', 'stretches')} of training and evaluation in {duration(axis.high)}."
    drawing = strip("The run along its clock", said, axis, stretches, marks)
    note = "▶ start  ↻ restart  ‖ interruption  ✗ error  ■ stop"
    return Chart("The run along its clock", drawing, note, [Key("training", 1), Key("evaluation", 2)])


def _stretches(events: tuple[Event, ...], elapsed: Mapping[int, float]) -> Iterator[Stretch]:
    opened: dict[str, float] = {}
    for event in events:
        kind, _, end = event["key"].rpartition("_")
        if kind not in ("epoch", "eval"):
            continue
        if end == "start":
            opened[kind] = elapsed[event["seq"]]
        elif end == "stop" and kind in opened:
            yield Stretch(opened.pop(kind), elapsed[event["seq"]], 1 if kind == "epoch" else 2)


def _row(event: Event, elapsed: Mapping[int, float]) -> Row:
    value = event.get("value")
    said = _said(event["key"], value if isinstance(value, dict) else {"value": value})
    tone: Tone = "bad" if event["key"] in _BAD else ""
    when = duration(elapsed[event["seq"]]) if event["seq"] in elapsed else ""
    return when, Cell(short(event["key"], 60), tone), Cell(said, tone)


def _said(key: str, value: Mapping[str, Any]) -> str:
    if key == "epoch_stop":
        warnings = number(value.get("warnings"))
        return (
            f"epoch {listed(value.get('epoch'))}: loss {plain(value.get('loss'))}, "
            f"{count(value.get('steps'), 'step')} in {duration(value.get('seconds'))}"
            + (f", {count(warnings, 'warning')}" if warnings else "")
        )
    if key == "eval_accuracy":
        return f"epoch {listed(value.get('epoch'))}: {listed(value.get('metric'))} {plain(value.get('value'), '.4f')}"
    simple = {name: inner for name, inner in value.items() if not isinstance(inner, dict | list)}
    left = len(value) - len(simple)
    more = f" (and {count(left, 'table')}, shown above)" if left else ""
    return short("; ".join(f"{short(name, 40)} {listed(inner)}" for name, inner in simple.items()), 400) + more
