"""The picture of a roofline, to be read like V2.0 Fig. 9 and 15: FLOPS over COI, both logarithmic.

Flat lines are ceilings of FLOPS, slanted ones of bandwidth. A point is a run, with an arrow to it from where it would
be with gradients in fp32, and a dotted line up to its bound. What colours say, shapes and words say too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hpcai500.results.figure_files import figure_files
from hpcai500.results.report.words import short
from hpcai500.results.roofline import Roofline, RooflinePoint, Roofs
from hpcai500.results.roofline_labels import Labels, spread
from hpcai500.results.roofline_words import precise
from hpcai500.results.show import PREFIXES, scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE_INCHES = (9.0, 5.4)
# Of the figure: left, bottom, width, height. Names of ceilings stand right of it.
_FRAME = (0.085, 0.115, 0.7, 0.8)
# As in V2.0 Fig. 15: EWA blue, Image Classification red. In grey, the shapes tell them apart.
_LOOKS = {"ewa": ("#1f4fbf", "o"), "ic": ("#c8141e", "s")}
_OTHER = ("#333333", "D")
_INK, _FAINT = "#1a1a1a", "#6e6e6e"
_SMALL, _MEDIUM = 8, 9
# Runs whose COI agree so far differ in compression alone.
_SAME_COI = 0.01
# Over less than this, powers of ten alone are too few marks.
_FEW_DECADES = 300
# Where along its line the name of a slanted ceiling stands, and how near two lines may be to share a side.
_NAME_AT, _NEAR = 0.38, 2.0


def draw_roofline(roofline: Roofline) -> dict[str, bytes]:
    """The pictures as files, one for each number of accelerators: `roofline-MODEL-ACCELERATORS.svg` and `.png`.

    Of runs, it is the ceilings of as many accelerators as they had (V2.0 Fig. 15). The whole machine (Fig. 9) is drawn
    where there is no run, and beside published ones.
    """
    sizes = {roofs.accelerators: roofs for roofs in roofline.roofs}
    if roofline.draws_whole:
        sizes.setdefault(roofline.whole.accelerators, roofline.whole)
    files: dict[str, bytes] = {}
    for accelerators, roofs in sizes.items():
        picture = Picture(roofline, roofs)
        files |= figure_files(picture.draw, f"roofline-{roofline.model}-{accelerators}", PICTURE_INCHES)
    return files


class Picture:
    """The ceilings of one number of accelerators, and the points under them."""

    def __init__(self, roofline: Roofline, roofs: Roofs) -> None:
        self._roofline, self._roofs = roofline, roofs
        self._points = [point for point in roofline.points if point.accelerators == roofs.accelerators]
        self._slanted = dict(roofs.bandwidths) if roofline.bound else {}
        flat = roofs.ceilings.values()
        self._peak, self._least = max(flat), min(flat)
        self._bottom = min(self._least / 12, *(point.flops / 3 for point in self._points), self._peak)
        self._top = max(self._peak, *(point.flops for point in self._points), 0) * 1.8
        self._left, self._right = self._reach()
        # One unit for all, so that numbers can be compared: the largest in which the lowest is not below one.
        self._factor, self._prefix = next(((f, p) for f, p in PREFIXES if self._least >= f), (1.0, ""))

    def draw(self, figure: Figure) -> None:
        """Put it on an empty figure."""
        figure.set_layout_engine("none")
        axes = figure.add_axes(_FRAME)
        axes.set(xscale="log", yscale="log", xlim=(self._left, self._right), ylim=(self._bottom, self._top))
        self._draw_axes(axes)
        said = "; ".join(file.sentence for file in self._roofline.sources)
        figure.text(0.008, 0.01, short(said, 150), fontsize=_SMALL - 1, color=_FAINT, parse_math=False)
        labels = Labels(axes)
        self._draw_flat(axes, labels)
        self._draw_slanted(axes, labels)
        self._draw_points(axes, labels)

    def _reach(self) -> tuple[float, float]:
        """COI from the slanted part of the fastest link to the flat part above the slowest."""
        cois = [coi for point in self._points for coi in (point.coi, point.coi_uncompressed) if coi is not None]
        if self._slanted:
            fastest, slowest = max(self._slanted.values()), min(self._slanted.values())
            cois += [self._least / fastest / 2, self._peak / slowest]
        return (min(cois) / 3, max(cois) * 30) if cois else (1.0, 1e3)

    def _flops(self, flops: float) -> str:
        return f"{flops / self._factor:.4g} {self._prefix}FLOPS"

    def _draw_axes(self, axes: Axes) -> None:
        from matplotlib.ticker import LogLocator  # noqa: PLC0415 - takes longer to load than all the rest

        roofline, several = self._roofline, self._roofs.accelerators != 1
        axes.grid(which="major", color=_FAINT, alpha=0.2, linewidth=0.6)
        axes.set_axisbelow(True)
        link = "an accelerator's link" if roofline.model == "node" else "a node's network link"
        axes.set_xlabel(f"COI: FLOPs of all accelerators for each byte through {link}")
        axes.set_ylabel(f"{self._prefix}FLOPS attained")
        axes.xaxis.set_major_formatter(lambda coi, _: scaled(coi, "").strip())
        axes.yaxis.set_major_formatter(lambda flops, _: f"{flops / self._factor:g}")
        axes.xaxis.set_minor_formatter(lambda *_: "")
        axes.yaxis.set_minor_formatter(lambda *_: "")
        if self._top / self._bottom < _FEW_DECADES:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        if not self._slanted:
            axes.set_xticks([])
            axes.set_xticks([], minor=True)
            axes.set_xlabel("nothing is communicated: there is no slanted part")
        kind = "Distributed" if roofline.model == "system" else "Single-node"
        whole = roofline.whole.accelerators
        part = f" of {whole}" if self._roofs.accelerators < whole else ""
        size = f"{self._roofs.accelerators}{part} accelerator{'s' if several or part else ''}"
        axes.set_title(f"{kind} roofline, {size}: {roofline.machine}", loc="left", fontsize=10.5)
        axes.spines[["top", "right"]].set_visible(False)

    def _draw_flat(self, axes: Axes, labels: Labels) -> None:
        """Each from where the fastest link reaches it; its name right of the frame, apart from its neighbours'."""
        flat = sorted(self._roofs.ceilings.items(), key=lambda item: item[1])
        height = axes.get_window_extent().height
        heights = [axes.transAxes.inverted().transform(axes.transData.transform((1, flops)))[1] for _, flops in flat]
        line_height = 1.25 * _SMALL / 72 * axes.figure.dpi / height
        for (name, flops), at, label_at in zip(flat, heights, spread(heights, line_height), strict=True):
            start = max(self._left, flops / max(self._slanted.values())) if self._slanted else self._left
            is_peak = name.startswith("peak")
            style: dict[str, Any] = (
                {"color": _INK, "linewidth": 1.6} if is_peak else {"color": _FAINT, "linewidth": 1.1}
            )
            axes.plot([start, self._right], [flops, flops], zorder=2, **style)
            labels.avoid_line((start, flops), (self._right, flops))
            # Three pieces: out of the frame, to the height of the label, to the label.
            axes.plot(
                [1.0, 1.008, 1.03, 1.036], [at, at, label_at, label_at],
                transform=axes.transAxes, color=_FAINT, linewidth=0.7, clip_on=False,
            )  # fmt: skip
            axes.text(
                1.042, label_at, f"{name}  {self._flops(flops)}",
                transform=axes.transAxes, va="center", fontsize=_SMALL, color=_INK if is_peak else "#3d3d3d",
            )  # fmt: skip

    def _draw_slanted(self, axes: Axes, labels: Labels) -> None:
        above = None
        for name, rate in sorted(self._slanted.items(), key=lambda item: -item[1]):
            is_bound = name == self._roofline.bound
            start = max(self._left, self._bottom / rate)
            line = (start, start * rate), (self._peak / rate, self._peak)
            axes.plot(
                *zip(*line, strict=True), zorder=2, solid_capstyle="butt",
                **({"color": _INK, "linewidth": 1.8} if is_bound else {"color": _FAINT, "linestyle": "--"}),
            )  # fmt: skip
            labels.avoid_line(*line)
            near = above is not None and above / rate < _NEAR
            labels.along_line(
                f"{name}  {precise(rate, 'B/s')}", *line, _NAME_AT, below=near, fontsize=_MEDIUM, color=_INK
            )
            above = rate

    def _draw_points(self, axes: Axes, labels: Labels) -> None:
        places = [(self._place(point), point) for point in self._points]
        if places:
            labels.in_corner("dotted: what is left to the bound; arrow: gradients compressed", _SMALL, _FAINT)
        for (x, y), point in places:
            colour, shape = _LOOKS.get(point.benchmark, _OTHER)
            axes.plot([x, x], [y, point.attainable_flops], ":", color=colour, linewidth=1.0, alpha=0.75, zorder=3)
            axes.plot(x, y, shape, color=colour, markersize=8, markeredgecolor="white", markeredgewidth=0.8, zorder=6)
            labels.avoid_point(x, y)
            labels.avoid_line((x, y), (x, point.attainable_flops), is_drawn_over=False)
        for (x, y), point in places:
            for start in self._before(point):
                self._draw_arrow(axes, labels, point, start, (x, y))
        for (x, y), point in places:
            colour, _ = _LOOKS.get(point.benchmark, _OTHER)
            text = f"{point.name}\n{self._flops(point.flops)}, {point.share:.0%} of its bound"
            labels.beside_point(text, x, y, fontsize=_SMALL, color=colour, linespacing=1.15, zorder=7)

    def _place(self, point: RooflinePoint) -> tuple[float, float]:
        """What communicates nothing stands far to the right, where no link would bind it."""
        return (point.coi if point.coi is not None else (self._left * self._right**3) ** 0.25, point.flops)

    def _before(self, point: RooflinePoint) -> Iterator[tuple[float, float]]:
        """Where a compressed run would be without compression: at the run that shows it, or at its own FLOPS."""
        if point.coi is None or point.coi_uncompressed is None or point.compression == "none":
            return
        runs = [
            (other.coi, other.flops)
            for other in self._points
            if (other.benchmark, other.precision, other.compression) == (point.benchmark, point.precision, "none")
            and other.coi is not None
            and abs(other.coi / point.coi_uncompressed - 1) < _SAME_COI
        ]
        yield from runs or [(point.coi_uncompressed, point.flops)]

    def _draw_arrow(
        self, axes: Axes, labels: Labels, point: RooflinePoint, start: tuple[float, float], end: tuple[float, float]
    ) -> None:
        colour, shape = _LOOKS.get(point.benchmark, _OTHER)
        if start[1] == end[1] and all(other.coi != start[0] for other in self._points):
            axes.plot(*start, shape, color=colour, markersize=8, markerfacecolor="white", zorder=5)
            labels.avoid_point(*start)
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", end, start, arrowprops=style, zorder=5)
        labels.avoid_line(start, end, is_drawn_over=False)
