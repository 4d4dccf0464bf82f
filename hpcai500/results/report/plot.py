"""Lines and points over two axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hpcai500.results.report.scales import Axis
from hpcai500.results.report.svg import drawing, element, label, path

# Small enough that its letters are read on a phone, where it is shown at nine tenths of this.
WIDTH, HEIGHT = 400.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 14.0, 14.0, 40.0
_MOST_POINTS = 400
# Names stand beside points; closer lines of text than this overlap.
_LINE = 13.0


@dataclass(frozen=True)
class Line:
    """Points joined by a line, in one of the page's colours (1 to 6)."""

    points: Sequence[tuple[float, float]]
    colour: int = 1
    dashed: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Level:
    """A value that others are measured by: a dashed line across, with its name."""

    value: float
    name: str


@dataclass(frozen=True)
class Spot:
    """One point with a name beside it, or above it."""

    x: float
    y: float
    name: str
    colour: int = 1
    is_above: bool = False


@dataclass(frozen=True)
class Plot:
    """Everything that is drawn."""

    title: str
    description: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    levels: Sequence[Level] = ()
    spots: Sequence[Spot] = ()

    def draw(self) -> Markup:
        """The drawing."""
        return drawing(
            self.title,
            self.description,
            WIDTH,
            HEIGHT,
            [*self._frame(), *self._levels(), *self._lines(), *self._spots()],
        )

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across = _LEFT + self.x.place(x) * (WIDTH - _LEFT - _RIGHT)
        return across, HEIGHT - _BOTTOM - self.y.place(y) * (HEIGHT - _TOP - _BOTTOM)

    def _frame(self) -> Iterator[Markup]:
        floor, end = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        for value, name in self.y.marks():
            _, y = self._at(self.x.low, value)
            yield element("line", x1=_LEFT, x2=end, y1=y, y2=y, class_="grid")
            yield label(_LEFT - 6, y + 4, name, "tick", "end")
        for value, name in self.x.marks():
            x, _ = self._at(value, self.y.low)
            yield element("line", x1=x, x2=x, y1=floor, y2=floor + 4, class_="axis")
            yield label(x, floor + 16, name, "tick", "middle")
        yield element("line", x1=_LEFT, x2=end, y1=floor, y2=floor, class_="axis")
        yield label((_LEFT + end) / 2, HEIGHT - 5, self.x.label, "name", "middle")
        middle = (_TOP + floor) / 2
        yield element(
            "text", self.y.label, x=12, y=middle, text_anchor="middle", class_="name",
            transform=f"rotate(-90 12 {middle:g})",
        )  # fmt: skip

    def _levels(self) -> Iterator[Markup]:
        for level in self.levels:
            _, y = self._at(self.x.low, level.value)
            yield element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="level")
            above = y - 5 if y > _TOP + 12 else y + 14
            yield label(WIDTH - _RIGHT - 2, above, level.name, "level-name", "end")

    def _lines(self) -> Iterator[Markup]:
        for line in self.lines:
            known = thinned([point for point in line.points if all(map(math.isfinite, point))])
            places = [self._at(*point) for point in known]
            if len(places) > 1:
                yield path(places, f"line c{line.colour}" + (" dashed" if line.dashed else ""))
            if line.marked or len(places) == 1:
                for x, y in places if len(places) <= 100 else places[-1:]:
                    yield element("circle", cx=x, cy=y, r=2.6, class_=f"dot c{line.colour}")

    def _spots(self) -> Iterator[Markup]:
        taken: list[tuple[float, float]] = []
        for spot in self.spots:
            x, y = self._at(spot.x, spot.y)
            yield element("circle", cx=x, cy=y, r=4, class_=f"dot c{spot.colour}")
            if spot.is_above:
                yield label(min(x, WIDTH - 2 * _RIGHT), y - 9, spot.name, "spot", "middle")
                continue
            right = x < WIDTH * 0.6
            place = _free(x + (8 if right else -8), y + 4, taken)
            taken.append(place)
            yield label(*place, spot.name, "spot", "start" if right else "end")


def thinned(points: Sequence[tuple[float, float]], most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` of `points`; of each stretch that is left out, its lowest and its highest remain."""
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(2 * (len(points) - 2) / (most - 2))
    kept = [points[0]]
    for start in range(1, len(points) - 1, stretch):
        part = range(start, min(start + stretch, len(points) - 1))
        ends = {min(part, key=lambda index: points[index][1]), max(part, key=lambda index: points[index][1])}
        kept += [points[index] for index in sorted(ends)]
    return [*kept, points[-1]]


def _free(x: float, y: float, taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The nearest place above (x, y) that no other name has."""
    while any(abs(x - other) < WIDTH / 3 and abs(y - height) < _LINE for other, height in taken) and y > _TOP + _LINE:
        y -= _LINE
    return x, y
