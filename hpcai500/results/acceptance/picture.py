"""Every criterion as a row: what is accepted, what was measured, its interval, in per cent of what is contracted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from hpcai500.results.acceptance.criteria import Judged
from hpcai500.results.report.scales import Axis
from hpcai500.results.report.svg import drawing, element, label

WIDTH = 400.0
_ROW, _FOOT, _TOP, _RIGHT = 22.0, 38.0, 6.0, 16.0
# As wide as most letters are on a phone, where they are larger.
_LETTER, _MOST_LETTERS = 8.2, 20
# What lies further from the contract is drawn at the edge, with its number.
_LEAST, _MOST = 75.0, 125.0
_GOOD, _BAD, _RUN = 3, 4, 6
# More dots than this show no more.
_MOST_DOTS = 60


def margins(criteria: Sequence[Judged]) -> Markup:
    """The drawing of those that were measured."""
    rows = [one for one in criteria if one.measured is not None]
    left = 10 + _LETTER * min(_MOST_LETTERS, max((len(one.name) for one in rows), default=0))
    height = _TOP + _ROW * len(rows) + _FOOT
    axis = _axis(rows)
    said = "; ".join(f"{one.name}: {_percent(one, one.measured or 0.0):.4g} % of the contract" for one in rows)
    return drawing("Measured against contracted", said, WIDTH, height, _parts(rows, axis, left, height))


def _axis(rows: Sequence[Judged]) -> Axis:
    """From the lowest to the highest of all that is drawn, within reason."""
    shown = [100.0]
    for one in rows:
        ends = (*one.values, *(one.interval or ()), one.limits.lowest, one.limits.highest)
        shown += [min(_MOST, max(_LEAST, _percent(one, end))) for end in ends if end is not None]
    room = 0.08 * (max(shown) - min(shown)) or 5.0
    return Axis("per cent of the contracted value", min(shown) - room, max(shown) + room)


def _percent(one: Judged, value: float) -> float:
    return value / one.limits.reference * 100


def _parts(rows: Sequence[Judged], axis: Axis, left: float, height: float) -> Iterator[Markup]:
    right, floor = WIDTH - _RIGHT, height - _FOOT

    def across(percent: float) -> float:
        return left + axis.place(percent) * (right - left)

    for value, name in axis.marks():
        yield element("line", x1=across(value), x2=across(value), y1=2, y2=floor, class_="grid")
        yield label(across(value), floor + 14, name, "tick", "middle")
    yield label((left + right) / 2, height - 6, axis.label, "name", "middle")
    for number, one in enumerate(rows):
        middle = _TOP + _ROW * (number + 0.5)
        yield from _row(one, middle, axis, left, right)
    yield element("line", x1=across(100), x2=across(100), y1=2, y2=floor, class_="level")


def _row(one: Judged, middle: float, axis: Axis, left: float, right: float) -> Iterator[Markup]:
    def across(value: float) -> float:
        return left + axis.place(_percent(one, value)) * (right - left)

    lowest, highest = one.limits.lowest, one.limits.highest
    start, stop = left if lowest is None else across(lowest), right if highest is None else across(highest)
    yield element("rect", x=start, y=middle - 8, width=max(0.5, stop - start), height=16, class_="ground")
    for edge in (lowest, highest):
        if edge is not None:
            yield element("line", x1=across(edge), x2=across(edge), y1=middle - 9, y2=middle + 9, class_="mark")
    if one.interval:
        low, high = map(across, one.interval)
        yield element("line", x1=low, x2=high, y1=middle, y2=middle, class_="mark")
        for end in (low, high):
            yield element("line", x1=end, x2=end, y1=middle - 4, y2=middle + 4, class_="mark")
    if len(one.values) > 1:
        for value in one.values[:_MOST_DOTS]:
            yield element("circle", cx=across(value), cy=middle, r=1.8, class_=f"dot c{_RUN}")
    measured, colour = one.measured or 0.0, _GOOD if one.verdict == "pass" else _BAD
    yield element("circle", cx=across(measured), cy=middle, r=4, class_=f"dot c{colour}")
    percent = _percent(one, measured)
    if not axis.low <= percent <= axis.high:
        is_low = percent < axis.low
        words = f"◂ {percent:,.3g}" if is_low else f"{percent:,.3g} ▸"
        yield label(across(measured) + (7 if is_low else -7), middle + 4, words, "value", "start" if is_low else "end")
    name = one.name if len(one.name) <= _MOST_LETTERS else f"{one.name[: _MOST_LETTERS - 1]}…"
    yield label(left - 6, middle + 4, name, "label", "end")
