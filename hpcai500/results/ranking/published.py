"""The nine systems of the project's page, computed again with both exponents.

VFLOPS = 23 GFLOP x 90 epochs x 1,281,167 images / time x (quality / 0.763)^n, in the edition's numbers. Rates are in
FLOPS, times in seconds. published.toml holds the page's numbers, and an explanation of each difference.
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

# The exponent that the page and V2.0 section 4.4.1 state, and the one that gives the page's numbers.
STATED, USED = 5, 10
METHOD = (
    "VFLOPS = 23 GFLOP x 90 epochs x 1,281,167 images / time x (quality / 0.763)^n. "
    "In brackets: the range that rounding of the published minutes and quality allows."
)
CONCLUSION = (
    "The page, like V2.0 section 4.4.1, states n = 5 for Image Classification, but its numbers were computed with n = "
    "10. Seven systems have a published time, and a published quality other than the target: n = 10 reproduces all of "
    "them within rounding, and n = 5 none. hpcai500 uses n = 5, as stated."
)
_PETA = 1e15
_MINUTE = 60.0
_HALF = Decimal("0.5")
_WIDTH = 100


@dataclass(frozen=True)
class Recomputed:
    """VFLOPS with one exponent.

    Attributes:
        vflops: from the published time and quality.
        interval: range of `vflops`, as time and quality were rounded to their last digit.
        ratio: `vflops` divided by the published VFLOPS.
        explains: whether the published VFLOPS are within `interval`.
    """

    vflops: float
    interval: tuple[float, float]
    ratio: float
    explains: bool


@dataclass(frozen=True)
class Published:
    """One row of the page; numbers that the page lacks, and numbers computed from them, are None.

    Attributes:
        system: as on the page, like `accelerators` and `framework`.
        source: the paper or report that the page cites.
        vflops: as published.
        quality: the published top-1 accuracy, as a fraction.
        explanation: whether time and quality give the published number, and why or why not.
        notes: facts that the page omits, or that contradict it.
        flops: from the time alone; `flops_interval` is its range, as the minutes were rounded.
        stated: with the exponent that the page states.
        used: with the exponent that gives the page's numbers.
    """

    rank: int
    system: str
    source: str
    accelerators: str
    framework: str
    explanation: str
    notes: Sequence[str]
    vflops: float
    seconds: float | None
    quality: float | None
    flops: float | None
    flops_interval: tuple[float, float] | None
    stated: Recomputed | None
    used: Recomputed | None


@dataclass(frozen=True)
class Page:
    """The page; `statement` is its remark on its data."""

    title: str
    statement: str
    systems: Sequence[Published]


@cache
def published_page() -> Page:
    """The page (published.toml), each row computed again."""
    text = files("hpcai500.results.ranking").joinpath("published.toml").read_text(encoding="utf-8")
    page = tomllib.loads(text)
    rules = benchmark_rules(page["edition"], page["benchmark"])
    return Page(page["title"], page["statement"], tuple(_published(row, rules) for row in page["systems"]))


def rounding_span(text: str) -> tuple[Decimal, Decimal]:
    """Lowest and highest number that rounds to `text`: `1.2` may be 1.15 to 1.25."""
    value = Decimal(text)
    half = _HALF.scaleb(int(value.as_tuple().exponent))
    return value - half, value + half


def _published(row: Mapping[str, Any], rules: Mapping[str, Any]) -> Published:
    minutes, percent, vflops = row.get("minutes"), row.get("quality_percent"), float(row["vpflops"]) * _PETA
    shortest, longest = rounding_span(minutes) if minutes else (None, None)
    both = {n: _recomputed(minutes, percent, n, vflops, rules) if minutes and percent else None for n in (STATED, USED)}
    return Published(
        rank=row["rank"],
        system=row["system"],
        source=row["source"],
        accelerators=row["accelerators"],
        framework=row["framework"],
        explanation=row["explanation"],
        notes=tuple(row["notes"]),
        vflops=vflops,
        seconds=float(minutes) * _MINUTE if minutes else None,
        quality=float(Decimal(percent) / 100) if percent else None,
        flops=_flops(minutes, rules) if minutes else None,
        flops_interval=(_flops(longest, rules), _flops(shortest, rules)) if shortest and longest else None,
        stated=both[STATED],
        used=both[USED],
    )


def _recomputed(minutes: str, percent: str, exponent: int, published: float, rules: Mapping[str, Any]) -> Recomputed:
    def at(minutes: Decimal, percent: Decimal) -> float:
        coefficient = penalty_coefficient(float(percent / 100), rules["target_quality"], exponent)
        return valid_flops(_flops(minutes, rules), coefficient)

    vflops = at(Decimal(minutes), Decimal(percent))
    shortest, longest = rounding_span(minutes)
    worst, best = rounding_span(percent)
    low, high = at(longest, worst), at(shortest, best)
    return Recomputed(vflops, (low, high), vflops / published, low <= published <= high)


def _flops(minutes: str | Decimal, rules: Mapping[str, Any]) -> float:
    """FLOPS of a reference run of so many minutes, with the paper's constant."""
    images = rules["training_samples"] * rules["epochs"]
    return flops_rate(images, rules["paper_flops_per_sample"], float(minutes) * _MINUTE)


# ----------------------------------------------------------------------------------------------------
# The comparison for a terminal, and as JSON.


def published_lines(page: Page) -> Iterator[str]:
    """The page and its recomputation, for a terminal."""
    yield page.title
    yield f'"{page.statement}" (PFLOPS; hpcai500 has not verified them either, and does not rank them)'
    yield ""
    header = ("rank", "system", "minutes", "quality", "published", "n = 5", "", "n = 10", "", "ratio n = 5", "n = 10")
    rows = [
        (
            str(one.rank),
            one.system,
            minutes(one),
            percent(one),
            petaflops(one.vflops),
            value(one.stated),
            interval(one.stated),
            value(one.used),
            interval(one.used),
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
        yield from wrap(f"{one.system}: {one.explanation}", _WIDTH, subsequent_indent="    ")
        for note in one.notes:
            yield from wrap(note, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def published_document(page: Page) -> list[dict[str, Any]]:
    """The page as JSON: FLOPS, seconds and fractions; missing numbers are null."""
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
            "flops_interval": one.flops_interval,
            "published_vflops": one.vflops,
            "vflops_n5": one.stated and one.stated.vflops,
            "vflops_n10": one.used and one.used.vflops,
            "vflops_n5_interval": one.stated and one.stated.interval,
            "vflops_n10_interval": one.used and one.used.interval,
            "ratio_n5": one.stated and one.stated.ratio,
            "ratio_n10": one.used and one.used.ratio,
            "rounding_explains_n5": one.stated and one.stated.explains,
            "rounding_explains_n10": one.used and one.used.explains,
            "explanation": one.explanation,
            "notes": list(one.notes),
        }
        for one in page.systems
    ]


def minutes(published: Published) -> str:
    return "not published" if published.seconds is None else f"{published.seconds / _MINUTE:g}"


def percent(published: Published) -> str:
    return "not published" if published.quality is None else f"{100 * published.quality:.1f} %"


def petaflops(vflops: float) -> str:
    """PFLOPS with as many digits as on the page."""
    return f"{vflops / _PETA:.2f}"


def value(recomputed: Recomputed | None) -> str:
    """VFLOPS in PFLOPS."""
    return "unknown" if recomputed is None else petaflops(recomputed.vflops)


def interval(recomputed: Recomputed | None) -> str:
    """The range that rounding allows, in PFLOPS."""
    return "" if recomputed is None else "[{:.2f}, {:.2f}]".format(*(end / _PETA for end in recomputed.interval))


def ratio(recomputed: Recomputed | None) -> str:
    """Computed VFLOPS divided by published VFLOPS."""
    return "unknown" if recomputed is None else f"{recomputed.ratio:.3f}"
