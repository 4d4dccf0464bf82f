"""The pictures of a collected ensemble: `quality` over the number of members, and `training` over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcai500.drawing import figure_files
from hpcai500.ensemble.result import EnsembleResult, Slowest, slowest_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = ("quality.svg", "quality.png", "training.svg", "training.png")
_INK = "#1a1a1a"


def draw_ensemble(result: EnsembleResult) -> dict[str, bytes]:
    """`quality.svg` and `.png` if the members voted, `training.svg` and `.png` if any member counts."""
    files: dict[str, bytes] = {}
    if result.curve:
        files |= figure_files(lambda figure: _draw_quality(figure, result), "quality", (7.5, 4.5))
    if result.member_results:
        height = min(7.0, 2.4 + 0.16 * len(result.member_results))
        files |= figure_files(lambda figure: _draw_training(figure, result), "training", (9.0, height))
    return files


def _set_title(axes: Axes, result: EnsembleResult, title: str) -> None:
    missing = "" if result.complete else f", INCOMPLETE: {result.members_done} of {result.members} members"
    axes.set_title(f"{title}{missing}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


# ----------------------------------------------------------------------------------------------------
# Quality over the number of voting members: the curve, each member alone as a dot, the target, out of bag.


# Blue and orange are distinct for the colour-blind too, and as light and dark in grey.
_VOTE, _ALONE = "#0072b2", "#d55e00"
# With more members the axis is logarithmic, as are the points of the curve.
_MANY = 32


def _draw_quality(figure: Figure, result: EnsembleResult) -> None:
    axes = figure.subplots()
    quality, values = result.quality, [one.quality for one in result.member_results if one.quality is not None]
    # A member's dot is where it joins the vote.
    places = range(1, len(values) + 1)
    size, alpha = (22, 0.9) if len(values) <= _MANY else (6, 0.35)
    axes.scatter(places, values, s=size, alpha=alpha, color=_ALONE, linewidths=0, label="each member alone", zorder=2)
    counts = [point.members for point in result.curve]
    axes.plot(counts, [point.value for point in result.curve], "o-", color=_VOTE, label="vote of the first", zorder=4)
    axes.axhline(quality.target, color=_INK, linewidth=1.0, linestyle="--", zorder=1, label=f"target {quality.goal}")
    bag = result.out_of_bag
    if bag is not None and bag.value is not None:
        axes.axhline(
            bag.value, color=_VOTE, linewidth=1.2, linestyle=":", zorder=1,
            label=f"vote on {bag.samples} training samples, out of bag",
        )  # fmt: skip
    _set_quality_axes(axes, result, counts)
    if quality.achieved is not None:
        axes.annotate(
            f"{quality.achieved:.4f}", (counts[-1], quality.achieved), xytext=(0, 7), textcoords="offset points",
            ha="center", color=_VOTE, fontweight="bold",
        )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _set_quality_axes(axes: Axes, result: EnsembleResult, counts: list[int]) -> None:
    many = counts[-1] > _MANY
    if many:
        axes.set_xscale("log", base=2)
    shown = [count for count in counts if not many or count & (count - 1) == 0 or count == counts[-1]]
    # The last power of two would overlap with the number of all.
    shown = [count for count in shown if count == counts[-1] or not many or count * 1.5 <= counts[-1]]
    axes.set_xticks(shown, [str(count) for count in shown])
    axes.minorticks_off()
    axes.margins(x=0.06, y=0.14)
    axes.set_xlabel("members that vote, in their order")
    axes.set_ylabel(result.quality.metric)
    _set_title(axes, result, f"Quality of the {result.benchmark} ensemble")
    axes.grid(alpha=0.3)


# ----------------------------------------------------------------------------------------------------
# When each member trained: one strip for each, from its start to its stop, with gaps for its downtime.
#
# Strips are in the order of the members and fill the picture. The slowest one is coloured and named, and the time until
# the last start is shaded; both are visible even if strips are thinner than a line.


_TRAINED, _SLOWEST, _SKEW = "#4f8fc0", "#d55e00", "#f0c75e"
# Up to this number, strips stand apart and each has its label.
_FEW = 24
# Minimum height of the slowest member's strip, as a fraction of the picture's height.
_THINNEST = 0.006
_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def _draw_training(figure: Figure, result: EnsembleResult) -> None:
    assert result.slowest_member is not None
    assert result.seconds is not None
    axes = figure.subplots()
    span = result.seconds
    factor, unit = next(((f, name) for f, name in _UNITS if span >= 2 * f), _UNITS[-1])
    _draw_strips(axes, result, factor)
    _draw_slowest(axes, result, result.slowest_member, factor)
    skew = (result.start_skew_seconds or 0.0) / factor
    axes.axvspan(0, skew, color=_SKEW, alpha=0.45, linewidth=0, zorder=0)
    axes.axvline(skew, color=_INK, linewidth=0.8, linestyle=":", zorder=4)
    axes.set_xlim(-0.015 * span / factor, 1.015 * span / factor)
    _set_training_axes(axes, result)
    slowest = result.slowest_member
    notes = [
        f"slowest: {slowest_words(slowest)}",
        f"last start after {result.start_skew_seconds or 0:.1f} s; accelerators trained {result.utilisation or 0:.1%} "
        "of the time shown",
    ]
    figure.supxlabel("\n".join([f"{unit} after the first member's start", *notes]), fontsize=9)


def _draw_strips(axes: Axes, result: EnsembleResult, factor: float) -> None:
    """Draw all strips as one collection: ten thousand take a second, and are one object in the SVG."""
    # Imported late, because it takes longer to load than everything else here.
    from matplotlib.collections import PolyCollection

    half = 0.36 if len(result.member_results) <= _FEW else 0.5
    strips = [
        [(x0, y - half), (x0, y + half), (x1, y + half), (x1, y - half)]
        for y, one in enumerate(result.member_results)
        for x0, x1 in ((start / factor, stop / factor) for start, stop in one.intervals)
    ]
    axes.add_collection(
        PolyCollection(strips, facecolors=_TRAINED, edgecolors="none", rasterized=len(strips) > 10 * _FEW, zorder=2)
    )


def _draw_slowest(axes: Axes, result: EnsembleResult, slowest: Slowest, factor: float) -> None:
    count = len(result.member_results)
    height = max(0.72 if count <= _FEW else 1.0, _THINNEST * count)
    for y, one in enumerate(result.member_results):
        if one.member == slowest.member:
            pieces = [(start / factor, (stop - start) / factor) for start, stop in one.intervals]
            axes.broken_barh(pieces, (y - height / 2, height), facecolors=_SLOWEST, zorder=3)


def _set_training_axes(axes: Axes, result: EnsembleResult) -> None:
    rows = result.member_results
    axes.set_ylim(len(rows) - 0.4, -0.6)
    if len(rows) <= _FEW:
        axes.set_yticks(range(len(rows)), [f"{one.member}  {one.host}" for one in rows], fontsize=8)
    else:
        from matplotlib.ticker import MaxNLocator

        found = MaxNLocator(8, integer=True).tick_values(0, len(rows) - 1)
        places = [int(place) for place in found if 0 <= place < len(rows)]
        axes.set_yticks(places, [str(rows[place].member) for place in places], fontsize=8)
        axes.set_ylabel("member")
    _set_title(axes, result, f"When the members of the {result.benchmark} ensemble ran")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
