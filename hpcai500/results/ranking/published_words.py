"""The published systems for people and programs: each difference in words."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from hpcai500.editions import benchmark_rules
from hpcai500.methodology.score import penalty_coefficient, valid_flops
from hpcai500.results.columns import aligned
from hpcai500.results.ranking.published import STATED, USED, Page, Published, Recomputed, Span, flops_of

_PETA = 1e15
_MINUTE = 60.0
_WIDTH = 100
# What rounds to 0.0 %.
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
    """For programs: FLOPS, seconds and fractions, never scaled; what is missing is null."""
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
    """Its time as the page has it."""
    return "not published" if published.seconds is None else f"{published.seconds / _MINUTE:g}"


def percent(published: Published) -> str:
    """Its quality as the page has it."""
    return "not published" if published.quality is None else f"{100 * published.quality:.1f} %"


def value(recomputed: Recomputed | None) -> str:
    """VFLOPS in PFLOPS, as many digits as the page has."""
    return "unknown" if recomputed is None else f"{recomputed.vflops / _PETA:.2f}"


def span(recomputed: Recomputed | None) -> str:
    """What rounding allows, in PFLOPS."""
    return "" if recomputed is None else f"[{recomputed.span.low / _PETA:.2f}, {recomputed.span.high / _PETA:.2f}]"


def ratio(recomputed: Recomputed | None) -> str:
    """Computed over published."""
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
