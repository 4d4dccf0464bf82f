"""Lying bars, of one part or of several behind each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hpcai500.results.report.scales import Axis
from hpcai500.results.report.svg import drawing, element, label

WIDTH = 400.0
_ROW, _BAR, _FOOT, _NUMBER = 22.0, 14.0, 38.0, 84.0
# As wide as most letters are on a phone, where they are larger.
_LETTER = 8.2
_MOST_LETTERS = 20


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its parts in the axis' unit, each in a colour (1 to 6), and the text behind it."""

    name: str
    parts: Sequence[float]
    colours: Sequence[int] = (1, 2, 3, 4, 5, 6)
    text: str = ""


def bars(title: str, description: str, axis: Axis, rows: Sequence[Bar], level: float | None = None) -> Markup:
    """A drawing of `rows`, top down; `level` is marked by a dashed line across all."""
    left = 10 + _LETTER * min(_MOST_LETTERS, max((len(row.name) for row in rows), default=0))
    right = WIDTH - (_NUMBER if any(row.text for row in rows) else 14)
    height = 6 + _ROW * len(rows) + _FOOT
    inside = [*_frame(axis, left, right, height), *_surfaces(rows, axis, left, right)]
    if level is not None:
        x = left + axis.place(level) * (right - left)
        inside.append(element("line", x1=x, x2=x, y1=2, y2=height - _FOOT, class_="level"))
    return drawing(title, description, WIDTH, height, [*inside, *_words(rows, axis, left, right)])


def _frame(axis: Axis, left: float, right: float, height: float) -> Iterator[Markup]:
    floor = height - _FOOT
    for value, name in axis.marks():
        x = left + axis.place(value) * (right - left)
        yield element("line", x1=x, x2=x, y1=2, y2=floor, class_="grid")
        yield label(x, floor + 14, name, "tick", "middle")
    yield label((left + right) / 2, height - 6, axis.label, "name", "middle")


def _surfaces(rows: Sequence[Bar], axis: Axis, left: float, right: float) -> Iterator[Markup]:
    for number, row in enumerate(rows):
        behind = 0.0
        for part, colour in zip(row.parts, row.colours, strict=False):
            start, stop = (left + axis.place(edge) * (right - left) for edge in (behind, behind + part))
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
            end = left + axis.place(sum(row.parts)) * (right - left)
            yield label(end + 5, line, row.text, "value")
