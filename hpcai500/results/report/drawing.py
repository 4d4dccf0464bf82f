"""SVG drawings for pages: bars, lines and points over axes, and the timeline of a run.

Colours (1 to 6) come from the page: light, dark or print. Text from records is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from hpcai500.text import legible, prefix_of

# ----------------------------------------------------------------------------------------------------
# Axes: from values to positions, linear or logarithmic, and their ticks.


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """One side of a drawing: `label` with the unit, values from `low` to `high` (above `low`).

    A logarithmic axis has `low` above 0. `ticks` are the values to mark; None chooses them.
    """

    label: str
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None

    def place(self, value: float) -> float:
        """The position of `value`: 0 at the start, 1 at the end, limited to these."""
        if self.log:
            value, low, high = math.log(max(value, self.low)), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def between(self, start: float, end: float, value: float) -> float:
        """The coordinate of `value` on an axis drawn from `start` to `end`."""
        return start + self.place(value) * (end - start)

    def marks(self) -> list[tuple[float, str]]:
        """The values of the ticks, and their texts."""
        if self.ticks is not None:
            values = [tick for tick in self.ticks if self.low <= tick <= self.high]
        else:
            values = _decades(self.low, self.high) if self.log else round_values(self.low, self.high)
        return [(value, compact(value)) for value in values]


def spanning(label: str, values: Sequence[float], *, zero: bool = True) -> Axis:
    """A linear axis for all of `values`, from 0 if `zero`, with round numbers as ends."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(0.0, low) if zero else low
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = _step(low, high)
    return Axis(label, math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def spanning_decades(label: str, values: Sequence[float], *, margin: float = 1.5) -> Axis:
    """A logarithmic axis for all of `values`."""
    return Axis(label, min(values) / margin, max(values) * margin, log=True)


def round_values(low: float, high: float) -> list[float]:
    """About five round values from `low` to `high`."""
    step = _step(low, high)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def compact(value: float) -> str:
    """`2500000` -> `2.5M`: for ticks, as the unit is in the label of the axis."""
    factor, prefix = prefix_of(value)
    return f"{value / factor:.4g}{prefix}" if prefix else f"{value:.3g}"


def _step(low: float, high: float) -> float:
    rough = (high - low) / 5
    decade = 10.0 ** math.floor(math.log10(rough))
    return next(step * decade for step in _STEPS if step * decade >= rough * (1 - 1e-9))


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 2:
        finer = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
        return [value for value in finer if low <= value <= high]
    stride = 1 + (last - first) // 7
    return [10.0**power for power in range(first, last + 1, stride)]


# ----------------------------------------------------------------------------------------------------
# SVG elements.


def element(name: str, *content: Markup | str, **attributes: str | float) -> Markup:
    """One element; `class_` and `stroke_width` become `class` and `stroke-width`."""
    opening = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _written(value))
        for key, value in attributes.items()
    )
    inside = Markup("").join(part if isinstance(part, Markup) else escape(legible(part)) for part in content)
    return Markup("<{0}{1}>{2}</{0}>").format(name, opening, inside)


def drawing(title: str, description: str, width: float, height: float, parts: Iterable[Markup]) -> Markup:
    """A whole drawing with its text alternative: `title` and `description`."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}. {description}",
    )


def label(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    """Text at a point: `anchor` is start, middle or end."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=kind or "label")


def path(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """A line through `points`."""
    corners = " ".join(f"{_written(x)},{_written(y)}" for x, y in points)
    return element("polyline", points=corners, class_=kind)


def _ticks(
    axis: Axis, left: float, right: float, marks: tuple[float, float], kind: str, words: float
) -> Iterator[Markup]:
    """The ticks of a horizontal axis, from the first to the second height in `marks`, with their texts at `words`."""
    for value, name in axis.marks():
        x = axis.between(left, right, value)
        yield element("line", x1=x, x2=x, y1=marks[0], y2=marks[1], class_=kind)
        yield label(x, words, name, "tick", "middle")


def _written(value: str | float) -> str:
    return legible(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


# ----------------------------------------------------------------------------------------------------
# Horizontal bars of one part or several.


BARS_WIDTH = 400.0
_ROW, _BAR, _FOOT, _NUMBER = 22.0, 14.0, 38.0, 84.0
# Width of most letters on a phone, where text is larger.
_LETTER = 8.2
_MOST_LETTERS = 20


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its parts in the unit of the axis, their colours, and the text after it."""

    name: str
    parts: Sequence[float]
    colours: Sequence[int] = (1, 2, 3, 4, 5, 6)
    text: str = ""


def bars(title: str, description: str, axis: Axis, rows: Sequence[Bar], level: float | None = None) -> Markup:
    """A drawing of `rows` from top to bottom; a dashed line across all of them marks `level`."""
    left = 10 + _LETTER * min(_MOST_LETTERS, max((len(row.name) for row in rows), default=0))
    right = BARS_WIDTH - (_NUMBER if any(row.text for row in rows) else 14)
    height = 6 + _ROW * len(rows) + _FOOT
    floor = height - _FOOT
    inside = [
        *_ticks(axis, left, right, (2, floor), "grid", floor + 14),
        label((left + right) / 2, height - 6, axis.label, "name", "middle"),
        *_surfaces(rows, axis, left, right),
    ]
    if level is not None:
        x = axis.between(left, right, level)
        inside.append(element("line", x1=x, x2=x, y1=2, y2=floor, class_="level"))
    return drawing(title, description, BARS_WIDTH, height, [*inside, *_words(rows, axis, left, right)])


def _surfaces(rows: Sequence[Bar], axis: Axis, left: float, right: float) -> Iterator[Markup]:
    for number, row in enumerate(rows):
        behind = 0.0
        for part, colour in zip(row.parts, row.colours, strict=False):
            start, stop = (axis.between(left, right, edge) for edge in (behind, behind + part))
            behind += part
            if stop > start:
                yield element(
                    "rect", x=start, y=6 + _ROW * number, width=stop - start, height=_BAR, class_=f"surface c{colour}"
                )


def _words(rows: Sequence[Bar], axis: Axis, left: float, right: float) -> Iterator[Markup]:
    for number, row in enumerate(rows):
        line = 6 + _ROW * number + _BAR - 3
        name = row.name if len(row.name) <= _MOST_LETTERS else f"{row.name[: _MOST_LETTERS - 1]}…"
        yield label(left - 6, line, name, "label", "end")
        if row.text:
            yield label(axis.between(left, right, sum(row.parts)) + 5, line, row.text, "value")


# ----------------------------------------------------------------------------------------------------
# The timeline of a run: its phases as coloured stretches, and events as marks.


STRIP_WIDTH, STRIP_HEIGHT = 400.0, 92.0
_LEFT, _RIGHT, _TOP, _BAND, _FLOOR = 10.0, STRIP_WIDTH - 16.0, 22.0, 26.0, 54.0
# More stretches than pixels would not be visible.
_MOST_STRETCHES = 500


@dataclass(frozen=True)
class Stretch:
    """From `start` to `stop` in seconds, in one of the page's colours."""

    start: float
    stop: float
    colour: int


@dataclass(frozen=True)
class Moment:
    """A moment, marked by one letter or sign."""

    at: float
    sign: str


def strip(title: str, description: str, axis: Axis, stretches: Sequence[Stretch], moments: Sequence[Moment]) -> Markup:
    return drawing(title, description, STRIP_WIDTH, STRIP_HEIGHT, _parts(axis, stretches, moments))


def _parts(axis: Axis, stretches: Sequence[Stretch], moments: Sequence[Moment]) -> Iterator[Markup]:
    yield element("rect", x=_LEFT, y=_TOP, width=_RIGHT - _LEFT, height=_BAND, class_="ground")
    for stretch in stretches[:_MOST_STRETCHES]:
        start, stop = (axis.between(_LEFT, _RIGHT, at) for at in (stretch.start, stretch.stop))
        yield element(
            "rect", x=start, y=_TOP, width=max(stop - start, 0.5), height=_BAND, class_=f"surface c{stretch.colour}"
        )
    for moment in moments[:_MOST_STRETCHES]:
        x = axis.between(_LEFT, _RIGHT, moment.at)
        yield element("line", x1=x, x2=x, y1=_TOP - 6, y2=_TOP + _BAND, class_="mark")
        yield label(x, _TOP - 9, moment.sign, "sign", "middle")
    yield from _ticks(axis, _LEFT, _RIGHT, (_FLOOR - 4, _FLOOR), "axis", _FLOOR + 12)
    yield label((_LEFT + _RIGHT) / 2, STRIP_HEIGHT - 6, axis.label, "name", "middle")


# ----------------------------------------------------------------------------------------------------
# Lines and points over two axes.


# Small enough to be legible on a phone, which shows it at nine tenths of this size.
WIDTH, HEIGHT = 400.0, 250.0
_PLOT_LEFT, _PLOT_RIGHT, _PLOT_TOP, _PLOT_FLOOR = 60.0, WIDTH - 14.0, 14.0, HEIGHT - 40.0
_MOST_POINTS = 400
# Height of a line of text; closer names of points would overlap.
_LINE = 13.0


@dataclass(frozen=True)
class Line:
    """Points in one of the page's colours (1 to 6), joined by a line if `joined`."""

    points: Sequence[tuple[float, float]]
    colour: int = 1
    dashed: bool = False
    marked: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Level:
    """A value to compare with: a dashed line across, with its name."""

    value: float
    name: str


@dataclass(frozen=True)
class Spot:
    """One point with its name beside or above it."""

    x: float
    y: float
    name: str
    colour: int = 1
    is_above: bool = False


@dataclass(frozen=True)
class Plot:
    title: str
    description: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    levels: Sequence[Level] = ()
    spots: Sequence[Spot] = ()

    def draw(self) -> Markup:
        return drawing(
            self.title,
            self.description,
            WIDTH,
            HEIGHT,
            [*self._frame(), *self._levels(), *self._lines(), *self._spots()],
        )

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return self.x.between(_PLOT_LEFT, _PLOT_RIGHT, x), self.y.between(_PLOT_FLOOR, _PLOT_TOP, y)

    def _frame(self) -> Iterator[Markup]:
        floor, end = _PLOT_FLOOR, _PLOT_RIGHT
        for value, name in self.y.marks():
            y = self.y.between(floor, _PLOT_TOP, value)
            yield element("line", x1=_PLOT_LEFT, x2=end, y1=y, y2=y, class_="grid")
            yield label(_PLOT_LEFT - 6, y + 4, name, "tick", "end")
        yield from _ticks(self.x, _PLOT_LEFT, end, (floor, floor + 4), "axis", floor + 16)
        yield element("line", x1=_PLOT_LEFT, x2=end, y1=floor, y2=floor, class_="axis")
        yield label((_PLOT_LEFT + end) / 2, HEIGHT - 5, self.x.label, "name", "middle")
        middle = (_PLOT_TOP + floor) / 2
        yield element(
            "text", self.y.label, x=12, y=middle, text_anchor="middle", class_="name",
            transform=f"rotate(-90 12 {middle:g})",
        )  # fmt: skip

    def _levels(self) -> Iterator[Markup]:
        for level in self.levels:
            y = self.y.between(_PLOT_FLOOR, _PLOT_TOP, level.value)
            yield element("line", x1=_PLOT_LEFT, x2=_PLOT_RIGHT, y1=y, y2=y, class_="level")
            above = y - 5 if y > _PLOT_TOP + 12 else y + 14
            yield label(_PLOT_RIGHT - 2, above, level.name, "level-name", "end")

    def _lines(self) -> Iterator[Markup]:
        for line in self.lines:
            known = thinned([point for point in line.points if all(map(math.isfinite, point))])
            places = [self._at(*point) for point in known]
            if line.joined and len(places) > 1:
                yield path(places, f"line c{line.colour}" + (" dashed" if line.dashed else ""))
            if line.marked or len(places) == 1:
                for x, y in places if len(places) <= 100 or not line.joined else places[-1:]:
                    yield element("circle", cx=x, cy=y, r=2.6, class_=f"dot c{line.colour}")

    def _spots(self) -> Iterator[Markup]:
        taken: list[tuple[float, float]] = []
        for spot in self.spots:
            x, y = self._at(spot.x, spot.y)
            yield element("circle", cx=x, cy=y, r=4, class_=f"dot c{spot.colour}")
            if spot.is_above:
                yield label(min(x, _PLOT_RIGHT - 14), y - 9, spot.name, "spot", "middle")
                continue
            right = x < WIDTH * 0.6
            place = _free(x + (8 if right else -8), y + 4, taken)
            taken.append(place)
            yield label(*place, spot.name, "spot", "start" if right else "end")


def thinned(points: Sequence[tuple[float, float]], most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` of `points`: the lowest and the highest of each stretch."""
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
    """The nearest free place at or above (x, y)."""
    while (
        any(abs(x - other) < WIDTH / 3 and abs(y - height) < _LINE for other, height in taken) and y > _PLOT_TOP + _LINE
    ):
        y -= _LINE
    return x, y
