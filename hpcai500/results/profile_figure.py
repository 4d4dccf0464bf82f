"""The picture of profiles, to be read like V2.0 Fig. 10 and 13: time of each class of kernels, device and network."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hpcai500.results.figure_files import figure_files
from hpcai500.results.launch_figure import LANE_INCHES, draw_lanes
from hpcai500.results.profile import Profile, mean_of, setting_of
from hpcai500.results.show import PREFIXES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's, which people who see colours differently can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_GREY = "#666666"
MOST_PROFILES = len(_COLOURS)
_WIDTH, _BAR_INCHES, _CURVE_INCHES = 7.5, 0.2, 1.75
_UNCLASSIFIED = "unclassified"
# Half of the time that the thick line is a mean over.
_AROUND_SECONDS = 0.5
# A bar of less than this is not to be seen.
_VISIBLE = 0.0005


def draw_profiles(profiles: Sequence[tuple[str, Profile]]) -> dict[str, bytes]:
    """`profile.svg` and `profile.png` of up to `MOST_PROFILES` profiles, each with its name."""
    panels: list[Callable[[Any, Sequence[tuple[str, Profile]]], None]] = [_draw_classes]
    classes = len(profiles[0][1]["classes"]) + 1
    heights = [0.75 + classes * (0.1 + _BAR_INCHES * len(profiles))]
    for key, draw in (("utilisation", _draw_utilisation), ("bandwidth", _draw_bandwidth)):
        if any(profile[key] for _, profile in profiles):
            panels.append(draw)
            heights.append(_CURVE_INCHES)
    if lanes := sum(bool(profile.get("launch")) for _, profile in profiles):
        panels.append(draw_lanes)
        heights.append(0.75 + LANE_INCHES * lanes)

    def fill(figure: Figure) -> None:
        axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
        for one, draw in zip(axes, panels, strict=True):
            draw(one, profiles)
            one.spines[["top", "right"]].set_visible(False)
        _settle(figure, axes)

    return figure_files(fill, "profile", (_WIDTH, sum(heights) + 0.3))


def _settle(figure: Figure, axes: Iterable[Any]) -> None:
    """Leave the axes where the layout has put them, without its last digits, which are others each time."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for one in axes:
        left, bottom, width, height = (round(edge, 4) for edge in one.get_position().bounds)
        one.set_position((left, bottom, width, height))


def _draw_classes(axes: Any, profiles: Sequence[tuple[str, Profile]]) -> None:
    names = [*profiles[0][1]["classes"], _UNCLASSIFIED]
    height = 0.8 / len(profiles)
    largest = 0.0
    for number, (name, profile) in enumerate(profiles):
        shares = [*(row["share"] for row in profile["classes"].values()), profile["unclassified_share"]]
        seconds = [row["seconds"] / profile["steps"] for row in profile["classes"].values()]
        places = [place + (number - (len(profiles) - 1) / 2) * height for place in range(len(names))]
        axes.barh(places, [100 * share for share in shares], height * 0.92, color=_COLOURS[number], label=name)
        for place, share, milliseconds in zip(places, shares, [*seconds, None], strict=True):
            text = f" {share:.1%}" if share >= _VISIBLE or share == 0 else " <0.1%"
            if milliseconds is not None and share >= _VISIBLE:
                text += f"  ({_time(milliseconds)})"
            colour = "black" if share >= _VISIBLE else _GREY
            axes.text(100 * share, place, text, va="center", fontsize=8 if len(profiles) < 3 else 7, color=colour)
        largest = max(largest, *shares)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, min(125.0, 100 * largest * 1.25))
    axes.set_xlabel("share of kernel time, % (time a step)")
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.25)
    if len(profiles) == 1:
        axes.set_title(_broken(setting_of(profiles[0][1])), loc="left", fontsize=10)
    else:
        axes.set_title("Where the time of training steps goes", loc="left", fontsize=10)
        axes.legend(loc="lower right", fontsize=8, framealpha=0.9, edgecolor="none")


def _draw_utilisation(axes: Any, profiles: Sequence[tuple[str, Profile]]) -> None:
    for number, (_, profile) in enumerate(profiles):
        if not profile["utilisation"]:
            continue
        times = [t for t, _ in profile["utilisation"]]
        _curve(axes, times, [100 * value for _, value in profile["utilisation"]], _COLOURS[number], len(profiles))
    means = [mean_of(profile["utilisation"]) if profile["utilisation"] else None for _, profile in profiles]
    _at_end(axes, [None if mean is None else 100 * mean for mean in means], "{:.0f}%")
    sources = dict.fromkeys(str(profile["utilisation_of"]) for _, profile in profiles if profile["utilisation"])
    axes.set_title(
        f"Device utilisation: {' and '.join(sources)} (thick: over a second; dashed: mean)", loc="left", fontsize=9
    )
    axes.set_ylim(0, 105)
    axes.set_ylabel("busy, %")
    _over_time(axes)


def _draw_bandwidth(axes: Any, profiles: Sequence[tuple[str, Profile]]) -> None:
    largest = max(point["sent_bytes_per_second"] for _, profile in profiles for point in profile["bandwidth"])
    factor, prefix = next(((factor, prefix) for factor, prefix in PREFIXES if largest >= factor), (1.0, ""))
    means: list[float | None] = [None] * len(profiles)
    for number, (_, profile) in enumerate(profiles):
        if not profile["bandwidth"]:
            continue
        times = [point["t_s"] for point in profile["bandwidth"]]
        sent = [point["sent_bytes_per_second"] / factor for point in profile["bandwidth"]]
        _curve(axes, times, sent, _COLOURS[number], len(profiles))
        means[number] = sum(sent) / len(sent)
    _at_end(axes, means, "{:.3g}")
    sources = dict.fromkeys(str(profile["bandwidth_of"]) for _, profile in profiles if profile["bandwidth"])
    axes.set_title(
        f"Communication: bytes sent over {' and '.join(sources)} (thick: over a second; dashed: mean)",
        loc="left",
        fontsize=9,
    )
    axes.set_ylim(0, None)
    axes.set_ylabel(f"{prefix}B/s")
    _over_time(axes)


def _curve(axes: Any, times: Sequence[float], values: Sequence[float], colour: str, company: int) -> None:
    """Each value, thin; their mean over a second around each, thick; the mean of all, dashed."""
    axes.plot(times, values, color=colour, linewidth=0.7, alpha=0.45)
    if company == 1:
        axes.fill_between(times, values, color=colour, alpha=0.1, linewidth=0)
    smooth = [_mean_around(times, values, at) for at in times]
    axes.plot(times, smooth, color=colour, linewidth=1.7)
    axes.axhline(sum(values) / len(values), color=colour, linewidth=0.8, linestyle=(0, (4, 3)))


def _mean_around(times: Sequence[float], values: Sequence[float], at: float) -> float:
    near = values[bisect_left(times, at - _AROUND_SECONDS) : bisect_right(times, at + _AROUND_SECONDS)]
    return sum(near) / len(near)


def _at_end(axes: Any, heights: Sequence[float | None], form: str) -> None:
    """The `heights` in their colours, right of the axes, where their lines end; two do not lie on each other."""
    shown = sorted((height, number) for number, height in enumerate(heights) if height is not None)
    for place, (height, number) in enumerate(shown):
        side = "center" if len(shown) == 1 else "top" if place == 0 else "bottom"
        where = (1, height)
        text = f" {form.format(height)}"
        axes.annotate(text, where, xycoords=("axes fraction", "data"), va=side, fontsize=8, color=_COLOURS[number])


def _over_time(axes: Any) -> None:
    axes.set_xlabel("seconds", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.set_xlim(0, None)
    axes.grid(alpha=0.25)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _broken(line: str) -> str:
    """In two lines, at a comma, where it is too long for one."""
    words, lines = line.split(", "), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 85:
            lines[-1] += ","
            lines.append(word)
        else:
            lines[-1] += f", {word}" if lines[-1] else word
    return "\n".join(lines)
