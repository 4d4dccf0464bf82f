"""The nine systems of the project's page, computed again: which exponent gives what was published, and which does not.

VFLOPS = 23 GFLOP x 90 epochs x 1,281,167 images / time x (quality / 0.763)^n, in the edition's numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

from hpcai500.editions import benchmark_rules
from hpcai500.methodology.score import flops_rate, penalty_coefficient, valid_flops

# The exponent that the page and V2.0 section 4.4.1 state, and the one that its numbers were computed with.
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
        """Whether `value` is one of them."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Recomputed:
    """VFLOPS by one exponent.

    Attributes:
        exponent: n.
        vflops: from the published time and quality as they stand.
        span: what it may be where both were rounded to their last digit.
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
    """One row of the page.

    Attributes:
        rank: its place.
        system: as the page calls it.
        source: the paper or report that the page cites for it.
        vflops: as published, in FLOPS.
        seconds: the published minutes, in seconds; None where there are none.
        quality: the published top-1 accuracy; None where there is none.
        accelerators: as published.
        framework: as published.
        notes: what the page leaves out, or what contradicts it.
        flops: from the time alone; None where there is none.
        flops_span: what they may be where the minutes were rounded.
        stated: by the exponent that the page states; None where time or quality is missing.
        used: by the exponent that its numbers were computed with.
        title_seconds: time that the title of the source states more exactly than the page.
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
    """The page: its title, what it says of its data, its rows."""

    title: str
    statement: str
    systems: Sequence[Published]


@cache
def published_page() -> Page:
    """The page as it lies in this package, each row computed again."""
    text = files("hpcai500.results.ranking").joinpath("published.toml").read_text(encoding="utf-8")
    page = tomllib.loads(text)
    rules = benchmark_rules(page["edition"], page["benchmark"])
    return Page(page["title"], page["statement"], tuple(_published(row, rules) for row in page["systems"]))


def flops_of(seconds: float, rules: Mapping[str, Any]) -> float:
    """FLOPS of the reference run by the paper's constant, if it takes `seconds`."""
    images = rules["training_samples"] * rules["epochs"]
    return flops_rate(images, rules["paper_flops_per_sample"], seconds)


def rounding_span(text: str) -> tuple[Decimal, Decimal]:
    """The numbers that are written `text` when rounded to its last digit: `1.2` may be 1.15 to 1.25."""
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
