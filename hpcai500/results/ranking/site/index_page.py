"""The first page: all lists, bars, and what has no place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from hpcai500.results.ranking.cleaning import shown
from hpcai500.results.ranking.entries import Unranked, benchmark_title
from hpcai500.results.ranking.ranking import Group, Ranked, Ranking
from hpcai500.results.ranking.site.bars import MOST_BARS, Bar, bar_chart
from hpcai500.results.ranking.site.names import page_name, place_of
from hpcai500.results.ranking.site.rendering import site_page
from hpcai500.results.ranking.text import date_text, unranked_title
from hpcai500.results.report.blocks import Chart, Tile
from hpcai500.results.report.words import count, duration, plain, quantity, share, short

_MOST_PATH = 120
_STATUS = {
    "unverified": "unverified", "not-rankable": "not rankable", "disputed": "disputed", "duplicate": "duplicate",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A heading; `first` is the direction that its first click gives, `sorted` how the table stands."""

    name: str
    sort: Literal["number", "text"]
    first: Literal["", "descending"] = ""
    sorted: Literal["", "ascending", "descending"] = ""

    @property
    def numeric(self) -> bool:
        """Whether its cells end at one edge."""
        return self.sort == "number"


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by (None: its text; empty: unknown, so last), and what stands below."""

    text: str
    value: float | str | None = None
    below: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class TableRow:
    """One submission."""

    key: str
    href: str | None
    place: int
    system: str
    organisation: str
    level: str
    date: str
    ranks: Sequence[tuple[str, int]]
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Shown:
    """One group of the ranking."""

    anchor: str
    benchmark: str
    title: str
    edition: str
    caption: str
    chart: Chart
    rows: Sequence[TableRow]

    @property
    def drawn(self) -> int:
        """Rows that have a bar."""
        return min(MOST_BARS, len(self.rows))

    @property
    def left_out(self) -> bool:
        """Whether some have none."""
        return self.drawn < len(self.rows)


COLUMNS = (
    Column("Rank", "number"),
    Column("System", "text"),
    Column("VFLOPS", "number", "descending", "descending"),
    Column("Level", "text"),
    Column("per watt", "number", "descending"),
    Column("Time to quality", "number"),
    Column("Quality", "number", "descending"),
    Column("Accelerators", "text"),
    Column("Framework", "text"),
    Column("Submitted", "text", "descending"),
)


def index_page(ranking: Ranking, made: date) -> str:
    """`index.html`."""
    benchmarks = {group.benchmark: benchmark_title(group.benchmark) for group in ranking.groups}
    return site_page(
        "ranking.html.j2",
        script=True,
        made=made,
        title="Ranking of HPC AI systems",
        here="Ranking",
        is_here=True,
        tiles=_tiles(ranking),
        benchmarks=list(benchmarks.items()),
        columns=COLUMNS,
        groups=[_shown(group, number) for number, group in enumerate(ranking.groups, 1)],
        unranked=[_unranked(one) for one in ranking.unranked],
    )


def _tiles(ranking: Ranking) -> list[Tile]:
    leaders = [(group, group.entries[0].entry) for group in ranking.groups[:2]]
    ranked = sum(len(group.entries) for group in ranking.groups)
    return [
        *(
            Tile(
                f"First in {benchmark_title(group.benchmark)}", quantity(first.vflops, "FLOPS"), short(first.system, 60)
            )
            for group, first in leaders
        ),
        Tile("Ranked", str(ranked), "verified, by the rules of a level"),
        Tile("Not ranked", str(len(ranking.unranked)), "with the reason of each"),
    ]


def _shown(group: Group, number: int) -> Shown:
    title = benchmark_title(group.benchmark)
    bars = [_bar(one) for one in group.entries]
    ranked = count(len(group.entries), "ranked submission")
    return Shown(
        anchor=f"group-{number}",
        benchmark=group.benchmark,
        title=title,
        edition=group.edition,
        caption=f"{title}, edition {group.edition}: {ranked}, most VFLOPS first",
        chart=bar_chart(f"VFLOPS of {title}", bars),
        rows=[_row(one) for one in group.entries],
    )


def _bar(ranked: Ranked) -> Bar:
    entry = ranked.entry
    return Bar(
        key=place_of(entry.examined),
        place=ranked.ranks["free"],
        system=entry.system,
        implementation=entry.implementation,
        vflops=entry.vflops,
        seconds=entry.mean("time_to_quality_seconds"),
    )


def _row(ranked: Ranked) -> TableRow:
    entry = ranked.entry
    name = page_name(entry.examined)
    return TableRow(
        key=place_of(entry.examined),
        href=name and f"submissions/{name}",
        place=ranked.ranks["free"],
        system=entry.system,
        organisation=entry.organisation,
        level=entry.level,
        date=entry.submitted.isoformat() if entry.submitted else "",
        ranks=list(ranked.ranks.items()),
        cells=list(_cells(ranked)),
    )


def _cells(ranked: Ranked) -> Sequence[Cell]:
    entry, quality = ranked.entry, ranked.entry.quality
    summary, seconds = entry.metrics["vflops"], entry.mean("time_to_quality_seconds")
    per_watt, achieved = entry.mean("vflops_per_watt"), quality.achieved
    spread = f"±{share(summary.variation)}, {entry.trials} trials"
    return (
        Cell(quantity(entry.vflops, "FLOPS"), entry.vflops, spread, numeric=True),
        Cell(entry.level, below=f"rank {ranked.rank}"),
        Cell(quantity(per_watt, "FLOPS/W"), _sortable(per_watt), numeric=True),
        Cell("never" if seconds is None else duration(seconds), _sortable(seconds), numeric=True),
        Cell(plain(achieved, ".4f"), _sortable(achieved), f"{quality.metric}, target {quality.target:g}", numeric=True),
        Cell(entry.accelerators, below=f"{count(entry.world_size, 'rank')}, {count(entry.nodes, 'node')}"),
        Cell(entry.framework, below=entry.implementation),
        Cell(date_text(entry), entry.submitted.isoformat() if entry.submitted else ""),
    )


def _sortable(value: float | None) -> float | str:
    return "" if value is None else value


def _unranked(one: Unranked) -> Mapping[str, str | None]:
    name = page_name(one.examined)
    return {
        "title": unranked_title(one),
        "href": f"submissions/{name}" if name else None,
        "file": shown(one.examined.file.name, _MOST_PATH),
        "status": _STATUS[one.status],
        "tone": "bad" if one.status == "unverified" else "flag",
        "reason": one.reason,
    }
