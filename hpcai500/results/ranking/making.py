"""From files to a ranking, and to its site where one is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hpcai500.campaign.heads import GivenHeads
from hpcai500.progress import Tracker, silent
from hpcai500.results.ranking.disputes import read_shown
from hpcai500.results.ranking.examined import Examined, ReportMaker, examine
from hpcai500.results.ranking.ranking import Ranking, rank
from hpcai500.results.submission.signature import listed_keys


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
        files: what `hpcai500 submit` wrote, or something that says so.
        site: a folder that is free, or holds a site of ours.
        signers: OpenSSH file of keys that are vouched for.
        heads: of journals, as they were given while campaigns ran.
        tracker: shows how far each verification is.
        told: is called with each file when it was looked at.

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
        from hpcai500.results.ranking.site.pages import site_files  # noqa: PLC0415 - only a site needs Markdown
        from hpcai500.results.ranking.site.writing import write_site  # noqa: PLC0415

        write_site(site, site_files(ranking, datetime.now(UTC).date()))
    return ranking


def _ready(site: Path) -> ReportMaker:
    """What makes reports; where the site cannot go, that is said before hours of verification."""
    from hpcai500.results.ranking.site.run_report import run_report  # noqa: PLC0415 - only a site needs it
    from hpcai500.results.ranking.site.writing import check_place  # noqa: PLC0415

    check_place(site)
    return run_report
