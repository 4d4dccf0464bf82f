"""All files of a site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

from hpcai500.results.ranking.disputes import RUNS, shown_text
from hpcai500.results.ranking.documents import ranking_document
from hpcai500.results.ranking.examined import Examined
from hpcai500.results.ranking.published import published_page
from hpcai500.results.ranking.ranking import Ranking
from hpcai500.results.ranking.site.index_page import index_page
from hpcai500.results.ranking.site.method_pages import docs_folder, method_pages
from hpcai500.results.ranking.site.names import page_name, report_name
from hpcai500.results.ranking.site.published_pages import published_systems_page
from hpcai500.results.ranking.site.rendering import SCRIPT, site_script
from hpcai500.results.ranking.site.submission_page import ranked_page, unranked_page


def site_files(ranking: Ranking, made: date, docs: Path | None = None) -> dict[str, str]:
    """Path in the site -> content.

    Args:
        ranking: what it shows.
        made: the day that its pages name.
        docs: folder of the documentation; that of this installation where it is None.
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
    """The same without the names of folders on the machine that made it: the site is for everyone."""

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
    # One that was given twice has one page: that of its rank, which comes last.
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
