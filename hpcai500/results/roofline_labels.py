"""Where labels go, so that none lies on another, on a point, or, if it can be helped, on a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

# Left, lower, right and upper edge, in pixels.
Box = tuple[float, float, float, float]

# Points (1/72 inch) from what is labelled, tried in this order: beside it, above, below, farther away.
_NEAR, _FAR, _FARTHEST = 9, 18, 32
_SIDES = ((1, 0), (-1, 0), (1, -1), (-1, -1), (0, -1), (1, 1), (-1, 1), (0, 1))
_ALIGN = {-1: "right", 0: "center", 1: "left"}
_ALIGN_HEIGHT = {-1: "top", 0: "center", 1: "bottom"}
# What a pixel of overlap costs: with text or a point, with a line, and what a place farther down the list costs.
_ON_TEXT, _ON_LINE, _LATER, _OUTSIDE = 50.0, 6.0, 6.0, 1e5


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """`wanted` (ascending) moved as little as it takes to be `gap` apart."""
    groups: list[list[float]] = []
    for value in wanted:
        groups.append([value])
        while len(groups) > 1 and _first(groups[-1], gap) - _last(groups[-2], gap) < gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_first(group, gap) + gap * i for group in groups for i in range(len(group))]


def _first(group: Sequence[float], gap: float) -> float:
    """Place of the first of a group whose members stand `gap` apart around where they wanted to be."""
    return math.fsum(group) / len(group) - gap * (len(group) - 1) / 2


def _last(group: Sequence[float], gap: float) -> float:
    return _first(group, gap) + gap * (len(group) - 1)


class Labels:
    """Puts labels on `axes`, whose limits and place on the figure are final."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        # The renderer of the canvas that pictures are made with; the type of a figure's canvas does not know it.
        canvas: Any = axes.figure.canvas
        self._renderer = canvas.get_renderer()
        self._texts: list[Box] = []
        self._lines: list[Box] = []

    def avoid_point(self, x: float, y: float, radius: float = 6.0) -> None:
        """Keep off the marker at data (x, y)."""
        self._texts.append(self._box(x, y, radius))

    def avoid_line(self, start: tuple[float, float], end: tuple[float, float], *, is_drawn_over: bool = True) -> None:
        """Keep off the straight line between two data points; at any price, unless a label may be drawn over it."""
        target = self._lines if is_drawn_over else self._texts
        target += [self._box_at(x, y, 2.0) for x, y in self._along(start, end)]

    def in_corner(self, text: str, size: float, color: str) -> None:
        """Write `text` at the lower right."""
        written = self._axes.text(
            0.992, 0.015, text, transform=self._axes.transAxes, ha="right", va="bottom", fontsize=size, color=color
        )
        self._texts.append(written.get_window_extent(self._renderer).extents)

    def along_line(
        self,
        text: str,
        start: tuple[float, float],
        end: tuple[float, float],
        share: float,
        *,
        below: bool,
        **style: Any,
    ) -> None:
        """Write `text` along the line, `share` of the way from `start` to `end`, on its upper side or `below` it."""
        (x0, y0), (x1, y1) = (self._axes.transData.transform(point) for point in (start, end))
        angle = math.atan2(y1 - y0, x1 - x0)
        side = -1 if below else 1
        shift = 4.0 * side
        text_ = self._axes.annotate(
            text,
            (start[0] ** (1 - share) * end[0] ** share, start[1] ** (1 - share) * end[1] ** share),
            xytext=(-shift * math.sin(angle), shift * math.cos(angle)),
            textcoords="offset points",
            rotation=math.degrees(angle),
            rotation_mode="anchor",
            ha="center",
            va="top" if below else "bottom",
            **style,
        )
        self._keep_rotated(text_, angle, side)

    def beside_point(self, text: str, x: float, y: float, **style: Any) -> None:
        """Write `text` where it lies on nothing, as near as can be to data (x, y)."""
        at_x, at_y = self._axes.transData.transform((x, y))
        probe = self._axes.text(x, y, text, **style)
        extent = probe.get_window_extent(self._renderer)
        probe.remove()
        places = [(order, *place) for order, place in enumerate(_places())]

        def box(across: int, up: int, distance: float) -> Box:
            left = at_x + across * self._points(distance) - extent.width * (1 - across) / 2
            low = at_y + up * self._points(distance) - extent.height * (1 - up) / 2
            return (left, low, left + extent.width, low + extent.height)

        _, across, up, distance = min(places, key=lambda place: self._cost(box(*place[1:])) + place[0] * _LATER)
        self._texts.append(box(across, up, distance))
        self._axes.annotate(
            text,
            (x, y),
            xytext=(across * distance, up * distance),
            textcoords="offset points",
            ha=_ALIGN[across],
            va=_ALIGN_HEIGHT[up],
            **style,
        )

    def _cost(self, box: Box) -> float:
        frame = self._axes.get_window_extent(self._renderer)
        is_out = box[0] < frame.x0 or box[2] > frame.x1 or box[1] < frame.y0 or box[3] > frame.y1
        return (
            (_OUTSIDE if is_out else 0.0)
            + _ON_TEXT * sum(_overlap(box, other) for other in self._texts)
            + _ON_LINE * sum(_overlap(box, other) for other in self._lines)
        )

    def _keep_rotated(self, text: Text, angle: float, side: int) -> None:
        """Remember a slanted text as a row of small boxes: the upright box around it would be mostly empty."""
        width = text.get_window_extent(self._renderer).width / max(abs(math.cos(angle)), 0.1)
        height = self._points(11)
        x, y = text.get_transform().transform(text.get_position())
        count = max(2, int(width / height))
        for i in range(count + 1):
            along = width * (i / count - 0.5)
            self._texts.append(
                self._box_at(
                    x + along * math.cos(angle) - side * height / 2 * math.sin(angle),
                    y + along * math.sin(angle) + side * height / 2 * math.cos(angle),
                    5.5,
                )
            )

    def _along(self, start: tuple[float, float], end: tuple[float, float]) -> Iterator[tuple[float, float]]:
        (x0, y0), (x1, y1) = (self._axes.transData.transform(point) for point in (start, end))
        count = max(2, int(math.hypot(x1 - x0, y1 - y0) / 4))
        for i in range(count + 1):
            yield x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count

    def _box(self, x: float, y: float, radius: float) -> Box:
        across, up = self._axes.transData.transform((x, y))
        return self._box_at(across, up, radius)

    def _box_at(self, x: float, y: float, radius: float) -> Box:
        size = self._points(radius)
        return (x - size, y - size, x + size, y + size)

    def _points(self, points: float) -> float:
        return float(self._renderer.points_to_pixels(points))


def _places() -> Iterator[tuple[int, int, float]]:
    for distance in (_NEAR, _FAR, _FARTHEST):
        for across, up in _SIDES:
            # On a diagonal, both ways add up.
            yield across, up, distance * (0.75 if across and up else 1.0)


def _overlap(one: Box, other: Box) -> float:
    """Square root of the area that two boxes share, so that large and small ones weigh alike."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return math.sqrt(width * height) if width > 0 and height > 0 else 0.0
