"""The nine systems of the project's page, computed again: which exponent gives what was published, and which does not.

VFLOPS = 23 GFLOP x 90 epochs x 1,281,167 images / time x (quality / 0.763)^n, in the edition's numbers. Rates are in
FLOPS, times in seconds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from textwrap import wrap
from typing import Any

from hpcai500.methodology.trials import flops_rate, penalty_coefficient, valid_flops
from hpcai500.recipe import benchmark_rules
from hpcai500.text import aligned

# The exponent that the page and V2.0 section 4.4.1 state, and the one that the page's numbers were computed with.
STATED, USED = 5, 10
_PETA = 1e15
_MINUTE = 60.0
_HALF = Decimal("0.5")


@dataclass(frozen=True)
class Span:
    """The values that rounded numbers allow."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Recomputed:
    """VFLOPS by one exponent.

    Attributes:
        vflops: from the published time and quality as they stand.
        span: what `vflops` may be, as time and quality were rounded to their last digit.
        ratio: `vflops` over what was published.
        explains: whether what was published lies within `span`.
    """

    exponent: int
    vflops: float
    span: Span
    ratio: float
    explains: bool


@dataclass(frozen=True)
class Published:
    """One row of the page; None where the page lacks a number, or what would be computed from it.

    Attributes:
        system: as the page calls it; so are `accelerators` and `framework`.
        source: the paper or report that the page cites for it.
        vflops: as published.
        quality: the published top-1 accuracy, as a fraction.
        notes: what the page leaves out, or what contradicts it.
        flops: from the time alone; `flops_span` is what it may be, as the minutes were rounded.
        stated: by the exponent that the page states.
        used: by the exponent that its numbers were computed with.
        title_seconds: a time that the title of the source states more exactly than the page.
    """

    rank: int
    system: str
    source: str
    vflops: float
    seconds: float | None
    quality: float | None
    accelerators: str
    framework: str
    notes: Sequence[str]
    flops: float | None
    flops_span: Span | None
    stated: Recomputed | None
    used: Recomputed | None
    title_seconds: float | None = None


@dataclass(frozen=True)
class Page:
    """The page; `statement` is what it says of its data."""

    title: str
    statement: str
    systems: Sequence[Published]


@cache
def published_page() -> Page:
    """The page as this package has it (published.toml), each row computed again."""
    text = files("hpcai500.results.ranking").joinpath("published.toml").read_text(encoding="utf-8")
    page = tomllib.loads(text)
    rules = benchmark_rules(page["edition"], page["benchmark"])
    return Page(page["title"], page["statement"], tuple(_published(row, rules) for row in page["systems"]))


def flops_of(seconds: float, rules: Mapping[str, Any]) -> float:
    """FLOPS of the reference run, by the paper's constant, if it takes `seconds`."""
    images = rules["training_samples"] * rules["epochs"]
    return flops_rate(images, rules["paper_flops_per_sample"], seconds)


def rounding_span(text: str) -> tuple[Decimal, Decimal]:
    """Lowest and highest number that rounds to `text`: `1.2` may be 1.15 to 1.25."""
    value = Decimal(text)
    half = _HALF.scaleb(int(value.as_tuple().exponent))
    return value - half, value + half


def _published(row: Mapping[str, Any], rules: Mapping[str, Any]) -> Published:
    minutes, percent, title = row.get("minutes"), row.get("quality_percent"), row.get("title_seconds")
    vflops = float(row["vpflops"]) * _PETA
    seconds = float(minutes) * _MINUTE if minutes else None
    slowest, fastest = (float(edge) * _MINUTE for edge in reversed(rounding_span(minutes))) if minutes else (None, None)
    both = {n: _recomputed(minutes, percent, n, vflops, rules) if minutes and percent else None for n in (STATED, USED)}
    return Published(
        rank=row["rank"],
        system=row["system"],
        source=row["source"],
        vflops=vflops,
        seconds=seconds,
        quality=float(Decimal(percent) / 100) if percent else None,
        accelerators=row["accelerators"],
        framework=row["framework"],
        notes=tuple(row["notes"]),
        flops=flops_of(seconds, rules) if seconds else None,
        flops_span=Span(flops_of(slowest, rules), flops_of(fastest, rules)) if slowest and fastest else None,
        stated=both[STATED],
        used=both[USED],
        title_seconds=float(title) if title else None,
    )


def _recomputed(minutes: str, percent: str, exponent: int, published: float, rules: Mapping[str, Any]) -> Recomputed:
    def at(minute: Decimal, quality_percent: Decimal) -> float:
        coefficient = penalty_coefficient(float(quality_percent / 100), rules["target_quality"], exponent)
        return valid_flops(flops_of(float(minute) * _MINUTE, rules), coefficient)

    vflops = at(Decimal(minutes), Decimal(percent))
    shortest, longest = rounding_span(minutes)
    worst, best = rounding_span(percent)
    span = Span(at(longest, worst), at(shortest, best))
    return Recomputed(exponent, vflops, span, vflops / published, span.holds(published))


# ----------------------------------------------------------------------------------------------------
# The comparison in words, for a terminal, and as JSON.


_WIDTH = 100
# A smaller difference is shown as 0.0 %.
_EQUAL = 5e-4
METHOD = (
    "VFLOPS = 23 GFLOP x 90 epochs x 1,281,167 images / time x (quality / 0.763)^n. "
    "In brackets: what rounding of the published minutes and quality allows."
)
CONCLUSION = (
    "The page, like V2.0 section 4.4.1, states n = 5 for Image Classification; its numbers were computed with n = 10. "
    "Every system whose time and quality are published, and whose quality is not the target itself, is reproduced by "
    "n = 10 within rounding, and none of them by n = 5. This project follows the statement: n = 5."
)


def explanation(published: Published) -> str:
    """Why the published number is, or is not, what its own time and quality give."""
    if published.stated is None or published.used is None:
        return _of_missing(published)
    if published.stated.vflops == published.used.vflops:
        return _of_target(published, published.used)
    text = (
        f"n = {USED} gives {_peta(published.used.vflops)}, {_off(published.used)} and {_inside(published.used)} what "
        f"rounding allows; n = {STATED} gives {_peta(published.stated.vflops)}, {_off(published.stated)} and "
        f"{_inside(published.stated)} it: the published number was computed with n = {USED}."
    )
    return text + _of_title(published)


def published_lines(page: Page) -> Iterator[str]:
    """The page and its recomputation, for a terminal."""
    yield page.title
    yield f'"{page.statement}" (PFLOPS; not verified here either, and never part of a ranking)'
    yield ""
    header = ("rank", "system", "minutes", "quality", "published", "n = 5", "", "n = 10", "", "ratio n = 5", "n = 10")
    rows = [
        (
            str(one.rank),
            one.system,
            minutes(one),
            percent(one),
            f"{one.vflops / _PETA:.2f}",
            value(one.stated),
            span(one.stated),
            value(one.used),
            span(one.used),
            ratio(one.stated),
            ratio(one.used),
        )
        for one in page.systems
    ]
    yield from aligned([header, *rows], right={0, 2, 3, 4, 5, 7, 9, 10})
    yield ""
    yield from wrap(METHOD, _WIDTH)
    yield from wrap(CONCLUSION, _WIDTH)
    yield ""
    for one in page.systems:
        yield from wrap(f"{one.system}: {explanation(one)}", _WIDTH, subsequent_indent="    ")
        for note in one.notes:
            yield from wrap(note, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def published_document(page: Page) -> list[dict[str, Any]]:
    """As JSON: FLOPS, seconds and fractions, never scaled; what is missing is null."""
    return [
        {
            "rank": one.rank,
            "system": one.system,
            "verified": False,
            "source": one.source,
            "accelerators": one.accelerators,
            "framework": one.framework,
            "seconds": one.seconds,
            "quality": one.quality,
            "flops": one.flops,
            "flops_interval": _span_document(one.flops_span),
            "published_vflops": one.vflops,
            "vflops_n5": one.stated.vflops if one.stated else None,
            "vflops_n10": one.used.vflops if one.used else None,
            "vflops_n5_interval": _span_document(one.stated.span if one.stated else None),
            "vflops_n10_interval": _span_document(one.used.span if one.used else None),
            "ratio_n5": one.stated.ratio if one.stated else None,
            "ratio_n10": one.used.ratio if one.used else None,
            "rounding_explains_n5": one.stated.explains if one.stated else None,
            "rounding_explains_n10": one.used.explains if one.used else None,
            "explanation": explanation(one),
            "notes": list(one.notes),
        }
        for one in page.systems
    ]


def minutes(published: Published) -> str:
    return "not published" if published.seconds is None else f"{published.seconds / _MINUTE:g}"


def percent(published: Published) -> str:
    return "not published" if published.quality is None else f"{100 * published.quality:.1f} %"


def value(recomputed: Recomputed | None) -> str:
    """VFLOPS in PFLOPS, with as many digits as the page has."""
    return "unknown" if recomputed is None else f"{recomputed.vflops / _PETA:.2f}"


def span(recomputed: Recomputed | None) -> str:
    """What rounding allows, in PFLOPS."""
    return "" if recomputed is None else f"[{recomputed.span.low / _PETA:.2f}, {recomputed.span.high / _PETA:.2f}]"


def ratio(recomputed: Recomputed | None) -> str:
    """Computed VFLOPS over published VFLOPS."""
    return "unknown" if recomputed is None else f"{recomputed.ratio:.3f}"


def _of_missing(published: Published) -> str:
    missing = " and ".join(
        name for name, known in (("time", published.seconds), ("quality", published.quality)) if known is None
    )
    said = f"The {missing} is not published, so neither n = {STATED} nor n = {USED} can be computed."
    if published.flops is None or published.flops_span is None:
        return said
    return (
        f"{said} From the time alone FLOPS are {_peta(published.flops)} "
        f"({published.flops_span.low / _PETA:.2f} to {published.flops_span.high / _PETA:.2f} within rounding), and "
        f"{_peta(published.vflops)} were published: a penalty coefficient of "
        f"{published.vflops / published.flops:.3f}. A quality close to the target 76.3 % gives that with any n."
    )


def _of_target(published: Published, used: Recomputed) -> str:
    assert published.seconds is not None
    said = "The quality is the target, so the penalty coefficient is 1 and n does not matter: "
    if used.explains:
        return f"{said}{_peta(used.vflops)} is what was published within rounding."
    needed = published.seconds * used.ratio / _MINUTE
    return (
        f"{said}{_peta(used.vflops)}, {_off(used)}. Rounding does not explain it, with either n; a time of "
        f"{needed:.1f} minutes would. Why it differs is not known."
    )


def _of_title(published: Published) -> str:
    if published.title_seconds is None or published.quality is None:
        return ""
    rules = benchmark_rules("v2.0", "ic")
    coefficient = penalty_coefficient(published.quality, rules["target_quality"], USED)
    vflops = valid_flops(flops_of(published.title_seconds, rules), coefficient)
    return (
        f" The title of the source has the time as {published.title_seconds:g} seconds, which with n = {USED} would "
        f"give {_peta(vflops)}."
    )


def _peta(flops: float) -> str:
    return f"{flops / _PETA:.2f} PFLOPS"


def _off(recomputed: Recomputed) -> str:
    if abs(recomputed.ratio - 1) < _EQUAL:
        return "equal to its last digit"
    return f"{abs(recomputed.ratio - 1):.1%} {'above' if recomputed.ratio >= 1 else 'below'}".replace("%", " %")


def _inside(recomputed: Recomputed) -> str:
    return "within" if recomputed.explains else "outside"


def _span_document(span: Span | None) -> list[float] | None:
    return None if span is None else [span.low, span.high]
