"""The picture of launch gaps: what a CUDA device did in one step, and when it did nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcai500.results.profile_launches import DEVICE_TIME

LANE_INCHES = 0.6
# Okabe and Ito's, as in the panels beside it: computes, only communicates, only copies.
_COLOURS = ("#0072b2", "#e69f00", "#56b4e9")
_IDLE = "#dddddd"


def draw_lanes(axes: Any, profiles: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """A lane for each profile that has one: full where the device was busy throughout, empty where it was idle."""
    shown = [(name, profile["launch"]) for name, profile in profiles if profile.get("launch")]
    for place, (_, launch) in enumerate(shown):
        _draw_lane(axes, place, launch)
    axes.set_yticks([place + 0.4 for place in range(len(shown))], [name for name, _ in shown])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(labelsize=9)
    axes.invert_yaxis()
    longest = max(float(launch["lane_seconds"]) for _, launch in shown)
    axes.set_xlim(0, longest * 1e3)
    axes.set_xlabel("milliseconds of one step, under the profiler", fontsize=9)
    axes.set_title("What the device did in one step", loc="left", fontsize=9)
    spacing = {"handlelength": 1, "columnspacing": 1}
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize=7, frameon=False, **spacing)
    for place, (_, launch) in enumerate(shown):
        text = f" idle {launch['idle_share_without_profiler']:.0%}\n by {launch['bound']}"
        axes.annotate(text, (1, place + 0.4), xycoords=("axes fraction", "data"), va="center", fontsize=8)


def _draw_lane(axes: Any, place: int, launch: Mapping[str, Any]) -> None:
    """Upside down, for the first lane is the uppermost: what is busy stands on its lower edge."""
    times = [1e3 * row[0] for row in launch["lane"]]
    times.append(1e3 * float(launch["lane_seconds"]))
    floor, ceiling = place + 0.8, float(place)
    first = place == 0
    axes.fill_between(
        times, ceiling, floor, color=_IDLE, linewidth=0, step="post", label=DEVICE_TIME["idle"] if first else None
    )
    below = [0.0] * len(times)
    for column, (kind, colour) in enumerate(zip(list(DEVICE_TIME)[:3], _COLOURS, strict=True), 1):
        shares = [row[column] for row in launch["lane"]]
        above = [low + share for low, share in zip(below, [*shares, *shares[-1:]], strict=True)]
        axes.fill_between(
            times,
            [floor - 0.8 * low for low in below],
            [floor - 0.8 * high for high in above],
            step="post",
            color=colour,
            linewidth=0,
            label=DEVICE_TIME[kind] if first else None,
        )
        below = above
