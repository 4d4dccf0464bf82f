"""A ranking as static pages: readable by anybody, without script and without network.

Pages are index.html (all lists), one for each submission, the report of its runs, the documentation, and the nine
published systems. Beside them lie ranking.json and runs.json, which has what the site has shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from markupsafe import escape

import hpcai500
from hpcai500.campaign.journal import Campaign, GivenHeads
from hpcai500.errors import EnvironmentLacksError
from hpcai500.methodology.result import Result
from hpcai500.progress import Tracker, silent
from hpcai500.results.ranking.entries import (
    LEVELS,
    Examined,
    Facts,
    ReportMaker,
    Unranked,
    benchmark_title,
    examine,
    shown,
)
from hpcai500.results.ranking.published import (
    CONCLUSION,
    METHOD,
    Page,
    Published,
    Recomputed,
    interval,
    minutes,
    percent,
    published_page,
    ratio,
    value,
)
from hpcai500.results.ranking.ranking import (
    RUNS,
    Group,
    Ranked,
    Ranking,
    date_text,
    rank,
    ranking_document,
    read_shown,
    shown_text,
    unranked_title,
)
from hpcai500.results.ranking.site_parts import (
    MOST_BARS,
    SCRIPT,
    Bar,
    bar_chart,
    first_sentence,
    page_name,
    place_of,
    report_name,
    site_page,
    site_script,
    title_of,
    to_html,
)
from hpcai500.results.report.blocks import Block, Cell, Chart, Fold, Row, Section, Table, Text, Tile, Tiles, Tone
from hpcai500.results.report.drawing import Axis, Line, Plot, spanning
from hpcai500.results.report.drawing import Level as Mark
from hpcai500.results.report.page import make_report
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.submission.signature import listed_keys
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.text import count, duration, plain, quantity, share, short

# ----------------------------------------------------------------------------------------------------
# The first page: all lists, bars, and what has no place.


_MOST_PATH = 120
_STATUS = {
    "unverified": "unverified", "not-rankable": "not rankable", "disputed": "disputed", "duplicate": "duplicate",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A heading; `first` is the direction of the first click, `sorted` how the table is sorted without one."""

    name: str
    sort: Literal["number", "text"]
    first: Literal["", "descending"] = ""
    sorted: Literal["", "ascending", "descending"] = ""

    @property
    def numeric(self) -> bool:
        """Whether its cells are aligned at the right."""
        return self.sort == "number"


@dataclass(frozen=True)
class SortableCell:
    """A cell: what is shown, what it is sorted by, and a second line.

    `value` None sorts by the text; an empty value is unknown and comes last.
    """

    text: str
    value: float | str | None = None
    below: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class TableRow:
    """One submission; `ranks` are (level, place)."""

    key: str
    href: str | None
    place: int
    system: str
    organisation: str
    level: str
    date: str
    ranks: Sequence[tuple[str, int]]
    cells: Sequence[SortableCell]


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
        """Number of rows that have a bar."""
        return min(MOST_BARS, len(self.rows))

    @property
    def left_out(self) -> bool:
        """Whether some rows have no bar."""
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


def _cells(ranked: Ranked) -> Sequence[SortableCell]:
    entry, quality = ranked.entry, ranked.entry.quality
    summary, seconds = entry.metrics["vflops"], entry.mean("time_to_quality_seconds")
    per_watt, achieved = entry.mean("vflops_per_watt"), quality.achieved
    spread = f"±{share(summary.variation)}, {entry.trials} trials"
    return (
        SortableCell(quantity(entry.vflops, "FLOPS"), entry.vflops, spread, numeric=True),
        SortableCell(entry.level, below=f"rank {ranked.rank}"),
        SortableCell(quantity(per_watt, "FLOPS/W"), _sortable(per_watt), numeric=True),
        SortableCell("never" if seconds is None else duration(seconds), _sortable(seconds), numeric=True),
        SortableCell(
            plain(achieved, ".4f"), _sortable(achieved), f"{quality.metric}, target {quality.target:g}", numeric=True
        ),
        SortableCell(entry.accelerators, below=f"{count(entry.world_size, 'rank')}, {count(entry.nodes, 'node')}"),
        SortableCell(entry.framework, below=entry.implementation),
        SortableCell(date_text(entry), entry.submitted.isoformat() if entry.submitted else ""),
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


# ----------------------------------------------------------------------------------------------------
# The documentation of this version as pages: a ranking is worth little if nobody can read its method.


_MOST_SUMMARY = 220
_PACKAGE = Path(hpcai500.__file__).parent
_SHELVES = (
    (
        "What a result means, and why it can be trusted",
        (
            "methodology", "rules", "campaigns", "campaign", "submission-format", "submissions", "submission",
            "verification", "replication", "acceptance", "ranking",
        ),
    ),
    ("How it is measured", ()),
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """One page of the documentation, in Markdown."""

    name: str
    title: str
    summary: str
    text: str


def docs_folder() -> Path:
    """The folder of the documentation: in the installed package, or beside it in a checkout."""
    installed, checkout = _PACKAGE / "docs", _PACKAGE.parent / "docs"
    return installed if installed.is_dir() else checkout


def method_pages(folder: Path, made: date) -> dict[str, str]:
    """Path in the site -> page, for each page in `folder` and the list of them.

    Raises:
        EnvironmentLacksError: there is no documentation.
    """
    written = _written(folder)
    titles = {f"{page.name}.md": page.title for page in written}
    pages = {f"method/{page.name}.html": _page(page, titles, made) for page in written}
    return {"method/index.html": _index(written, made), **pages}


def address(href: str, names: frozenset[str]) -> str | None:
    """Where a link leads in the site: another page of the documentation, a heading, or the web; None where nowhere."""
    parts = urlsplit(href)
    if parts.scheme in ("http", "https"):
        return href
    if parts.scheme or parts.netloc:
        return None
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    if not parts.path:
        return fragment or None
    name = parts.path.removeprefix("./").removeprefix("docs/").removesuffix(".md")
    return f"{name}.html{fragment}" if parts.path.endswith(".md") and name in names else None


def _written(folder: Path) -> list[Written]:
    pages = []
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        pages.append(Written(path.stem, title_of(text) or path.stem, short(first_sentence(text), _MOST_SUMMARY), text))
    if not pages:
        raise EnvironmentLacksError(
            f"{folder}: no documentation, which the site shows as its method; install hpcai500 again: pip install ."
        )
    return pages


def _page(page: Written, titles: Mapping[str, str], made: date) -> str:
    names = frozenset(Path(name).stem for name in titles)
    return site_page(
        "method.html.j2",
        above="../",
        made=made,
        title=f"{page.title}: HPC AI500",
        here="Methodology",
        is_here=False,
        prose=to_html(page.text, lambda href: address(href, names), titles),
    )


def _index(written: list[Written], made: date) -> str:
    by_name: Mapping[str, Written] = {page.name: page for page in written}
    first = [by_name[name] for name in _SHELVES[0][1] if name in by_name]
    rest = [page for page in written if page not in first]
    shelves = [(title, pages) for (title, _), pages in zip(_SHELVES, (first, rest), strict=True) if pages]
    return site_page(
        "method_index.html.j2",
        above="../",
        made=made,
        title="Methodology",
        here="Methodology",
        is_here=True,
        shelves=shelves,
    )


# ----------------------------------------------------------------------------------------------------
# The page of the nine published systems.


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
        rows=[_published_pages_row(one) for one in page.systems],
    )


def _published_pages_row(one: Published) -> _Row:
    return _Row(
        one.rank, one.system, one.accelerators, one.framework, one.source, tuple(one.notes), one.explanation,
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
    return _Cell(value(one), one.vflops, interval(one)), _Cell(ratio(one), one.ratio, judgement, tone)


# ----------------------------------------------------------------------------------------------------
# The page of one submission: what became of it, what was found, what it holds, and its hashes.


_TONES: dict[str, Tone] = {"fail": "bad", "warning": "flag", "note": "good", "skipped": "soft"}
_UNITS = {
    "vflops": "FLOPS", "flops": "FLOPS", "images_per_second": "images/s", "energy_joules": "J", "watts": "W",
    "flops_per_watt": "FLOPS/W", "vflops_per_watt": "FLOPS/W",
}  # fmt: skip
_MOST_FILES = 300
_MOST_FINDINGS = 300
_MOST_TRIALS = 100


def ranked_page(ranked: Ranked, group: Group, made: date) -> str:
    """The page of a submission with a place."""
    entry = ranked.entry
    places = [
        f"{level} level: rank {ranked.ranks[level]} of {len(group.standing_in(level))}"
        for level in LEVELS
        if level in ranked.ranks
    ]
    verification, facts = entry.examined.verification, entry.examined.facts
    assert verification is not None
    assert facts is not None
    return site_page(
        "submission.html.j2",
        above="../",
        made=made,
        title=f"{entry.system}: HPC AI500 {benchmark_title(entry.benchmark)}",
        here="Ranking",
        is_here=False,
        kind=f"{benchmark_title(entry.benchmark)}, edition {entry.edition}, {entry.level} level",
        name=entry.system,
        subtitle=f"{entry.organisation} · {entry.accelerators} · {entry.framework}",
        tone="pass",
        sign="✓",
        word=f"VERIFIED, RANK {ranked.rank}",
        sentence=_verified(verification),
        places=[*places, *(f"also claimed by {claim}" for claim in ranked.claimed_by)],
        report=report_name(entry.examined),
        report_problem=facts.report_problem,
        sections=list(_sections(entry.manifest, verification, facts)),
    )


def unranked_page(one: Unranked, made: date) -> str:
    """The page of a submission without a place, as far as it could be read."""
    verification, facts = one.examined.verification, one.examined.facts
    assert verification is not None
    assert verification.manifest is not None
    assert facts is not None
    manifest = verification.manifest
    word = {
        "unverified": "REFUSED", "not-rankable": "VERIFIED, NOT RANKABLE", "disputed": "VERIFIED, DISPUTED",
        "duplicate": "VERIFIED, A DUPLICATE",
    }  # fmt: skip
    return site_page(
        "submission.html.j2",
        above="../",
        made=made,
        title=f"{shown(manifest.system)}: HPC AI500, not ranked",
        here="Ranking",
        is_here=False,
        kind="Submission without a rank",
        name=shown(manifest.system),
        subtitle=f"{shown(manifest.organisation)} · {shown(manifest.accelerators)} · {shown(manifest.framework)}",
        tone="fail" if one.status == "unverified" else "unranked",
        sign="✗" if one.status == "unverified" else "!",
        word=word[one.status],
        sentence=one.reason,
        places=[],
        report=report_name(one.examined),
        report_problem=facts.report_problem,
        sections=list(_sections(manifest, verification, facts)),
    )


def _verified(verification: Verification) -> str:
    warnings = sum(one.severity == "warning" for one in verification.findings)
    said = "All numbers were computed again from the events of every run, and nothing failed."
    return said if not warnings else f"{said} {count(warnings, 'warning')} for people to judge below."


def _sections(manifest: Manifest, verification: Verification, facts: Facts) -> Iterator[Section]:
    if verification.metrics:
        yield Section("Result", list(_result(verification)))
    yield Section("Verification", list(_findings(verification)))
    if verification.results:
        yield Section("Trials", list(_trials(verification)))
    yield Section("What was submitted", list(_facts(manifest, verification)))
    yield Section("Hashes", list(_hashes(manifest, facts.manifest_sha256)))


def _result(verification: Verification) -> Iterator[Block]:
    metrics = verification.metrics
    tiles = [
        Tile(_title(name), _number(name, metrics[name].mean), _detail(name, verification))
        for name in (
            "vflops",
            "vflops_per_watt",
            "time_to_quality_seconds",
            _metric(verification),
            "flops",
            "seconds",
            "images_per_second",
        )
        if name in metrics
    ]
    yield Tiles(tiles)
    rows: list[Row] = [
        (
            _title(name),
            _number(name, summary.mean),
            share(summary.variation),
            _number(name, summary.dropped_lowest),
            _number(name, summary.dropped_highest),
            str(summary.runs),
        )
        for name, summary in metrics.items()
    ]
    caption = "Mean without the highest and the lowest run (V2.0 section 5.3.2); the variation is that of all"
    yield Table(caption, ("metric", "mean", "variation", "lowest", "highest", "trials"), rows, (1, 2, 3, 4, 5))


def _metric(verification: Verification) -> str:
    return next((result.quality.metric for result in verification.results.values()), "")


def _title(name: str) -> str:
    titles = {
        "vflops": "VFLOPS", "flops": "FLOPS", "vflops_per_watt": "VFLOPS per watt", "flops_per_watt": "FLOPS per watt",
        "time_to_quality_seconds": "Time to quality", "seconds": "Time", "images_per_second": "Rate", "watts": "Power",
        "energy_joules": "Energy",
    }  # fmt: skip
    return titles.get(name, f"Quality, {name}")


def _detail(name: str, verification: Verification) -> str:
    summary = verification.metrics[name]
    target = next((result.quality for result in verification.results.values()), None)
    if target and name == target.metric:
        return f"target {target.target:g}"
    return f"±{share(summary.variation)}, {count(summary.runs, 'trial')}"


def _number(name: str, value: float | None) -> str:
    if name.endswith("seconds") and value is not None:
        return duration(value)
    if name == "images_per_second" and value is not None:
        return f"{value:,.0f} images/s"
    return quantity(value, _UNITS[name]) if name in _UNITS else plain(value, ".4f")


def _findings(verification: Verification) -> Iterator[Block]:
    found = verification.findings
    number = {name: sum(one.severity == name for one in found) for name in _TONES}
    yield Text(
        f"{number['fail']} failed, {count(number['warning'], 'warning')}, {number['note']} found right, "
        f"{number['skipped']} not checked. The documentation (Methodology) has a row for each name."
    )
    weighty = [one for one in found if one.severity in ("fail", "warning")]
    if weighty:
        yield _finding_table("What failed, and what people should judge", weighty)
    notes = [one for one in found if one.severity == "note"]
    if notes:
        yield Fold(f"{len(notes)} found right", [_finding_table("What was found right", notes)], printed=False)
    skipped = [one for one in found if one.severity == "skipped"]
    if skipped:
        yield Fold(f"{len(skipped)} not checked", [_finding_table("What was not looked at", skipped)], printed=False)


def _finding_table(caption: str, found: Sequence[Finding]) -> Table:
    rows = [
        (Cell(one.severity, _TONES[one.severity]), shown(one.name, 60), shown(one.evidence, 600))
        for one in found[:_MOST_FINDINGS]
    ]
    return Table(caption, ("severity", "check", "evidence"), rows, left_out=len(found) - len(rows))


def _trials(verification: Verification) -> Iterator[Block]:
    runs = list(verification.results.items())[:_MOST_TRIALS]
    known = [(float(number), run.vflops) for number, (_, run) in enumerate(runs, 1) if run.vflops is not None]
    mean = verification.metrics.get("vflops")
    if len(known) > 1 and mean:
        yield _trial_chart(known, mean.mean)
    rows = [_trial(shown(name, 60), run) for name, run in runs]
    columns = ("record", "VFLOPS", "FLOPS", "quality", "time", "to quality", "per watt", "restarts")
    left_out = len(verification.results) - len(rows)
    yield Table("Each run, computed from its events", columns, rows, tuple(range(1, 8)), left_out)


def _trial(name: str, run: Result) -> Row:
    return (
        name,
        quantity(run.vflops, "FLOPS"),
        quantity(run.flops, "FLOPS"),
        plain(run.quality.achieved, ".4f"),
        duration(run.seconds),
        "never" if run.time_to_quality_seconds is None else duration(run.time_to_quality_seconds),
        quantity(run.vflops_per_watt, "FLOPS/W"),
        str(run.restarts),
    )


def _trial_chart(known: list[tuple[float, float]], mean: float) -> Chart:
    values = [value for _, value in known]
    last = known[-1][0]
    drawn = Plot(
        "VFLOPS of each run",
        "; ".join(f"run {at:g}: {quantity(value, 'FLOPS')}" for at, value in known),
        Axis("run", 0.5, last + 0.5, ticks=[at for at, _ in known][:: 1 + int(last) // 15]),
        spanning("VFLOPS", [*values, mean], zero=False),
        [Line(known, 1, marked=True)],
        [Mark(mean, "mean")],
    ).draw()
    note = "Dashed: the mean without the highest and the lowest run. The axis does not begin at 0."
    return Chart("VFLOPS of each run", drawn, note)


def _facts(manifest: Manifest, verification: Verification) -> Iterator[Block]:
    rows: list[Row] = [
        ("system", shown(manifest.system)),
        ("organisation", shown(manifest.organisation)),
        ("contact", shown(manifest.contact) if manifest.contact else "none"),
        ("accelerators", shown(manifest.accelerators)),
        ("framework", shown(manifest.framework)),
        ("made", shown(manifest.created)),
        ("benchmark, edition", f"{shown(manifest.benchmark, 40)}, {shown(manifest.edition, 40)}"),
        ("level claimed", manifest.claim.level or "none"),
        ("level found", verification.level or "none"),
        ("trials planned, runs begun", f"{manifest.trials}, {manifest.attempts}"),
        ("software", f"hpcai500 {shown(manifest.code.version, 60)}"),
        ("hosts renamed", str(manifest.anonymised.hosts) if manifest.anonymised else "none"),
        ("signed by", shown(verification.signer) if verification.signer else "nobody"),
    ]
    yield Table("In the words of the submission, but for the level found and the signer", ("what", "says"), rows)
    if manifest.left_out:
        left = [(shown(one.path, 200), shown(one.reason, 200)) for one in manifest.left_out[:_MOST_FILES]]
        title = f"{count(len(manifest.left_out), 'file')} of the campaign left out"
        more = len(manifest.left_out) - len(left)
        yield Fold(title, [Table("Left out", ("file", "reason"), left, left_out=more)], printed=False)


def _hashes(manifest: Manifest, manifest_sha256: str) -> Iterator[Block]:
    yield Text("The manifest holds the hashes of all other files and is what is signed: its own hash stands for all.")
    code = manifest.code
    rows = [
        ("manifest", manifest_sha256),
        ("campaign", manifest.campaign),
        ("code", code.code_sha256 or "unknown"),
        ("compiled core", code.core_sha256 or "unknown"),
        ("image", code.image_sha256 or "none: it ran in no image"),
    ]
    yield Table("SHA-256", ("of", "hash"), rows)
    files = [(shown(one.path, 200), f"{one.bytes:,}", one.sha256) for one in manifest.files[:_MOST_FILES]]
    table = Table("Files", ("file", "bytes", "SHA-256"), files, (1,), len(manifest.files) - len(files))
    yield Fold(f"{count(len(manifest.files), 'file')} with their hashes", [table], printed=False)


def run_report(campaign: Campaign) -> str:
    """The page of `hpcai500 report` on all runs, without the name of the folder that the submission was opened in.

    Raises:
        RecordError, UsageError: a record cannot be read, or none was done.
    """
    made = make_report([campaign.record(attempt) for attempt in campaign.done()])
    return made.html.replace(str(escape(f"{campaign.path}/")), "")


# ----------------------------------------------------------------------------------------------------
# All files of a site, and from submissions to the site.


def site_files(ranking: Ranking, made: date, docs: Path | None = None) -> dict[str, str]:
    """Path in the site -> content.

    `made` is the day that pages name; `docs` is the folder of the documentation, None for that of this installation.
    """
    ranking = _without_folders(ranking)
    return {
        "index.html": index_page(ranking, made),
        "published.html": published_systems_page(published_page(), made),
        SCRIPT: site_script(),
        RUNS: shown_text(ranking.shown),
        "ranking.json": json.dumps(ranking_document(ranking), indent=1) + "\n",
        **method_pages(docs or docs_folder(), made),
        **dict(_submissions(ranking, made)),
    }


def _without_folders(ranking: Ranking) -> Ranking:
    """`ranking` without the names of folders on the machine that made it, as everyone can read the site."""

    def named(examined: Examined) -> Examined:
        return replace(examined, file=Path(examined.file.name))

    unranked = [
        replace(one, examined=named(one.examined), reason=one.reason.replace(f"{one.examined.file.parent}/", ""))
        for one in ranking.unranked
    ]
    groups = [
        replace(
            group,
            entries=[
                replace(one, entry=replace(one.entry, examined=named(one.entry.examined))) for one in group.entries
            ],
        )
        for group in ranking.groups
    ]
    return replace(ranking, groups=groups, unranked=unranked)


def _submissions(ranking: Ranking, made: date) -> Iterator[tuple[str, str]]:
    # A submission that was given twice has one page: that with its rank, which is written last.
    for one in ranking.unranked:
        if one.examined.facts and one.examined.verification and one.examined.verification.manifest:
            yield f"submissions/{page_name(one.examined)}", unranked_page(one, made)
            yield from _report(one.examined)
    for group in ranking.groups:
        for ranked in group.entries:
            if ranked.entry.examined.facts:
                yield f"submissions/{page_name(ranked.entry.examined)}", ranked_page(ranked, group, made)
                yield from _report(ranked.entry.examined)


def _report(examined: Examined) -> Iterator[tuple[str, str]]:
    name = report_name(examined)
    if name and examined.facts and examined.facts.report:
        yield f"submissions/{name}", examined.facts.report


def make_ranking(
    files: Sequence[Path],
    *,
    site: Path | None = None,
    signers: Path | None = None,
    heads: GivenHeads | None = None,
    tracker: Tracker = silent,
    told: Callable[[Examined], None] = lambda _: None,
) -> Ranking:
    """Verify `files`, rank those that hold, and write the site to the folder `site`.

    Args:
        files: what `hpcai500 submit` wrote, or something that claims to be.
        site: a folder that is free, or holds a site of ours.
        signers: OpenSSH file of keys that are vouched for.
        heads: heads of journals, as they were given while campaigns ran.
        told: is called with each file after it was looked at.

    Raises:
        UsageError: none of the files exists, the folder is not ours to replace, or what it has shown cannot be read.
        EnvironmentLacksError: the documentation, which a site shows, is not installed.
        RunError: the disk is full.
    """
    report = _ready(site) if site else None
    shown = read_shown(site) if site else ()
    examined = examine(files, signers=signers, heads=heads, make_report=report, tracker=tracker, told=told)
    ranking = rank(examined, shown, None if signers is None else listed_keys(signers))
    if site:
        from hpcai500.results.ranking.site_folder import write_site

        write_site(site, site_files(ranking, datetime.now(UTC).date()))
    return ranking


def _ready(site: Path) -> ReportMaker:
    """What makes reports. A folder that cannot hold the site is refused here, before hours of verification."""
    from hpcai500.results.ranking.site_folder import check_place

    check_place(site)
    return run_report
