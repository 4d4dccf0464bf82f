"""A ranking as static pages that need neither scripts nor network.

Pages are index.html (all lists), one for each submission, the report of its runs, the documentation, and the nine
published systems. ranking.json and runs.json are beside them; runs.json has all runs that the site has shown.
`templates/` has the layout, and escapes all values.

The content security policy of each page allows only its own style, by hash, and the site's script on pages with tables.
Nothing is loaded from other servers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from hpcai500 import __version__
from hpcai500.campaign.journal import Campaign, GivenHeads
from hpcai500.methodology.result import Result
from hpcai500.methodology.samples import IMAGES, Samples
from hpcai500.progress import Tracker, silent
from hpcai500.results.ranking import published
from hpcai500.results.ranking.documentation import docs_folder, read_documents
from hpcai500.results.ranking.entries import LEVELS, Examined, Unranked, benchmark_title, examine, shown
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
from hpcai500.results.ranking.site_folder import check_place, write_site
from hpcai500.results.report.blocks import (
    Block,
    Cell,
    Chart,
    Fold,
    Key,
    Row,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
    Tone,
    legible_value,
)
from hpcai500.results.report.drawing import Axis, Line, Plot, element, spanning
from hpcai500.results.report.drawing import Level as Mark
from hpcai500.results.report.page import make_report
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.submission.signature import listed_keys
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.text import count, duration, plain, quantity, share, short

if TYPE_CHECKING:
    from jinja2 import Environment


def make_ranking(
    submissions: Sequence[Path],
    *,
    site: Path | None = None,
    signers: Path | None = None,
    heads: GivenHeads | None = None,
    tracker: Tracker = silent,
    on_examined: Callable[[Examined], None] = lambda _: None,
    with_published: bool = False,
) -> Ranking:
    """Verify and rank `submissions`, and write the site to the folder `site`.

    Args:
        submissions: files, which may be anything.
        site: a folder that is absent, empty, or holds a site of hpcai500.
        signers: OpenSSH file of trusted keys.
        heads: of journals, received while campaigns ran.
        on_examined: called with each file after its verification.
        with_published: whether the site's first page also shows the nine published systems.

    Raises:
        UsageError: none of the files exists, the folder holds other files, or its runs.json cannot be read.
        EnvironmentLacksError: the documentation, which a site includes, is not installed.
        RunError: the disk is full.
    """
    if site:
        # Now, before hours of verification.
        check_place(site)
    before = read_shown(site) if site else ()
    make_report = run_report if site else None
    examined = examine(
        submissions, signers=signers, heads=heads, make_report=make_report, tracker=tracker, report=on_examined
    )
    ranking = rank(examined, before, None if signers is None else listed_keys(signers))
    if site:
        write_site(site, site_files(ranking, datetime.now(UTC).date(), with_published=with_published))
    return ranking


def run_report(campaign: Campaign) -> str:
    """The page of `hpcai500 report` on all runs, without the name of the submission's scratch folder.

    Raises:
        RecordError, UsageError: a record cannot be read, or no run is done.
    """
    made = make_report([campaign.record(attempt) for attempt in campaign.done()])
    return made.html.replace(str(escape(f"{campaign.path}/")), "")


def site_files(
    ranking: Ranking, made: date, docs: Path | None = None, *, with_published: bool = False
) -> dict[str, str]:
    """Content of each file by its path in the site.

    Args:
        made: the date on the pages.
        docs: the folder of the documentation; None for that of this installation.
        with_published: whether the first page shows the nine published systems below the ranking.
    """
    ranking = _without_folders(ranking)
    return {
        "index.html": _index(ranking, made, with_published),
        "published.html": _published(made),
        _SCRIPT: _template(_SCRIPT),
        RUNS: shown_text(ranking.shown),
        "ranking.json": json.dumps(ranking_document(ranking), indent=1) + "\n",
        **dict(_method(docs or docs_folder(), made)),
        **dict(_submissions(ranking, made)),
    }


def _without_folders(ranking: Ranking) -> Ranking:
    """`ranking` without the names of folders on this machine, as the site is public."""

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


# ----------------------------------------------------------------------------------------------------
# Templates, which override those of the report.


_SCRIPT = "site.js"


def _render(template: str, *, above: str = "", script: bool = False, made: date, **values: object) -> str:
    """The page of `template` with `values`.

    Args:
        above: the way up to the site's folder: empty, or `../`.
        script: whether it has tables to sort.
        made: the date on the page.
    """
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    scripts = "script-src 'self'; " if script else ""
    return (
        _environment()
        .get_template(template)
        .render(
            version=__version__,
            style=Markup(style),  # noqa: S704 - our own file
            policy=f"default-src 'none'; {scripts}style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
            "form-action 'none'",
            script=f"{above}{_SCRIPT}" if script else None,
            above=above,
            made=made.isoformat(),
            **values,
        )
    )


@cache
def _style() -> str:
    """The report's style, then the site's own."""
    report = files("hpcai500.results.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    # The template puts the style between line ends, which are part of its hash.
    return f"\n{report}{_template('site.css')}"


def _template(name: str) -> str:
    return files("hpcai500.results.ranking").joinpath(f"templates/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined  # a terminal needs none

    environment = Environment(
        loader=ChoiceLoader([PackageLoader("hpcai500.results.ranking"), PackageLoader("hpcai500.results.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=legible_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = (benchmark_title, count, date_text, duration, plain, quantity, share, short, shown, unranked_title)
    environment.globals |= {one.__name__: one for one in (*words, place_of, page_name)}
    return environment


# ----------------------------------------------------------------------------------------------------
# Pages of submissions have the hash of the manifest as name, so that links stay valid for years.


_LETTERS = 16


def place_of(examined: Examined) -> str:
    """The submission's short name; empty for a file whose manifest could not be read."""
    return examined.facts.manifest_sha256[:_LETTERS] if examined.facts else ""


def page_name(examined: Examined) -> str | None:
    """File of the submission's page; None for a file whose manifest could not be read."""
    return f"{place_of(examined)}.html" if examined.facts else None


def report_name(examined: Examined) -> str | None:
    """File of the report of its runs; None without a report."""
    return f"{place_of(examined)}-report.html" if examined.facts and examined.facts.report else None


# ----------------------------------------------------------------------------------------------------
# The first page has all lists and the files that are not ranked; others have the method and the published systems.


_METHOD_FIRST = (
    "methodology", "rules", "campaigns", "campaign", "submission-format", "submissions", "submission", "verification",
    "replication", "acceptance", "ranking",
)  # fmt: skip


def _index(ranking: Ranking, made: date, with_published: bool) -> str:
    return _render(
        "ranking.html.j2",
        script=True,
        made=made,
        title="Ranking of HPC AI systems",
        here="Ranking",
        is_here=True,
        benchmarks=list(dict.fromkeys(group.benchmark for group in ranking.groups)),
        groups=[(group, bar_chart(group), min(_MOST_BARS, len(group.entries))) for group in ranking.groups],
        ranked=sum(len(group.entries) for group in ranking.groups),
        unranked=ranking.unranked,
        systems=published.published_page().systems if with_published else (),
        caption=_published_caption(),
        published=published,
    )


def _published_caption() -> str:
    return f"{published.published_page().title}; numbers in PFLOPS"


def _published(made: date) -> str:
    page = published.published_page()
    return _render(
        "published.html.j2",
        script=True,
        made=made,
        title="The published systems, computed again",
        here="Published systems",
        is_here=True,
        caption=_published_caption(),
        systems=page.systems,
        published=published,
    )


def _method(folder: Path, made: date) -> Iterator[tuple[str, str]]:
    """The index of the documentation in `folder`, and each of its pages."""
    documents = {one.name: one for one in read_documents(folder)}
    first = [documents.pop(name) for name in _METHOD_FIRST if name in documents]
    shelves = {
        "Results and trust": first,
        "Measurement": list(documents.values()),
    }
    yield (
        "method/index.html",
        _render(
            "method_index.html.j2",
            above="../",
            made=made,
            title="Methodology",
            here="Methodology",
            is_here=True,
            shelves=shelves,
        ),
    )
    for one in (*first, *documents.values()):
        yield (
            f"method/{one.name}.html",
            _render(
                "method.html.j2",
                above="../",
                made=made,
                title=f"{one.title}: HPC AI500",
                here="Methodology",
                is_here=False,
                prose=one.html,
            ),
        )


# ----------------------------------------------------------------------------------------------------
# VFLOPS as bars, with the time to quality beside each (V2.0 Fig. 14); colours show precision and compression.


_MOST_BARS = 40
_TOP, _STEP, _BAR = 24.0, 40.0, 13.0
# In per cent of the width, which varies while letters keep their size: right end of the longest bar, with room for its
# number after it; left and right end of the times.
_BAR_END, _TIMES, _TIMES_END = 50.0, 80.0, 98.5
_MOST_LETTERS = 32
# Precisions take the page's colours in this order; there are no more than these.
_COLOURS = (1, 4, 3, 5, 2, 6)


def bar_chart(group: Group) -> Chart:
    """The drawing of the group's first entries, one below the other."""
    drawn = group.entries[:_MOST_BARS]
    kinds = list(dict.fromkeys(one.entry.implementation for one in drawn))
    colours = {kind: _COLOURS[min(index, len(_COLOURS) - 1)] for index, kind in enumerate(kinds)}
    rates = spanning("VFLOPS", [one.entry.vflops for one in drawn])
    seconds = [_to_quality(one) for one in drawn]
    times = spanning("time to quality", [value for value in seconds if value is not None])
    parts = [
        _words("0", 12, "VFLOPS", "tick"),
        _words(_across(_TIMES_END), 12, "time to quality", "tick", "end"),
        *(_bar(one, row, rates, times, colours) for row, one in enumerate(drawn)),
    ]
    title, description = f"VFLOPS of {benchmark_title(group.benchmark)}", "; ".join(map(_in_words, drawn))
    # The script needs the height of rows to close gaps.
    svg = element(
        "svg",
        element("title", title),
        element("desc", description),
        *parts,
        height=_TOP + _STEP * len(drawn),
        data_top=_TOP,
        data_step=_STEP,
        role="img",
        aria_label=f"{title}. {description}",
    )
    return Chart(
        title,
        svg,
        "Left: mean VFLOPS of the trials. Right: mean time to the target quality, an auxiliary metric.",
        [Key(kind, colour) for kind, colour in _legend(colours)],
    )


def _across(percent: float) -> str:
    return f"{percent:.2f}%"


def _words(x: str, y: float, text: str, kind: str, anchor: str = "start", after: float = 0.0) -> Markup:
    """Text at the position `x`, a share of the width, plus `after` pixels."""
    return element("text", text, x=x, y=y, dx=after, text_anchor=anchor, class_=kind)


def _legend(colours: dict[str, int]) -> list[tuple[str, int]]:
    kinds = list(colours.items())
    many = len(kinds) - len(_COLOURS)
    return kinds if many <= 0 else [*kinds[: len(_COLOURS) - 1], (f"{many + 1} others", _COLOURS[-1])]


def _to_quality(ranked: Ranked) -> float | None:
    return ranked.entry.mean("time_to_quality_seconds")


def _in_words(ranked: Ranked) -> str:
    entry, seconds = ranked.entry, _to_quality(ranked)
    time = "target quality not reached" if seconds is None else f"{duration(seconds)} to quality"
    return f"{ranked.ranks['free']}. {short(entry.system, 60)}: {quantity(entry.vflops, 'FLOPS')}, {time}"


def _bar(ranked: Ranked, row: int, rates: Axis, times: Axis, colours: dict[str, int]) -> Markup:
    entry, seconds = ranked.entry, _to_quality(ranked)
    end, middle = rates.place(entry.vflops) * _BAR_END, 16 + _BAR / 2
    place, colour = element("tspan", str(ranked.ranks["free"]), class_="rank"), colours[entry.implementation]
    start, stop = _across(_TIMES), _across(_TIMES_END)
    parts = [
        element("text", place, f"  {short(entry.system, _MOST_LETTERS)}", x=0, y=11, class_="name"),
        element("rect", x=0, y=16, width=_across(max(end, 0.3)), height=_BAR, rx=1.5, class_=f"surface c{colour}"),
        _words(_across(end), 27, quantity(entry.vflops, "FLOPS"), "value", after=6),
        element("line", x1=start, x2=stop, y1=middle, y2=middle, class_="rule"),
        _words(stop, 11, "never" if seconds is None else duration(seconds), "label", "end"),
    ]
    if seconds is not None:
        at = _across(_TIMES + times.place(seconds) * (_TIMES_END - _TIMES))
        parts.append(element("line", x1=start, x2=at, y1=middle, y2=middle, class_="stem"))
        parts.append(element("circle", cx=at, cy=middle, r=4, class_="head"))
    down = f"translate(0 {_TOP + _STEP * row:g})"
    return element("g", *parts, data_entry=place_of(entry.examined), transform=down)


# ----------------------------------------------------------------------------------------------------
# The page of one submission: verdict, results, findings, content and hashes.


_TONES: dict[str, Tone] = {"fail": "bad", "warning": "flag", "note": "good", "skipped": "soft"}
# Results of checks that the pages call otherwise.
_WORDS = {"fail": "failure", "note": "pass"}
# Title and unit of each metric; any other is a quality.
_METRICS = {
    "vflops": ("VFLOPS", "FLOPS"),
    "vflops_per_watt": ("VFLOPS per watt", "FLOPS/W"),
    "time_to_quality_seconds": ("Time to quality", "s"),
    "flops": ("FLOPS", "FLOPS"),
    "flops_per_watt": ("FLOPS per watt", "FLOPS/W"),
    "seconds": ("Time", "s"),
    "watts": ("Power", "W"),
    "energy_joules": ("Energy", "J"),
}
_MOST_FILES = 300
_MOST_FINDINGS = 300
_MOST_TRIALS = 100
_UNRANKED = {
    "unverified": "REFUSED",
    "not-rankable": "VERIFIED, NOT RANKABLE",
    "disputed": "VERIFIED, DISPUTED",
    "duplicate": "VERIFIED, A DUPLICATE",
}


def _submissions(ranking: Ranking, made: date) -> Iterator[tuple[str, str]]:
    # A submission that was given twice has one page: the one with its rank, which is written last.
    for one in ranking.unranked:
        if one.examined.facts and one.examined.verification and one.examined.verification.manifest:
            yield from _pages(one.examined, made, **_without_rank(one))
    for group in ranking.groups:
        for ranked in group.entries:
            yield from _pages(ranked.entry.examined, made, **_with_rank(ranked, group))


def _pages(examined: Examined, made: date, **verdict: Any) -> Iterator[tuple[str, str]]:
    """The page of a readable submission, with `verdict` in its head, and the report of its runs."""
    verification, facts = examined.verification, examined.facts
    assert verification is not None
    assert verification.manifest is not None
    assert facts is not None
    manifest = verification.manifest
    name, report = shown(manifest.system), report_name(examined)
    page = _render(
        "submission.html.j2",
        above="../",
        made=made,
        here="Ranking",
        is_here=False,
        name=name,
        subtitle=" · ".join(map(shown, (manifest.organisation, manifest.accelerators_in_words, manifest.framework))),
        report=report,
        report_problem=facts.report_problem,
        sections=list(_sections(manifest, verification, facts.manifest_sha256)),
        **verdict,
    )
    yield f"submissions/{page_name(examined)}", page
    if report and facts.report:
        yield f"submissions/{report}", facts.report


def _with_rank(ranked: Ranked, group: Group) -> dict[str, Any]:
    entry, title = ranked.entry, benchmark_title(group.benchmark)
    warnings = sum(one.severity == "warning" for one in entry.verification.findings)
    sentence = "All numbers were computed again from the events of every run, and no check failed."
    places = [
        f"{level} level: rank {ranked.ranks[level]} of {len(group.at_level(level))}"
        for level in LEVELS
        if level in ranked.ranks
    ]
    return {
        "title": f"{entry.system}: HPC AI500 {title}",
        "kind": f"{title}, edition {entry.edition}, {entry.level} level",
        "tone": "pass",
        "sign": "✓",
        "word": f"VERIFIED, RANK {ranked.rank}",
        "sentence": f"{sentence} See the {count(warnings, 'warning')} below." if warnings else sentence,
        "places": [*places, *(f"also claimed by {claim}" for claim in ranked.claimed_by)],
    }


def _without_rank(one: Unranked) -> dict[str, Any]:
    is_refused = one.status == "unverified"
    return {
        "title": f"{one.system}: HPC AI500, not ranked",
        "kind": "Submission without a rank",
        "tone": "fail" if is_refused else "unranked",
        "sign": "✗" if is_refused else "!",
        "word": _UNRANKED[one.status],
        "sentence": one.reason,
        "places": [],
    }


def _sections(manifest: Manifest, verification: Verification, manifest_sha256: str) -> Iterator[Section]:
    if verification.metrics:
        yield Section("Result", list(_result(verification)))
    yield Section("Verification", list(_findings(verification)))
    if verification.results:
        yield Section("Trials", list(_trials(verification)))
    yield Section("Submission", list(_facts(manifest, verification)))
    yield Section("Hashes", list(_hashes(manifest, manifest_sha256)))


def _result(verification: Verification) -> Iterator[Block]:
    metrics = verification.metrics
    first = next(iter(verification.results.values()), None)
    quality, samples = (first.quality, first.samples) if first else (None, IMAGES)
    tiles = []
    for name in (
        "vflops",
        "vflops_per_watt",
        "time_to_quality_seconds",
        quality.metric if quality else "",
        "flops",
        "seconds",
        *samples.rate_units,
    ):
        if summary := metrics.get(name):
            detail = f"coefficient of variation {share(summary.variation)}, {count(summary.runs, 'trial')}"
            if quality and name == quality.metric:
                detail = f"target {quality.goal}"
            tiles.append(Tile(_title(name, samples), _number(name, summary.mean, samples), detail))
    yield Tiles(tiles)
    rows: list[Row] = [
        (
            _title(name, samples),
            _number(name, summary.mean, samples),
            share(summary.variation),
            _number(name, summary.dropped_lowest, samples),
            _number(name, summary.dropped_highest, samples),
            str(summary.runs),
        )
        for name, summary in metrics.items()
    ]
    caption = "Mean without the highest and the lowest run (V2.0 section 5.3.2); coefficient of variation of all runs"
    yield Table(
        caption, ("metric", "mean", "coefficient of variation", "lowest", "highest", "trials"), rows, (1, 2, 3, 4, 5)
    )


def _title(metric: str, samples: Samples) -> str:
    if metric in samples.rate_units:
        return "Rate"
    return _METRICS[metric][0] if metric in _METRICS else f"Quality, {metric}"


def _number(metric: str, value: float | None, samples: Samples) -> str:
    if (unit := samples.rate_units.get(metric)) and value is not None:
        return f"{value:,.0f} {unit}"
    if metric not in _METRICS:
        return plain(value, ".4f")
    unit = _METRICS[metric][1]
    return duration(value) if unit == "s" else quantity(value, unit)


def _findings(verification: Verification) -> Iterator[Block]:
    found = verification.findings
    number = {name: sum(one.severity == name for one in found) for name in _TONES}
    yield Text(
        f"Checks: {number['note']} passed, {count(number['warning'], 'warning')}, {count(number['fail'], 'failure')}, "
        f"{number['skipped']} skipped. The documentation (Methodology) explains each check."
    )
    against = [one for one in found if one.severity in ("fail", "warning")]
    if against:
        yield _finding_table("Failures and warnings", against)
    for severity, words, caption in (
        ("note", "passed", "Passed checks"),
        ("skipped", "skipped", "Skipped checks"),
    ):
        if some := [one for one in found if one.severity == severity]:
            yield Fold(f"{len(some)} {words}", [_finding_table(caption, some)], printed=False)


def _finding_table(caption: str, found: Sequence[Finding]) -> Table:
    rows = [
        (
            Cell(_WORDS.get(one.severity, one.severity), _TONES[one.severity]),
            shown(one.name, 60),
            shown(one.evidence, 600),
        )
        for one in found[:_MOST_FINDINGS]
    ]
    return Table(caption, ("result", "check", "evidence"), rows, left_out=len(found) - len(rows))


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
    rates = spanning("VFLOPS", [*values, mean], zero=False)
    drawn = Plot(
        "VFLOPS of each run",
        "; ".join(f"run {at:g}: {quantity(value, 'FLOPS')}" for at, value in known),
        Axis("run", 0.5, last + 0.5, ticks=[at for at, _ in known][:: 1 + int(last) // 15]),
        rates,
        [Line(known, 1, marked=True, joined=False)],
        [Mark(mean, "mean")],
    ).draw()
    cut = " The axis does not begin at 0." if rates.low > 0 else ""
    note = f"Each dot is a run. The dashed line is the mean without the highest and the lowest run.{cut}"
    return Chart("VFLOPS of each run", drawn, note)


def _facts(manifest: Manifest, verification: Verification) -> Iterator[Block]:
    rows: list[Row] = [
        ("system", shown(manifest.system)),
        ("organisation", shown(manifest.organisation)),
        ("contact", shown(manifest.contact) if manifest.contact else "none"),
        ("accelerators", shown(manifest.accelerators_in_words)),
        ("framework", shown(manifest.framework)),
        ("packed", shown(manifest.created)),
        ("benchmark, edition", f"{shown(manifest.benchmark, 40)}, {shown(manifest.edition, 40)}"),
        ("claimed level", manifest.claim.level or "none"),
        ("verified level", verification.level or "none"),
        ("planned trials, started runs", f"{manifest.trials}, {manifest.attempts}"),
        ("software", f"hpcai500 {shown(manifest.code.version, 60)}"),
        ("replaced host names", str(manifest.anonymised.hosts) if manifest.anonymised else "none"),
        ("signed by", shown(verification.signer) if verification.signer else "nobody"),
    ]
    yield Table("From the manifest, except for the verified level and the signer", ("field", "value"), rows)
    if manifest.left_out:
        left = [(shown(one.path, 200), shown(one.reason, 200)) for one in manifest.left_out[:_MOST_FILES]]
        title = f"{count(len(manifest.left_out), 'file')} of the campaign left out"
        more = len(manifest.left_out) - len(left)
        yield Fold(title, [Table("Files left out", ("file", "reason"), left, left_out=more)], printed=False)


def _hashes(manifest: Manifest, manifest_sha256: str) -> Iterator[Block]:
    yield Text("The signed manifest holds the hashes of all other files, so that its own hash covers them all.")
    code = manifest.code
    rows = [
        ("manifest", manifest_sha256),
        ("campaign", manifest.campaign),
        ("code", code.code_sha256 or "unknown"),
        ("compiled core", code.core_sha256 or "unknown"),
        ("image", code.image_sha256 or "none (the runs used no image)"),
    ]
    yield Table("SHA-256", ("of", "hash"), rows)
    files = [(shown(one.path, 200), f"{one.bytes:,}", one.sha256) for one in manifest.files[:_MOST_FILES]]
    table = Table("Files", ("file", "bytes", "SHA-256"), files, (1,), len(manifest.files) - len(files))
    yield Fold(f"{count(len(manifest.files), 'file')} with their hashes", [table], printed=False)
