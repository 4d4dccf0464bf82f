"""Quality and loss by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcai500.results.report.blocks import Block, Cell, Chart, Charts, Fold, Key, Row, Section, Table, Text
from hpcai500.results.report.plot import Level, Line, Plot
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.scales import Axis, spanning
from hpcai500.results.report.words import duration, number, plain, short, table

_MOST_ROWS = 120
_MOST_CLASSES = 40


def training_section(subject: Subject) -> Section:
    """Curves with the target as a line, the classes of the last evaluation, and the numbers as a table."""
    epochs, evaluations = _last_pass(subject, "epoch_stop"), _last_pass(subject, "eval_accuracy")
    if not epochs and not evaluations:
        return Section("Quality and loss", [Text("No epoch was trained to its end.", "soft")])
    problem = table(subject.record.tables.get("problem"))
    metric, target = short(problem.get("metric", "quality"), 30), number(problem.get("target_quality"))
    charts = [_quality_chart(metric, target, evaluations), _loss_chart(epochs)]
    blocks: list[Block] = [Charts([chart for chart in charts if chart])]
    last = evaluations[max(evaluations)] if evaluations else {}
    if classes := table(last.get("per_class")):
        blocks.append(_class_table(metric, classes))
    blocks.append(Fold("Each epoch in numbers", [_epoch_table(metric, target, epochs, evaluations)]))
    return Section("Quality and loss", blocks)


def _quality_chart(metric: str, target: float | None, evaluations: Mapping[int, Mapping[str, Any]]) -> Chart | None:
    points = _points(evaluations, "value")
    if not points:
        return None
    highest = max([quality for _, quality in points] + ([target] if target is not None else []))
    axis = Axis(metric, 0.0, 1.0) if highest > 0.5 else spanning(metric, [highest * 1.05])
    said = f"{metric} is {points[-1][1]:.4f} after epoch {points[-1][0]:g}" + (
        f"; the target is {target:g}." if target is not None else "."
    )
    drawing = Plot(
        f"Quality ({metric}) by epoch",
        said,
        _epoch_axis(points),
        axis,
        lines=[Line(points, 1, marked=True)],
        levels=[Level(target, f"target {target:g}")] if target is not None else [],
    ).draw()
    return Chart("Quality", drawing, said, [Key(metric, 1, "line")])


def _loss_chart(epochs: Mapping[int, Mapping[str, Any]]) -> Chart | None:
    points = _points(epochs, "loss")
    if not points:
        return None
    losses = [loss for _, loss in points]
    said = f"The mean training loss is {losses[-1]:.4g} in epoch {points[-1][0]:g}, from {losses[0]:.4g}."
    drawing = Plot(
        "Training loss by epoch", said, _epoch_axis(points), spanning("loss", losses), [Line(points, 4, marked=True)]
    ).draw()
    return Chart("Loss", drawing, said, [Key("mean loss of the training steps", 4, "line")])


def _class_table(metric: str, classes: Mapping[str, Any]) -> Table:
    ordered = sorted(classes.items(), key=lambda item: (number(item[1]) is None, number(item[1]) or 0.0))
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
    epochs: Mapping[int, Mapping[str, Any]],
    evaluations: Mapping[int, Mapping[str, Any]],
) -> Table:
    numbers = sorted({*epochs, *evaluations})
    shown = numbers if len(numbers) <= _MOST_ROWS else numbers[-_MOST_ROWS:]
    rows: list[Row] = []
    for epoch in shown:
        trained, evaluated = epochs.get(epoch, {}), evaluations.get(epoch, {})
        quality = number(evaluated.get("value"))
        reached = quality is not None and target is not None and quality >= target
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
        "Each epoch; ✓ where the target quality is reached",
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
    """Epoch -> value; what was trained again replaces what a restart has lost."""
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
