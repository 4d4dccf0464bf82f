"""The picture of a prediction: FLOPS and efficiency over nodes, and the walls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcai500.results.figure_files import figure_files
from hpcai500.results.prediction import Prediction
from hpcai500.results.report.words import short
from hpcai500.results.show import PREFIXES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREDICTED, _MEASURED, _IDEAL, _WALL = "#d55e00", "#0072b2", "#999999", "#444444"


def draw_prediction(prediction: Prediction) -> dict[str, bytes]:
    """The picture as files: `prediction.svg` and `prediction.png`."""
    return figure_files(lambda figure: _draw(figure, prediction), "prediction", (8, 7))


def _draw(figure: Figure, prediction: Prediction) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_flops(above, prediction)
    _draw_efficiency(below, prediction)
    nodes = [point.nodes for point in prediction.points]
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.set_xscale("log", base=2)
        if prediction.wall and prediction.wall.nodes <= nodes[-1]:
            axes.axvspan(prediction.wall.nodes, nodes[-1] * 1.3, color=_WALL, alpha=0.06, linewidth=0)
    shown = [n for n in nodes if n & (n - 1) == 0]
    shown = shown[:: 1 if len(shown) < 12 else 2]
    below.set_xticks(shown, [f"{n:,}" for n in shown])
    below.minorticks_off()
    below.set_xlim(nodes[0] / 1.3, nodes[-1] * 1.3)
    below.set_xlabel(f"nodes of {prediction.ranks_per_node} rank(s), {prediction.batch_size} sample(s) a rank and step")
    figure.suptitle(
        f"PREDICTED weak scaling of {prediction.benchmark}, {prediction.precision}: a model, no result\n"
        f"{prediction.machine}",
        fontsize=11,
    )
    if prediction.sources:
        said = "; ".join(file.sentence for file in prediction.sources)
        figure.supxlabel(short(said, 150), fontsize=7, parse_math=False)


def _draw_flops(axes: Any, prediction: Prediction) -> None:
    points = prediction.points
    nodes = [point.nodes for point in points]
    factor, prefix = next(((f, p) for f, p in PREFIXES if points[-1].flops >= f), (1.0, ""))
    base = points[0].flops / factor
    axes.plot(nodes, [base * n for n in nodes], "--", color=_IDEAL, label="ideal")
    axes.plot(nodes, [point.flops / factor for point in points], "-", color=_PREDICTED, label="predicted")
    _band(axes, prediction, [tuple(end / factor for end in span.flops) for span in prediction.between()])
    if prediction.measured:
        axes.plot(
            [one.ranks / prediction.ranks_per_node for one in prediction.measured],
            [one.flops / factor for one in prediction.measured],
            "o",
            color=_MEASURED,
            label="measured",
            zorder=3,
        )
    axes.set_yscale("log", base=10)
    axes.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axes.set_ylabel(f"{prefix}FLOPS of the training steps")
    axes.legend(loc="upper left", frameon=False)


def _draw_efficiency(axes: Any, prediction: Prediction) -> None:
    nodes = [point.nodes for point in prediction.points]
    axes.plot(nodes, [point.parallel_efficiency for point in prediction.points], "-", color=_PREDICTED)
    _band(axes, prediction, [span.parallel_efficiency for span in prediction.between()])
    axes.axhline(0.5, color=_IDEAL, linestyle=":")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("efficiency against one node")
    inside = [wall for wall in prediction.walls if wall.nodes <= nodes[-1]]
    # Names stand at the foot, one above the other: walls may be close together.
    for row, wall in enumerate(inside):
        axes.axvline(wall.nodes, color=_WALL, linewidth=1, linestyle="-" if row == 0 else "--")
        is_left = wall.nodes**2 < nodes[-1]
        axes.annotate(
            f"{'the wall: ' if row == 0 else ''}{wall.binds}, {wall.nodes:,} nodes",
            (wall.nodes, 0.06 + 0.11 * row),
            xytext=(4 if is_left else -4, 0),
            textcoords="offset points",
            ha="left" if is_left else "right",
            fontsize=8,
            color=_WALL,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )


def _band(axes: Any, prediction: Prediction, spans: Sequence[tuple[float, ...]]) -> None:
    low, high = zip(*spans, strict=True)
    if low != high:
        nodes = [point.nodes for point in prediction.points]
        label = "by assumptions, and the model's error"
        axes.fill_between(nodes, low, high, color=_PREDICTED, alpha=0.15, linewidth=0, label=label)
