"""VFLOPS as bars, with the time to quality beside each (V2.0 Fig. 14); colours tell precision and compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hpcai500.results.report.blocks import Chart, Key
from hpcai500.results.report.scales import Axis, spanning
from hpcai500.results.report.svg import drawing, element, label
from hpcai500.results.report.words import duration, quantity, short

WIDTH = 400.0
MOST_BARS = 40
_TOP, _STEP, _BAR = 24.0, 40.0, 13.0
# VFLOPS up to here, and the widest number behind the longest bar; then the times.
_BAR_END, _TIMES, _TIMES_END = 222.0, 312.0, 394.0
_MOST_LETTERS = 32
# In this order precisions take the page's colours; there are no more than these.
_COLOURS = (1, 4, 3, 5, 2, 6)


@dataclass(frozen=True)
class Bar:
    """One system: its key in the table, its place, what is drawn of it."""

    key: str
    place: int
    system: str
    implementation: str
    vflops: float
    seconds: float | None


def bar_chart(title: str, bars: Sequence[Bar]) -> Chart:
    """The drawing of the first of `bars`, one below the other."""
    drawn = bars[:MOST_BARS]
    kinds = list(dict.fromkeys(bar.implementation for bar in drawn))
    colours = {kind: _COLOURS[min(index, len(_COLOURS) - 1)] for index, kind in enumerate(kinds)}
    rates = spanning("VFLOPS", [bar.vflops for bar in drawn])
    times = spanning("time to quality", [bar.seconds for bar in drawn if bar.seconds is not None])
    said = "; ".join(_said(bar) for bar in drawn)
    height = _TOP + _STEP * len(drawn)
    parts = [*_frame(), *(_bar(bar, row, rates, times, colours) for row, bar in enumerate(drawn))]
    return Chart(
        title,
        _marked(drawing(title, said, WIDTH, height, parts)),
        "Left: mean VFLOPS of the trials. Right: mean time to the target quality, an auxiliary metric.",
        [Key(kind, colour) for kind, colour in _legend(colours)],
    )


def _legend(colours: dict[str, int]) -> list[tuple[str, int]]:
    kinds = list(colours.items())
    many = len(kinds) - len(_COLOURS)
    return kinds if many <= 0 else [*kinds[: len(_COLOURS) - 1], (f"{many + 1} others", _COLOURS[-1])]


def _said(bar: Bar) -> str:
    time = "target quality not reached" if bar.seconds is None else f"{duration(bar.seconds)} to quality"
    return f"{bar.place}. {short(bar.system, 60)}: {quantity(bar.vflops, 'FLOPS')}, {time}"


def _frame() -> Iterator[Markup]:
    yield label(0, 12, "VFLOPS", "tick")
    yield label(_TIMES_END, 12, "time to quality", "tick", "end")


def _bar(bar: Bar, row: int, rates: Axis, times: Axis, colours: dict[str, int]) -> Markup:
    return element(
        "g",
        *_rate(bar, rates, colours[bar.implementation]),
        *_time(bar, times),
        data_entry=bar.key,
        transform=f"translate(0 {_TOP + _STEP * row:g})",
    )


def _rate(bar: Bar, rates: Axis, colour: int) -> Iterator[Markup]:
    end = rates.place(bar.vflops) * _BAR_END
    place = element("tspan", str(bar.place), class_="rank")
    yield element("text", place, f"  {short(bar.system, _MOST_LETTERS)}", x=0, y=11, class_="name")
    yield element("rect", x=0, y=16, width=max(end, 1.0), height=_BAR, rx=1.5, class_=f"surface c{colour}")
    yield label(end + 6, 27, quantity(bar.vflops, "FLOPS"), "value")


def _time(bar: Bar, times: Axis) -> Iterator[Markup]:
    middle = 16 + _BAR / 2
    yield element("line", x1=_TIMES, x2=_TIMES_END, y1=middle, y2=middle, class_="rule")
    yield label(_TIMES_END, 11, "never" if bar.seconds is None else duration(bar.seconds), "label", "end")
    if bar.seconds is not None:
        at = _TIMES + times.place(bar.seconds) * (_TIMES_END - _TIMES)
        yield element("line", x1=_TIMES, x2=at, y1=middle, y2=middle, class_="stem")
        yield element("circle", cx=at, cy=middle, r=4, class_="head")


def _marked(svg: Markup) -> Markup:
    """The drawing with what the script needs to close gaps."""
    return Markup(str(svg).replace("<svg ", f'<svg data-top="{_TOP:g}" data-step="{_STEP:g}" ', 1))  # noqa: S704 - escaped
