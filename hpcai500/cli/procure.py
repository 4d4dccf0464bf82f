"""Commands for procurement.

`accept` checks a system against its contract, `track` follows it for the years after, `rank` orders submissions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcai500.cli.options import Heads, Json, Registered, write_requested
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.files import why_not
from hpcai500.streams import print_error, say, show

if TYPE_CHECKING:
    from hpcai500.results.acceptance.evidence import Trust
    from hpcai500.results.acceptance.verdict import Acceptance, Request
    from hpcai500.results.ranking.entries import Examined, Level


# ----------------------------------------------------------------------------------------------------
# `hpcai500 accept`: check a system against its contract, or against an older record.


def _example(value: bool) -> None:
    if value:
        from hpcai500.results.acceptance.contract import contracts_folder  # keeps `--help` fast

        show((contracts_folder() / "example.toml").read_text(encoding="utf-8").splitlines())
        raise typer.Exit


def accept(
    what: Annotated[
        list[Path],
        typer.Argument(
            metavar="[SPEC] RECORD...", help="A contract file (TOML), then records, campaigns or submissions."
        ),
    ],
    micro: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Figures of `hpcai500 micro -o FILE` or `storage -o FILE`; may be repeated."),
    ] = None,
    scaling: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Efficiency, from `hpcai500 scale ... --json > FILE`.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="OLD", help="Compare with an older record or campaign; SPEC may be left out."),
    ] = None,
    min_ratio: Annotated[
        float | None, typer.Option(metavar="R", help="With --baseline: at least R times as good.  [default: 0.90]")
    ] = None,
    signers: Annotated[
        Path | None,
        typer.Option(metavar="ALLOWED_SIGNERS", help="Trusted keys for submissions and FILEs: an OpenSSH file."),
    ] = None,
    registered: Registered = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE.xml", help="Write the verdict for Jenkins or GitLab.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write it as a page that can be signed.")
    ] = None,
    as_json: Json = False,
    example: Annotated[
        bool, typer.Option("--example", callback=_example, is_eager=True, help="Print an example contract file.")
    ] = False,
) -> None:
    """Check a system against a contract: contracted and measured values, margin, interval, verdict.

    SPEC has contracted values with tolerances; start from `hpcai500 accept --example > contract.toml`. Runs are scored
    again from their events; an unknown value never passes. The slowest node is named. A submission file is verified
    first. Unless the contract says `rankable = false`, the rules of HPC AI500 must be kept.

    Exit code: 0, accepted; 6, undecided at the contract's confidence: make more runs; 5, a contracted number is missed
    or was not measured, although all answers are right; 2, an answer is wrong, a record is changed or incomplete, or a
    rule is broken; 64, usage error (docs/acceptance.md).
    """
    try:
        request = replace(_request(what, micro or [], scaling, baseline, min_ratio), trust=_trust(signers, registered))
        _require_separate_files(request, {"--junit": junit, "--html": html})
        made = _accepted(request, junit, html)
    except HpcAi500Error as error:
        raise typer.Exit(_report_failure(error, as_json)) from error
    from hpcai500.results.acceptance.verdict import acceptance_lines  # keeps `--help` fast

    show(made.document() if as_json else acceptance_lines(made))
    raise typer.Exit(made.exit_code)


def _request(
    what: Sequence[Path], micro: Sequence[Path], scaling: Path | None, baseline: Path | None, ratio: float | None
) -> Request:
    from hpcai500.results.acceptance.contract import find_contract, load_contract
    from hpcai500.results.acceptance.evidence import is_submission
    from hpcai500.results.acceptance.measured import DEFAULT_RATIO  # keeps `--help` fast
    from hpcai500.results.acceptance.verdict import Request

    if ratio is not None and baseline is None:
        raise UsageError("--min-ratio needs a baseline: add --baseline OLD")
    if ratio is not None and not 0.5 <= ratio <= 100:
        raise UsageError(
            f"--min-ratio {ratio:g}: expected a number from 0.5 to 100; 0.90 allows values that are up to 10 % worse"
        )
    # Records are folders or submissions: if the first is one, there is no contract, only the baseline.
    has_contract = baseline is None or not (what[0].is_dir() or is_submission(what[0]))
    contract = load_contract(find_contract(what[0])) if has_contract else None
    records = what[1:] if has_contract else what
    if not records:
        raise UsageError(f"accept {what[0]}: give the records: hpcai500 accept {what[0]} RECORD...")
    return Request(contract, tuple(records), tuple(micro), scaling, baseline, ratio or DEFAULT_RATIO)


def _trust(signers: Path | None, registered: str | None) -> Trust:
    from hpcai500.results.acceptance.evidence import Trust  # keeps `--help` fast

    if registered is not None and not re.fullmatch(r"[0-9a-f]{64}", registered):
        raise UsageError(f"--registered {registered}: expected 64 hex digits, as `hpcai500 campaign status` shows them")
    if signers is not None and (why := why_not("file", signers)):
        raise UsageError(f"--signers {signers}: {why}; give OpenSSH's list of allowed signers")
    return Trust(signers, registered)


def _require_separate_files(request: Request, outputs: Mapping[str, Path | None]) -> None:
    """Refuse outputs that would overwrite an input or each other."""
    # A submission is a file, too.
    read = [*request.micro, *request.records, *([request.contract.path] if request.contract else [])]
    taken = {path.resolve() for path in (*read, *([request.scaling] if request.scaling else []))}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.resolve() in taken:
            raise UsageError(f"{option} {path}: this command uses that file already; give another one")
        taken.add(path.resolve())


def _accepted(request: Request, junit: Path | None, html: Path | None) -> Acceptance:
    """The verdict, after writing the requested files."""
    from hpcai500.progress import track  # keeps `--help` fast
    from hpcai500.results.acceptance.page import acceptance_page
    from hpcai500.results.acceptance.verdict import accept as accept_
    from hpcai500.results.acceptance.verdict import junit_xml

    made = accept_(request, tracker=track)
    if junit:
        write_requested(junit, junit_xml(made), "--junit")
    if html:
        # A record may contain lone surrogates, which UTF-8 cannot encode.
        write_requested(html, acceptance_page(made).encode("utf-8", errors="replace"), "--html")
    return made


def _report_failure(error: HpcAi500Error, as_json: bool) -> int:
    verdict = "FAIL" if error.exit_code == ExitCode.WRONG_ANSWER else "INVALID"
    code = int(error.exit_code)
    broken: dict[str, Any] = {"verdict": verdict, "exit_code": code, "error": print_error(error), "criteria": []}
    show(broken if as_json else f"HPCAI500 RESULT {verdict}")
    return error.exit_code


# ----------------------------------------------------------------------------------------------------
# `hpcai500 track`: follow a machine over months.


def track(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of records, campaigns, submissions, and micro's files.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.html", help="Write a page with charts of the trends."),
    ] = None,
    openmetrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE.prom", help="Write the newest values for Prometheus (node_exporter's textfile)."),
    ] = None,
    grafana: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write a Grafana dashboard of these metrics.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Leave out older records, as after an accepted change.")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="day|record", help="What is one value: the median of a day, or each record.")
    ] = "day",
    false_alarms: Annotated[
        float, typer.Option(metavar="P", help="Rate of false alarms of one look at the whole folder.")
    ] = 0.01,
    least: Annotated[
        float, typer.Option(metavar="SHARE", help="Smaller changes raise no alarm: 0.01 is 1 %, or 1 point of a share.")
    ] = 0.01,
    signers: Annotated[
        Path | None, typer.Option(metavar="ALLOWED_SIGNERS", help="Trusted keys: others are refused.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find what got slower on a machine since when, from its records over months: docs/track.md.

    Each record is checked as by `hpcai500 score`, each submission as by `verify`; what cannot be used is named. Records
    of the same work on the same hardware make trends: rates, times, waits, energy, the step time of each node, micro's
    ceilings. A change is reported with the record it begins with, its size and their 95 % intervals, and what changed
    in firmware and software at that time.

    Start with a run a week; a trend is tested from 8 days on. Exit code: 0, no metric got worse; 5, one did, by more
    than chance explains (--false-alarms) and than does not matter (--least).
    """
    from datetime import UTC, datetime  # keeps `--help` fast

    from hpcai500.progress import track as tracker
    from hpcai500.results.track.outputs import grafana_dashboard, openmetrics_text, track_page
    from hpcai500.results.track.trends import BY, track_lines
    from hpcai500.results.track.trends import track as find

    kind = next((one for one in BY if one == by), None)
    if kind is None:
        raise UsageError(f"--by {by}: expected {' or '.join(BY)}")
    if not 0 <= least < 1:
        raise UsageError(f"--least {least:g}: expected a share from 0 to below 1: 0.01 is 1 %")
    if not 0 < false_alarms < 1:
        raise UsageError(f"--false-alarms {false_alarms:g}: expected a rate between 0 and 1, such as 0.01")
    try:
        moment = datetime.strptime(since, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() if since else 0.0
    except ValueError:
        raise UsageError(f"--since {since}: expected a date (UTC), such as 2026-05-04") from None
    found = find(
        folder,
        false_alarms=false_alarms,
        least_change=least,
        by=kind,
        since_ms=round(1000 * moment),
        signers=signers,
        tracker=tracker,
    )
    # A record may contain lone surrogates, which UTF-8 cannot encode.
    if output:
        write_requested(output, track_page(found).encode("utf-8", errors="replace"), "-o")
    if openmetrics:
        text = openmetrics_text(found, datetime.now(UTC).timestamp())
        write_requested(openmetrics, text.encode("utf-8", errors="replace"), "--openmetrics")
    if grafana:
        write_requested(grafana, f"{json.dumps(grafana_dashboard(), indent=2)}\n".encode(), "--grafana")
    show(found.document() if as_json else track_lines(found))
    raise typer.Exit(found.exit_code)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 rank`: rank verified submissions.


def rank(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Submissions, as `hpcai500 submit` wrote them.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Include the project's nine published systems, recomputed.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="DIR", help="Write the ranking as a static site as well.")
    ] = None,
    signers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trusted keys (OpenSSH's allowed signers).")
    ] = None,
    heads: Heads = None,
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Print only the lists of this level: hardware, system or free.")
    ] = None,
    benchmark: Annotated[str | None, typer.Option(metavar="NAME", help="Print only this benchmark.")] = None,
    as_json: Json = False,
) -> None:
    """Verify submissions and rank the valid ones, by benchmark and level: docs/ranking.md.

    A refused file is listed with the reason; the others are ranked nevertheless, and the exit code is 0.
    """
    if not files and not published:
        raise UsageError("rank: give submissions: hpcai500 rank FILE... (or --published for the published systems)")
    known_level, known_benchmark = _level(level), _benchmark(benchmark)
    if files or html:
        _ranking(files or [], published, html, signers, heads, known_level, known_benchmark, as_json)
    else:
        _published(as_json)


def _level(name: str | None) -> Level | None:
    from hpcai500.results.ranking.entries import LEVELS  # keeps `--help` fast

    found = next((level for level in LEVELS if level == name), None)
    if name is not None and found is None:
        raise UsageError(f"--level {name}: expected one of {', '.join(LEVELS)}")
    return found


def _benchmark(name: str | None) -> str | None:
    from hpcai500.layers import RECIPE_TYPES  # keeps `--help` fast

    if name is not None and name not in RECIPE_TYPES:
        raise UsageError(f"--benchmark {name}: expected one of {', '.join(RECIPE_TYPES)}")
    return name


def _ranking(
    files: list[Path],
    published: bool,
    html: Path | None,
    signers: Path | None,
    heads: Path | None,
    level: Level | None,
    benchmark: str | None,
    as_json: bool,
) -> None:
    from hpcai500.campaign.journal import read_heads  # keeps `--help` fast
    from hpcai500.progress import track
    from hpcai500.results.ranking.pages import make_ranking
    from hpcai500.results.ranking.published import published_document, published_lines, published_page
    from hpcai500.results.ranking.ranking import ranking_document, ranking_lines

    given = read_heads(heads) if heads else None
    ranking = make_ranking(
        files, site=html, signers=signers, heads=given, tracker=track, on_examined=_report, with_published=published
    )
    if html:
        say(f"{html / 'index.html'}: written")
    if as_json:
        beside = {"published": published_document(published_page())} if published else {}
        show({**ranking_document(ranking, level, benchmark), **beside})
        return
    show(ranking_lines(ranking, level, benchmark))
    if published:
        show(["", *published_lines(published_page())])


def _report(examined: Examined) -> None:
    from hpcai500.results.ranking.ranking import examined_line  # keeps `--help` fast

    say(examined_line(examined))


def _published(as_json: bool) -> None:
    from hpcai500.results.ranking.published import published_document, published_lines, published_page

    page = published_page()
    show({"entries": published_document(page)} if as_json else published_lines(page))
