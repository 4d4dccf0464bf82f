"""The page of one submission: what became of it, what was found, what it holds, by which hashes it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from hpcai500.methodology.result import Result
from hpcai500.results.ranking.cleaning import shown
from hpcai500.results.ranking.entries import LEVELS, Unranked, benchmark_title
from hpcai500.results.ranking.examined import Facts
from hpcai500.results.ranking.ranking import Group, Ranked
from hpcai500.results.ranking.site.names import report_name
from hpcai500.results.ranking.site.rendering import site_page
from hpcai500.results.report.blocks import Block, Cell, Chart, Fold, Row, Section, Table, Text, Tile, Tiles, Tone
from hpcai500.results.report.plot import Level as Mark
from hpcai500.results.report.plot import Line, Plot
from hpcai500.results.report.scales import Axis, spanning
from hpcai500.results.report.words import count, duration, plain, quantity, share
from hpcai500.results.submission.manifest import Manifest
from hpcai500.results.verification.finding import Finding, Verification

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
