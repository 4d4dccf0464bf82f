"""Sections of a record's page: training, events, pictures, numbers, recipe, hashes and the nodes of the run."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.errors import HpcAi500Error
from hpcai500.methodology.goodput import Goodput, goodput
from hpcai500.methodology.nodes import NodeDifference, node_differences
from hpcai500.methodology.passes import Better, better_of, goal, reaches
from hpcai500.methodology.result import Result
from hpcai500.plugins import known_benchmarks
from hpcai500.recipe import every_field, reference_recipe, table_differences, tables_hash
from hpcai500.record import Event, line_hash
from hpcai500.results.report.blocks import (
    Block,
    Cell,
    Chart,
    Charts,
    Fold,
    Key,
    Picture,
    Row,
    Section,
    Table,
    Text,
    Tone,
)
from hpcai500.results.report.drawing import Axis, Bar, Level, Line, Moment, Plot, Stretch, bars, spanning, strip
from hpcai500.results.report.reading import Subject
from hpcai500.system.tables import (
    link_rows,
    network_rows,
    operating_system_rows,
    processor_rows,
    software_rows,
    system_rows,
)
from hpcai500.text import (
    UNKNOWN,
    count,
    duration,
    is_number,
    listed,
    moment,
    number,
    plain,
    quantity,
    share,
    short,
    table,
    tables,
)

# ----------------------------------------------------------------------------------------------------
# Quality and loss by epoch.


_MOST_EPOCHS = 120
_MOST_CLASSES = 40


def training_section(subject: Subject) -> Section:
    """Curves with the target, the classes of the last evaluation, and a table of all numbers."""
    epochs, evaluations = _last_pass(subject, "epoch_stop"), _last_pass(subject, "eval_accuracy")
    if not epochs and not evaluations:
        return Section("Quality and loss", [Text("No epoch was trained to its end.", "soft")])
    problem = table(subject.record.tables.get("problem"))
    metric, target = short(problem.get("metric", "quality"), 30), number(problem.get("target_quality"))
    better = better_of(problem)
    charts = [_quality_chart(metric, target, better, evaluations), _loss_chart(better, epochs)]
    blocks: list[Block] = [Charts([chart for chart in charts if chart])]
    last = evaluations[max(evaluations)] if evaluations else {}
    if classes := table(last.get("per_class")):
        blocks.append(_class_table(metric, better, classes))
    blocks.append(Fold("Each epoch in numbers", [_epoch_table(metric, target, better, epochs, evaluations)]))
    return Section("Quality and loss", blocks)


def _quality_chart(
    metric: str, target: float | None, better: Better, evaluations: Mapping[int, Mapping[str, Any]]
) -> Chart | None:
    points = _points(evaluations, "value")
    if not points:
        return None
    values = [quality for _, quality in points] + ([target] if target is not None else [])
    if better == "lower":
        axis = spanning(metric, values, zero=False)
    else:
        axis = Axis(metric, 0.0, 1.0) if max(values) > 0.5 else spanning(metric, [max(values) * 1.05])
    text = f"{metric} is {points[-1][1]:.4f} after epoch {points[-1][0]:g}" + (
        "." if target is None else f"; the target is {goal(target, better)}."
    )
    drawing = Plot(
        f"Quality ({metric}) by epoch",
        text,
        _epoch_axis(points),
        axis,
        lines=[Line(points, 1, marked=True)],
        levels=[Level(target, f"target {goal(target, better)}")] if target is not None else [],
    ).draw()
    return Chart("Quality", drawing, text, [Key(metric, 1, "line")])


def _loss_chart(better: Better, epochs: Mapping[int, Mapping[str, Any]]) -> Chart | None:
    points = _points(epochs, "loss")
    if not points:
        return None
    losses = [loss for _, loss in points]
    text = f"The mean training loss is {losses[-1]:.4g} in epoch {points[-1][0]:g}, from {losses[0]:.4g}."
    # As the quality beside it, if that is a loss too.
    axis = spanning("loss", losses, zero=better == "higher")
    drawing = Plot("Training loss by epoch", text, _epoch_axis(points), axis, [Line(points, 4, marked=True)]).draw()
    return Chart("Loss", drawing, text, [Key("mean loss of the training steps", 4, "line")])


def curves_section(sides: Sequence[tuple[str, Subject]]) -> Section | None:
    """Quality and loss by epoch of several runs, (name, run), in one chart each; None if there are none."""
    problem = table(sides[0][1].record.tables.get("problem"))
    metric, better = short(problem.get("metric", "quality"), 30), better_of(problem)
    charts = [
        _overlaid(title, axis, better, [(name, _points(_last_pass(subject, event), key)) for name, subject in sides])
        for title, axis, event, key in (
            ("Quality", metric, "eval_accuracy", "value"),
            ("Loss", "loss", "epoch_stop", "loss"),
        )
    ]
    drawn = [chart for chart in charts if chart]
    return Section("Quality and loss", [Charts(drawn)]) if drawn else None


def _overlaid(
    title: str, axis: str, better: Better, curves: Sequence[tuple[str, list[tuple[float, float]]]]
) -> Chart | None:
    known = [(colour, name, points) for colour, (name, points) in enumerate(curves, 1) if points]
    if not known:
        return None
    together = [point for _, _, points in known for point in points]
    text = "; ".join(f"{name} ends at {points[-1][1]:.4g} after epoch {points[-1][0]:g}" for _, name, points in known)
    drawing = Plot(
        f"{title} by epoch",
        f"{text}.",
        _epoch_axis(together),
        spanning(axis, [value for _, value in together], zero=better == "higher"),
        [Line(points, colour, marked=True) for colour, _, points in known],
    ).draw()
    return Chart(title, drawing, f"{text}.", [Key(name, colour, "line") for colour, name, _ in known])


def _class_table(metric: str, better: Better, classes: Mapping[str, Any]) -> Table:
    sign = -1 if better == "lower" else 1
    ordered = sorted(classes.items(), key=lambda item: (number(item[1]) is None, sign * (number(item[1]) or 0.0)))
    rows = [
        (short(name, 60), plain(value, ".4f") if value is not None else "does not occur") for name, value in ordered
    ]
    return Table(
        f"{metric} of each class in the last evaluation, the worst first",
        ("class", metric),
        rows[:_MOST_CLASSES],
        numeric=[1],
        left_out=max(0, len(rows) - _MOST_CLASSES),
    )


def _epoch_table(
    metric: str,
    target: float | None,
    better: Better,
    epochs: Mapping[int, Mapping[str, Any]],
    evaluations: Mapping[int, Mapping[str, Any]],
) -> Table:
    numbers = sorted({*epochs, *evaluations})
    shown = numbers if len(numbers) <= _MOST_EPOCHS else numbers[-_MOST_EPOCHS:]
    rows: list[Row] = []
    for epoch in shown:
        trained, evaluated = epochs.get(epoch, {}), evaluations.get(epoch, {})
        quality = number(evaluated.get("value"))
        reached = quality is not None and target is not None and reaches(quality, target, better)
        rows.append(
            (
                str(epoch),
                plain(trained.get("loss")),
                Cell(f"{plain(quality, '.4f')}{' ✓' if reached else ''}", "good" if reached else ""),
                duration(trained.get("seconds")),
                duration(evaluated.get("seconds")),
                duration(trained.get("data_wait_seconds")),
                plain(trained.get("warnings"), ".0f"),
            )
        )
    return Table(
        "Each epoch; ✓: the target quality is reached",
        ("epoch", "loss", metric, "training", "evaluation", "data wait", "warnings"),
        rows,
        numeric=range(7),
        left_out=len(numbers) - len(shown),
    )


def _epoch_axis(points: list[tuple[float, float]]) -> Axis:
    last = max(epoch for epoch, _ in points)
    few = last <= 12
    return Axis("epoch", 0, last, ticks=range(int(last) + 1) if few else None)


def _points(by_epoch: Mapping[int, Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    found = ((epoch, number(value.get(key))) for epoch, value in sorted(by_epoch.items()))
    return [(float(epoch), value) for epoch, value in found if value is not None]


def _last_pass(subject: Subject, key: str) -> dict[int, Mapping[str, Any]]:
    """Epoch -> value; if a restart repeated an epoch, the later value."""
    kept: dict[int, Mapping[str, Any]] = {}
    for event in subject.record.events:
        value = table(event.get("value"))
        epoch = value.get("epoch")
        if not isinstance(epoch, int) or not 0 < epoch < 10**7:
            continue
        if event["key"] == "run_resume":
            kept = {number: old for number, old in kept.items() if number < epoch}
        elif event["key"] == key:
            kept[epoch] = value
    return kept


# ----------------------------------------------------------------------------------------------------
# The timeline of the run, and a table of its events.


_MOST_EVENTS = 150
# Events that the table leaves out, and the sign of each kind of event in the timeline.
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


# The parts of the wall-clock time, by what they are for.
_GOODPUT = {
    "steps that count": ("steps",),
    "waits within steps": ("input", "communication"),
    "evaluation, checkpoint": ("evaluation", "checkpoint"),
    "start-up": ("startup",),
    "lost, down, in a queue, suspended": ("lost", "downtime", "queue", "suspended"),
    "unknown": ("unknown",),
}


def goodput_section(subject: Subject) -> Section | None:
    """Where the wall-clock time of the run went, restarts included; None for a record without such times."""
    events = subject.record.events
    found = subject.result.goodput if subject.result else goodput(events)
    if found is None or not found.wall_seconds:
        return None
    parts = {name: seconds for name, seconds in found.seconds.model_dump().items() if seconds}
    groups = [
        (name, colour, sum(parts.get(part, 0.0) for part in group))
        for colour, (name, group) in enumerate(_GOODPUT.items(), 1)
    ]
    shares = {name: 100 * seconds / found.wall_seconds for name, seconds in parts.items()}
    colours = {part: colour for colour, group in enumerate(_GOODPUT.values(), 1) for part in group}
    rows = [Bar("all", [100 * seconds / found.wall_seconds for _, _, seconds in groups])]
    rows += [Bar(name, [part], [colours[name]], duration(parts[name])) for name, part in shares.items()]
    text = f"{share(found.fraction)} of {duration(found.wall_seconds)} of wall-clock time were steps that count."
    drawn = bars("Parts of the wall-clock time", text, Axis("share of wall-clock time, %", 0, 100), rows)
    blocks: list[Block] = [
        Text(" ".join([text, *_interruptions(found)])),
        Chart(
            "Parts of the wall-clock time",
            drawn,
            "from the first start of the run to its end, restarts included",
            [Key(name, colour) for name, colour, seconds in groups if seconds],
        ),
    ]
    return Section("Goodput", blocks)


def _interruptions(found: Goodput) -> Iterator[str]:
    if found.interruptions:
        between, recovery = found.mean_between_interruptions_seconds, found.recovery_seconds
        yield f"{count(found.interruptions, 'interruption')}, {duration(between)} of running for each."
        if recovery is not None:
            yield f"It took {duration(recovery)} from an interruption to the next training step."
    if found.checkpoint_seconds is not None:
        yield f"{count(found.checkpoints, 'checkpoint')}, {found.checkpoint_seconds:.2f} s each."


def event_section(subject: Subject) -> Section:
    """The timeline of the run, and a table of its events."""
    events = subject.record.events
    if not events:
        return Section("Events", [Text("The record has no events.", "flag")])
    elapsed = _elapsed(subject)
    blocks: list[Block] = [Text(_event_sentence(subject))]
    if elapsed and max(elapsed.values()) > 0:
        blocks.append(_clock_chart(subject, elapsed))
    rows = [_event_row(event, elapsed) for event in events if event["key"] not in _QUIET]
    half = _MOST_EVENTS // 2
    shown = rows if len(rows) <= _MOST_EVENTS else [*rows[:half], *rows[-half:]]
    table = Table(
        "Events; times since the start of the run" + ("" if len(shown) == len(rows) else "; the middle is left out"),
        ("at", "event", "details"),
        shown,
        numeric=[0],
        left_out=len(rows) - len(shown),
    )
    blocks.append(Fold(f"Events: {len(rows):,} of {len(events):,}, without starts and ends of parts", [table]))
    return Section("Events", blocks)


def _event_sentence(subject: Subject) -> str:
    events, result = subject.record.events, subject.result
    text = f"From {moment(events[0].get('time_ms'))} to {moment(events[-1].get('time_ms'))}, {len(events):,} events."
    restarts = sum(event["key"] == "run_resume" for event in events)
    if restarts:
        down = f", {duration(result.downtime_seconds)} down, which counts as run time" if result else ""
        text += f" {count(restarts, 'restart')}{down}."
    warnings = sum(number(value.get("warnings")) or 0 for value in subject.values("epoch_stop"))
    text += f" {count(warnings, 'warning')} while training." if warnings else " No warnings."
    if subject.record.torn_bytes:
        text += f" The last line was cut off by a crash ({count(subject.record.torn_bytes, 'byte')})."
    return text


def _elapsed(subject: Subject) -> dict[int, float]:
    """Event -> seconds since the run's start, or since the first event if it never started; {} without a clock."""
    events = subject.record.events
    try:
        clock = subject.clock()
    except (TypeError, KeyError):
        return {}
    start = next((event for event in events if event["key"] == "run_start"), events[0])
    return {event["seq"]: clock.between(start, event) for event in events}


def _clock_chart(subject: Subject, elapsed: Mapping[int, float]) -> Chart:
    events = subject.record.events
    stretches = list(_stretches(events, elapsed))
    marks = [Moment(elapsed[event["seq"]], _SIGNS[event["key"]]) for event in events if event["key"] in _SIGNS]
    axis = Axis("seconds since the run's start", min(elapsed.values()), max(elapsed.values()))
    text = f"{count(len(stretches), 'stretch', 'stretches')} of training and evaluation in {duration(axis.high)}."
    drawing = strip("Timeline of the run", text, axis, stretches, marks)
    note = "▶ start  ↻ restart  ‖ interruption  ✗ error  ■ stop"
    return Chart("Timeline of the run", drawing, note, [Key("training", 1), Key("evaluation", 2)])


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


def _event_row(event: Event, elapsed: Mapping[int, float]) -> Row:
    value = event.get("value")
    text = _event_text(event["key"], value if isinstance(value, dict) else {"value": value})
    tone: Tone = "bad" if event["key"] in _BAD else ""
    when = duration(elapsed[event["seq"]]) if event["seq"] in elapsed else ""
    return when, Cell(short(event["key"], 60), tone), Cell(text, tone)


def _event_text(key: str, value: Mapping[str, Any]) -> str:
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


# ----------------------------------------------------------------------------------------------------
# Pictures of the last evaluation, reduced so that they can be embedded in the page.


_MOST_PICTURES, _MOST_BYTES = 2, 32 * 2**20
# Decoded, 120 MB: a file of a few kB can claim far more.
_MOST_PIXELS = 40_000_000
_WIDEST, _QUALITY = 1200, 82


def picture_section(subject: Subject) -> Section | None:
    """The pictures that the events name; None if there are none. Changed pictures are not shown."""
    blocks = list(_pictures(subject))
    return Section("Pictures", blocks) if blocks else None


def _pictures(subject: Subject) -> Iterator[Block]:
    named = {str(value["file"]): value.get("sha256") for value in subject.values("picture") if value.get("file")}
    for name, content_hash in list(named.items())[-_MOST_PICTURES:]:
        content = _picture_file(subject.path, name)
        if content is None:
            yield Text(f"{short(name, 120)}: not in the record.", "soft")
        elif hashlib.sha256(content).hexdigest() != content_hash:
            text = "this picture was changed after the run: its hash is not the one in the events"
            yield Text(f"{short(name, 120)}: {text}.", "bad")
        else:
            yield _picture(name, content)


def _picture_file(record: Path, name: str) -> bytes | None:
    """The file `name` of the record; None if it is missing, outside of the record, or too large for a page."""
    path = record / name
    try:
        inside = path.resolve().is_relative_to(record.resolve())
        if not inside or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_bytes()
    except (OSError, ValueError, RuntimeError):
        # Such as a name of 300 characters or with a null byte, or a loop of links.
        return None


def _picture(name: str, content: bytes) -> Block:
    try:
        small = _small(content)
    except Exception as error:  # noqa: BLE001 - Pillow raises a dozen types for damaged files, SyntaxError among them
        return Text(f"{short(name, 120)}: cannot be shown: {short(str(error) or type(error).__name__, 200)}.", "soft")
    source = f"data:image/webp;base64,{base64.b64encode(small).decode()}"
    return Picture(source, f"{short(name, 120)}, made by the run itself")


def _small(content: bytes) -> bytes:
    """The picture as WebP, no wider than a page.

    Raises:
        ValueError: it has too many pixels, and is not decoded.
        Exception: as Pillow, which raises many types for damaged files.
    """
    from PIL import Image  # only pages with a picture need it

    with warnings.catch_warnings():
        # Pillow warns about sizes that are refused below.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP")) as opened:
            width, height = opened.size
            if width * height > _MOST_PIXELS:
                raise ValueError(f"{width} x {height} pixels, and a page shows at most {_MOST_PIXELS:,}")
            picture = opened.convert("RGB")
    picture.thumbnail((_WIDEST, 8 * _WIDEST))
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=_QUALITY)
    return stream.getvalue()


# ----------------------------------------------------------------------------------------------------
# All numbers of a result, unscaled, by their names in `result.json`.


_MOST_ITEMS = 20


def number_section(result: Result) -> Section:
    rows = [(short(name, 80), value) for name, value in _flat_numbers(result.as_json(), "")]
    table = Table("result.json: seconds, bytes, FLOPS, watts and joules, never scaled", ("key", "value"), rows)
    harness = "`hpcai500 score` prints the main ones in lines HPCAI500 FOM name=value unit (FOM: figure of merit)."
    return Section("All numbers", [Fold(f"{len(rows)} values of result.json", [Text(harness), table], printed=False)])


def _flat_numbers(document: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in document.items():
        if key == "reasons":
            continue
        if isinstance(value, dict):
            yield from _flat_numbers(value, f"{above}{key}.")
        elif isinstance(value, list):
            more = f", and {len(value) - _MOST_ITEMS} more" if len(value) > _MOST_ITEMS else ""
            yield f"{above}{key}", short(", ".join(map(str, value[:_MOST_ITEMS])) or "none") + more
        else:
            yield f"{above}{key}", UNKNOWN if value is None else short(value)


# ----------------------------------------------------------------------------------------------------
# The recipe by the papers' nine layers: differences from the reference, then all fields.


_MOST_RECIPE_ROWS, _MOST_LETTERS = 300, 100


def recipe_section(subject: Subject) -> Section:
    """Differences from the reference recipe of its benchmark, and every field."""
    tables = subject.record.tables
    benchmark = str(tables.get("benchmark"))
    reference = _reference(benchmark)
    blocks: list[Block] = []
    if reference is None:
        blocks.append(Text(f"This installation has no reference recipe of {short(benchmark, 60)}.", "flag"))
    else:
        blocks += _differences(tables, reference, benchmark)
    fields = every_field(tables)
    rows = [(str(field.layer), field.name, listed(field.value)) for field in fields[:_MOST_RECIPE_ROWS]]
    table = Table(
        "The resolved recipe", ("layer", "field", "value"), rows, [0], max(0, len(fields) - _MOST_RECIPE_ROWS)
    )
    blocks.append(Fold(f"The whole recipe, {len(fields)} fields", [table]))
    return Section("Recipe", blocks)


def _differences(tables: Mapping[str, Any], reference: Mapping[str, Any], benchmark: str) -> list[Block]:
    found = table_differences(tables, reference)
    name = f"the reference of {benchmark}"
    if not found:
        return [Text(f"Every field has the value of {name}.", "good")]
    rows = [
        (
            Cell(f"{one.layer}{' !' if one.layer == 9 else ''}", "bad" if one.layer == 9 else ""),
            one.field,
            short(listed(one.reference), _MOST_LETTERS),
            short(listed(one.value), _MOST_LETTERS),
        )
        for one in found[:_MOST_RECIPE_ROWS]
    ]
    text = f"{count(len(found), 'field')} differ{'s' if len(found) == 1 else ''} from {name}."
    if any(one.layer == 9 for one in found):
        text += " Layer 9 (marked !) is the problem itself: a run with differences there is not rankable."
    caption = "Fields that differ, from layer 9 (problem) down to layer 1 (hardware)"
    return [
        Text(text),
        Table(caption, ("layer", "field", "reference", "this run"), rows, [0], max(0, len(found) - _MOST_RECIPE_ROWS)),
    ]


def _reference(benchmark: str) -> Mapping[str, Any] | None:
    if benchmark not in known_benchmarks():
        return None
    try:
        return reference_recipe(benchmark).model_dump(mode="json")
    except HpcAi500Error:
        # The folder of recipes of a site, or a plug-in, may be older than this version: the page has no reference then.
        return None


# ----------------------------------------------------------------------------------------------------
# The hashes that identify a record, its code and its data.


_MOST_FILES = 30


def hash_section(subject: Subject) -> Section:
    """Hashes of recipe, events, image, code, data and files."""
    rows = [(what, short(value, 200)) for what, value in _hashes(subject)]
    return Section(
        "Hashes",
        [
            Text(
                "Each event carries the hash of the one before it; the chain, the recipe and the system of this record "
                "were checked when this page was made. The last event's hash covers all of them."
            ),
            Table("SHA-256 unless another kind is named", ("of", "hash"), rows),
        ],
    )


def _hashes(subject: Subject) -> Iterator[tuple[str, str]]:
    record = subject.record
    yield "recipe", tables_hash(record.tables)
    yield "last event", last_event_hash(subject)
    installation = table(record.system.get("installation"))
    image, package = table(installation.get("image")), table(installation.get("package"))
    yield "image", listed(image.get("content_sha256")) if image else "none: run without an image"
    yield "code", listed(package.get("code_sha256"))
    yield "compiled core", listed(package.get("core_sha256"))
    for plugin in tables(installation.get("plugins"))[:10]:
        yield f"plug-in {short(plugin.get('package'), 40)}", listed(plugin.get("code_sha256"))
    yield "source revision", listed(package.get("revision"))
    for edition, content in list(table(installation.get("editions")).items())[:10]:
        yield f"rules {short(edition, 40)}", listed(content)
    data = subject.last("dataset")
    yield "data set, names and sizes", listed(data.get("fingerprint"))
    yield "data set, content", listed(data.get("content_fingerprint"))
    yield from _files(subject)


def _files(subject: Subject) -> Iterator[tuple[str, str]]:
    named = {
        str(value["file"]): str(value["sha256"])
        for event in subject.record.events
        for value in _with_files(event.get("value"))
    }
    shown = list(named.items())[-_MOST_FILES:]
    if len(named) > len(shown):
        yield "files", f"{len(named) - len(shown):,} older ones are left out"
    yield from ((f"file {short(name, 120)}", content) for name, content in shown)


def _with_files(value: Any) -> Iterator[Mapping[str, Any]]:
    """The tables in an event that name a file and its hash: its value, or nodes in it."""
    found = [table(value), *tables(table(value).get("nodes"))]
    yield from (one for one in found if one.get("file") and one.get("sha256"))


def last_event_hash(subject: Subject) -> str:
    """The hash of the last line of `events.jsonl`; in a finished record, DONE contains it."""
    content = (subject.path / "events.jsonl").read_bytes()
    lines = content.split(b"\n")[:-1]
    return line_hash(lines[-1]) if lines else UNKNOWN


# ----------------------------------------------------------------------------------------------------
# The nodes: their differences, then a typical node by the parts of V2.0 section 5.3.3.


_MOST_HOSTS, _MOST_FIELDS, _MOST_DIFFERENCES, _MOST_VARIANTS = 6, 500, 60, 6
_DEPTH = 6
# Shown elsewhere, or very long.
_LONG = {"raw", "torch_build", "Flags"}


def system_section(subject: Subject) -> Section:
    """Differences, the parts of a typical node, and every field of it."""
    nodes = tables(subject.record.system.get("nodes"))
    if not nodes:
        return Section("System", [Text("The record does not describe its machine.", "flag")])
    differences = node_differences(nodes) if len(nodes) > 1 else []
    odd = {host for difference in differences for host in difference.outliers}
    typical = next((node for node in nodes if str(node.get("host")) not in odd), nodes[0])
    host = short(typical.get("host", "?"), 60)
    blocks: list[Block] = [_system_sentence(len(nodes), differences)]
    blocks += [_difference_table(differences)] if differences else []
    blocks.append(_part_table(typical, subject, host))
    blocks.append(Fold(f"Every field of node {host}", [_field_table(typical, host)], printed=False))
    return Section("System", blocks)


def _system_sentence(nodes: int, differences: Sequence[NodeDifference]) -> Text:
    if nodes == 1:
        return Text("One node.")
    heavy = sum(difference.matters for difference in differences)
    if heavy:
        return Text(
            f"{nodes:,} nodes, which differ in {count(heavy, 'field')} that may change speed or results.", "flag"
        )
    if differences:
        return Text(f"{nodes:,} nodes, which differ only in fields that seldom matter.")
    return Text(f"{nodes:,} nodes, equal in all recorded fields.", "good")


def _difference_table(differences: Sequence[NodeDifference]) -> Table:
    rows: list[Row] = []
    for difference in differences[:_MOST_DIFFERENCES]:
        tone: Tone = "flag" if difference.matters else "soft"
        for index, variant in enumerate(difference.variants[:_MOST_VARIANTS]):
            name = f"{'⚠ ' if difference.matters else ''}{short(difference.field, 80)}" if index == 0 else ""
            hosts = ", ".join(short(host, 40) for host in variant.nodes[:_MOST_HOSTS])
            more = len(variant.nodes) - _MOST_HOSTS
            where = f"{hosts} and {more:,} more" if more > 0 else hosts
            rows.append((Cell(name, tone), short(listed(variant.value), 200), f"{len(variant.nodes):,}", where))
    caption = "Fields in which nodes differ, the most common value first; ⚠ may change speed or results"
    left_out = max(0, len(differences) - _MOST_DIFFERENCES)
    return Table(caption, ("field", "value", "nodes", "which"), rows, (2,), left_out)


# A path of two folders or more, except in /dev, whose paths name devices.
_PATH = re.compile(r"(?<![\w.:/-])/(?!dev/)(?:[^\s/,;:]+/)+(?=[^\s/,;:])")


def _without_folders(text: str) -> str:
    """`text` with each absolute path shortened to its last name, as folders are private."""
    return _PATH.sub("", text)


def _part_table(node: Mapping[str, Any], subject: Subject, host: str) -> Table:
    rows: list[Row] = []
    system = subject.record.system
    parts = {
        "Processors and accelerators of a node": processor_rows(node),
        "Connections within a node": link_rows(node),
        "Operating system of a node": operating_system_rows(node),
        "Software of a node": software_rows(node),
        "Connections between nodes": network_rows(node),
        "Software of the system": system_rows(tables(system.get("nodes")), system.get("installation")),
    }
    for title, found in parts.items():
        rows.append((title,))
        rows += [(name, short(_without_folders(text))) for name, text in found]
    return Table(f"Node {host}, by the six parts of V2.0 section 5.3.3", ("", ""), rows)


def _field_table(node: Mapping[str, Any], host: str) -> Table:
    rows = list(_flat_fields(node, "", _DEPTH))
    left_out = max(0, len(rows) - _MOST_FIELDS)
    return Table(f"Node {host}", ("field", "value"), rows[:_MOST_FIELDS], left_out=left_out)


def _flat_fields(value: Mapping[str, Any], above: str, depth: int) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{above}{short(key, 80)}"
        if key in _LONG:
            continue
        if table(inner) and depth:
            yield from _flat_fields(inner, f"{name}.", depth - 1)
        elif tables(inner) and depth:
            for index, one in enumerate(tables(inner)):
                yield from _flat_fields(one, f"{name}[{index}].", depth - 1)
        elif is_number(inner) and str(key).endswith("bytes"):
            yield name, quantity(number(inner), "B")
        else:
            yield name, _without_folders(listed(inner))
