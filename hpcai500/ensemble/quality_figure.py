"""Quality against the number of members that vote: the curve, each member alone as a dot, the target, out of bag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcai500.ensemble.result import EnsembleResult
from hpcai500.results.figure_files import figure_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and orange are told apart by all eyes, and as light and dark in grey.
_VOTE, _ALONE, _FAINT, _INK = "#0072b2", "#d55e00", "#8a8a8a", "#1a1a1a"
# From here on, the number of members is drawn as its logarithm: the curve has its points there.
_MANY = 32


def draw_quality(result: EnsembleResult) -> dict[str, bytes]:
    """The picture as files: `quality.svg` and `quality.png`."""
    return figure_files(lambda figure: _draw(figure, result), "quality", (7.5, 4.5))


def _draw(figure: Figure, result: EnsembleResult) -> None:
    axes = figure.subplots()
    quality, values = result.quality, [one.quality for one in result.member_results if one.quality is not None]
    # A member's dot stands where it joins the vote.
    places = range(1, len(values) + 1)
    size, alpha = (22, 0.9) if len(values) <= _MANY else (6, 0.35)
    axes.scatter(places, values, s=size, alpha=alpha, color=_ALONE, linewidths=0, label="each member alone", zorder=2)
    counts = [point.members for point in result.curve]
    axes.plot(counts, [point.value for point in result.curve], "o-", color=_VOTE, label="vote of the first", zorder=4)
    axes.axhline(
        quality.target, color=_INK, linewidth=1.0, linestyle="--", zorder=1, label=f"target {quality.target:g}"
    )
    bag = result.out_of_bag
    if bag is not None and bag.value is not None:
        axes.axhline(
            bag.value, color=_VOTE, linewidth=1.2, linestyle=":", zorder=1,
            label=f"vote on {bag.samples} training samples, out of bag",
        )  # fmt: skip
    _set_axes(axes, result, counts)
    if quality.achieved is not None:
        axes.annotate(
            f"{quality.achieved:.4f}", (counts[-1], quality.achieved), xytext=(0, 7), textcoords="offset points",
            ha="center", color=_VOTE, fontweight="bold",
        )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _set_axes(axes: Axes, result: EnsembleResult, counts: list[int]) -> None:
    many = counts[-1] > _MANY
    if many:
        axes.set_xscale("log", base=2)
    shown = [count for count in counts if not many or count & (count - 1) == 0 or count == counts[-1]]
    # The last power of two would be written over the number of all.
    shown = [count for count in shown if count == counts[-1] or not many or count * 1.5 <= counts[-1]]
    axes.set_xticks(shown, [str(count) for count in shown])
    axes.minorticks_off()
    axes.margins(x=0.06, y=0.14)
    axes.set_xlabel("members that vote, in their order")
    axes.set_ylabel(result.quality.metric)
    missing = "" if result.complete else f", INCOMPLETE: {result.members_done} of {result.members} members"
    axes.set_title(f"Quality of the {result.benchmark} ensemble{missing}", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
