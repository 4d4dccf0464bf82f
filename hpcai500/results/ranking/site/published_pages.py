"""The page of the nine published systems."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from hpcai500.results.ranking.published import Page, Published, Recomputed
from hpcai500.results.ranking.published_words import (
    CONCLUSION,
    METHOD,
    explanation,
    minutes,
    percent,
    ratio,
    span,
    value,
)
from hpcai500.results.ranking.site.index_page import Column
from hpcai500.results.ranking.site.rendering import site_page

_PETA = 1e15
_COLUMNS = (
    Column("Rank", "number", sorted="ascending"),
    Column("System", "text"),
    Column("Minutes", "number"),
    Column("Quality", "number", "descending"),
    Column("Published", "number", "descending"),
    Column("By n = 5", "number", "descending"),
    Column("Ratio", "number", "descending"),
    Column("By n = 10", "number", "descending"),
    Column("Ratio", "number", "descending"),
)


@dataclass(frozen=True)
class _Cell:
    text: str
    value: float | str
    below: str = ""
    tone: str = ""


@dataclass(frozen=True)
class _Row:
    rank: int
    system: str
    accelerators: str
    framework: str
    source: str
    notes: tuple[str, ...]
    explanation: str
    cells: tuple[_Cell, ...]


def published_systems_page(page: Page, made: date) -> str:
    """`published.html`."""
    return site_page(
        "published.html.j2",
        script=True,
        made=made,
        title="The published systems, computed again",
        here="Published systems",
        is_here=True,
        caption=f"{page.title}; numbers in PFLOPS",
        method=METHOD,
        conclusion=CONCLUSION,
        columns=_COLUMNS,
        rows=[_row(one) for one in page.systems],
    )


def _row(one: Published) -> _Row:
    return _Row(
        one.rank, one.system, one.accelerators, one.framework, one.source, tuple(one.notes), explanation(one),
        (
            _Cell(minutes(one), "" if one.seconds is None else one.seconds),
            _Cell(percent(one), "" if one.quality is None else one.quality),
            _Cell(f"{one.vflops / _PETA:.2f}", one.vflops),
            *_recomputed(one.stated),
            *_recomputed(one.used),
        ),
    )  # fmt: skip


def _recomputed(one: Recomputed | None) -> tuple[_Cell, _Cell]:
    if one is None:
        return _Cell("unknown", ""), _Cell("unknown", "")
    judgement = "within rounding" if one.explains else "not by rounding"
    tone = "good" if one.explains else "bad"
    return _Cell(value(one), one.vflops, span(one)), _Cell(ratio(one), one.ratio, judgement, tone)
