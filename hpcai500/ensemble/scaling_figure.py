"""The pictures of a scaling of ensembles: FLOPS over ranks beside data parallelism, and quality against speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcai500.ensemble.scaling_table import EnsembleScaling
from hpcai500.results.figure_files import figure_files
from hpcai500.results.show import PREFIXES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENSEMBLE, _ONE, _VALID, _IDEAL = "#0072b2", "#d55e00", "#56b4e9", "#999999"
# VFLOPS are drawn while they are within this factor of FLOPS.
_MOST_PENALTY = 4.0


def draw_ensemble_scaling(scaling: EnsembleScaling) -> dict[str, bytes]:
    """`ensemble-scaling.svg` and `.png`, `trade-off.svg` and `.png`."""
    return {
        **figure_files(lambda figure: _draw_scaling(figure, scaling), "ensemble-scaling", (7.5, 4.8)),
        **figure_files(lambda figure: _draw_trade_off(figure, scaling), "trade-off", (6.5, 4.2)),
    }


def _draw_scaling(figure: Figure, scaling: EnsembleScaling) -> None:
    axes = figure.subplots()
    points, others = scaling.points, scaling.data_parallel.points
    factor, prefix = next(((f, p) for f, p in PREFIXES if points[-1].flops >= f), (1.0, ""))
    ranks = [point.ranks for point in points]
    flops, valid = [one.flops / factor for one in points], [one.vflops / factor for one in points if one.vflops]
    alone = [one.flops / factor for one in others]
    ideal = [flops[0] / ranks[0] * count for count in ranks]
    axes.plot(ranks, ideal, "--", color=_IDEAL, label="ideal", zorder=1)
    axes.plot(ranks, flops, "o-", color=_ENSEMBLE, label="ensemble", zorder=4)
    # Far from the target, a power of five or ten would leave the curves that are compared no room.
    if len(valid) == len(flops) and all(
        height / _MOST_PENALTY <= one <= height * _MOST_PENALTY for one, height in zip(valid, flops, strict=True)
    ):
        axes.plot(ranks, valid, "^:", color=_VALID, label="ensemble, VFLOPS", zorder=2)
    axes.plot(ranks, alone, "s-", color=_ONE, label="data parallelism", zorder=3)
    for point, height in list(zip(points, flops, strict=True))[1:]:
        _number(axes, point.ranks, height, point.efficiency or 0.0, 8, _ENSEMBLE)
    for one, height in list(zip(others, alone, strict=True))[1:]:
        _number(axes, one.processes, height, one.parallel_efficiency, -15, _ONE)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.set_yticks(ideal, [f"{value:.3g}" for value in ideal])
    axes.minorticks_off()
    axes.margins(x=0.14, y=0.16)
    axes.set_xlabel(f"ranks (members of {scaling.degree} each, the same batch on each rank)")
    axes.set_ylabel(f"{prefix}FLOPS of the training steps")
    axes.set_title(f"Weak scaling of the {scaling.benchmark} ensemble; numbers: efficiency", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)


def _number(axes: Axes, x: int, y: float, efficiency: float, offset: int, colour: str) -> None:
    axes.annotate(
        f"{efficiency:.2f}", (x, y), xytext=(14, offset), textcoords="offset points", ha="center", color=colour
    )


def _draw_trade_off(figure: Figure, scaling: EnsembleScaling) -> None:
    axes = figure.subplots()
    points = scaling.trade_off
    speeds, qualities = [one.member_images_per_second for one in points], [one.quality for one in points]
    axes.plot(speeds, qualities, "o-", color=_ENSEMBLE)
    for point in points:
        axes.annotate(
            f"M = {point.members}\n{point.degree} rank{'s' * (point.degree > 1)} each",
            (point.member_images_per_second, point.quality), xytext=(0, 9), textcoords="offset points",
            ha="center", fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.8},
        )  # fmt: skip
    axes.margins(x=0.2, y=0.3)
    axes.set_xlabel("speed of one model, images/s")
    axes.set_ylabel(f"{scaling.metric} of the vote")
    axes.set_title(f"Quality against speed of {scaling.benchmark} on {points[0].ranks} ranks", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
