"""The picture of a weak scaling, to be read like V2.0 Fig. 12: FLOPS over processes, below the ideal line."""

from __future__ import annotations

from typing import Any

from hpcai500.results.figure_files import figure_files
from hpcai500.results.scaling import Scaling
from hpcai500.results.show import PREFIXES

_MEASURED, _IDEAL = "#0072b2", "#999999"


def draw_scaling(scaling: Scaling) -> dict[str, bytes]:
    """The picture as files: `scaling.svg` and `scaling.png`."""
    return figure_files(lambda figure: _draw(figure.subplots(), scaling), "scaling", (7, 4.5))


def _draw(axes: Any, scaling: Scaling) -> None:
    points = scaling.points
    factor, prefix = next(((f, p) for f, p in PREFIXES if points[-1].flops >= f), (1.0, ""))
    processes = [point.processes for point in points]
    measured = [point.flops / factor for point in points]
    base = measured[0] / processes[0]
    axes.plot(processes, [base * n for n in processes], "--", color=_IDEAL, label="ideal", zorder=1)
    axes.plot(processes, measured, "o-", color=_MEASURED, label="measured", zorder=2)
    for point, height in zip(points, measured, strict=True):
        axes.annotate(
            f"{point.parallel_efficiency:.2f}",
            (point.processes, height),
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            color=_MEASURED,
        )
    # Where both axes double alike, the ideal is a straight line, and the distance below it tells the efficiency.
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(processes, [str(n) for n in processes])
    ideal = [base * n for n in processes]
    axes.set_yticks(ideal, [f"{flops:.3g}" for flops in ideal])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.set_ylim(min(measured) / 1.5, 1.3 * max(*ideal, *measured))
    axes.set_xlabel("processes (the same batch on each)")
    axes.set_ylabel(f"{prefix}FLOPS of the training steps")
    axes.set_title(f"Weak scaling of {scaling.benchmark}, {_backend(scaling)}", loc="left", fontsize=11)
    axes.text(0.02, 0.8, "numbers: parallel efficiency", transform=axes.transAxes, fontsize=8, color=_MEASURED)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)


def _backend(scaling: Scaling) -> str:
    """What the processes talk by: that of the largest point."""
    last = scaling.points[-1]
    return f"{last.backend} ({last.library})" if last.library else last.backend
