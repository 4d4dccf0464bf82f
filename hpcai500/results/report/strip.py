"""A run along its clock: what it did when, as coloured stretches, and what happened to it, as marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hpcai500.results.report.scales import Axis
from hpcai500.results.report.svg import drawing, element, label

WIDTH, HEIGHT = 400.0, 92.0
_LEFT, _RIGHT, _TOP, _BAND, _FLOOR = 10.0, 16.0, 22.0, 26.0, 54.0
# More stretches than pixels show nothing.
_MOST_STRETCHES = 500


@dataclass(frozen=True)
class Stretch:
    """From `start` to `stop` in seconds, in one of the page's colours."""

    start: float
    stop: float
    colour: int


@dataclass(frozen=True)
class Happening:
    """A moment with a name of one letter or sign."""

    at: float
    sign: str


def strip(
    title: str, description: str, axis: Axis, stretches: Sequence[Stretch], happenings: Sequence[Happening]
) -> Markup:
    """The drawing."""
    return drawing(title, description, WIDTH, HEIGHT, _parts(axis, stretches, happenings))


def _parts(axis: Axis, stretches: Sequence[Stretch], happenings: Sequence[Happening]) -> Iterator[Markup]:
    def across(seconds: float) -> float:
        return _LEFT + axis.place(seconds) * (WIDTH - _LEFT - _RIGHT)

    yield element("rect", x=_LEFT, y=_TOP, width=WIDTH - _LEFT - _RIGHT, height=_BAND, class_="ground")
    for stretch in stretches[:_MOST_STRETCHES]:
        start, stop = across(stretch.start), across(stretch.stop)
        yield element(
            "rect", x=start, y=_TOP, width=max(stop - start, 0.5), height=_BAND, class_=f"surface c{stretch.colour}"
        )
    for happening in happenings[:_MOST_STRETCHES]:
        x = across(happening.at)
        yield element("line", x1=x, x2=x, y1=_TOP - 6, y2=_TOP + _BAND, class_="mark")
        yield label(x, _TOP - 9, happening.sign, "sign", "middle")
    for value, name in axis.marks():
        x = across(value)
        yield element("line", x1=x, x2=x, y1=_FLOOR - 4, y2=_FLOOR, class_="axis")
        yield label(x, _FLOOR + 12, name, "tick", "middle")
    yield label((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, axis.label, "name", "middle")
