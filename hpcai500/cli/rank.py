"""`hpcai500 rank`: verified submissions in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.options import Heads, Json
from hpcai500.errors import UsageError
from hpcai500.streams import say, show

if TYPE_CHECKING:
    from hpcai500.results.ranking.entries import Level
    from hpcai500.results.ranking.examined import Examined


def rank(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Submissions, as `hpcai500 submit` wrote them.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Also the project's nine published systems, computed again.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="DIR", help="Write the ranking as a static site as well.")
    ] = None,
    signers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys that are vouched for (OpenSSH's allowed signers).")
    ] = None,
    heads: Heads = None,
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Print the lists of hardware, system or free only.")
    ] = None,
    benchmark: Annotated[str | None, typer.Option(metavar="NAME", help="Print the lists of this one only.")] = None,
    as_json: Json = False,
) -> None:
    """Verify submissions and rank those that hold, by benchmark and level: docs/ranking.md.

    A file that does not hold is listed with the reason, and keeps no other from being ranked: the command ends with 0.
    """
    if not files and not published:
        raise UsageError("rank: name submissions: hpcai500 rank FILE... (or --published for the published systems)")
    known_level, known_benchmark = _level(level), _benchmark(benchmark)
    if files or html:
        _ranking(files or [], published, html, signers, heads, known_level, known_benchmark, as_json)
    else:
        _published(as_json)


def _level(name: str | None) -> Level | None:
    from hpcai500.results.ranking.entries import LEVELS  # noqa: PLC0415 - keeps `--help` fast

    found = next((level for level in LEVELS if level == name), None)
    if name is not None and found is None:
        raise UsageError(f"--level {name}: expected one of {', '.join(LEVELS)}")
    return found


def _benchmark(name: str | None) -> str | None:
    from hpcai500.layers import RECIPE_TYPES  # noqa: PLC0415 - keeps `--help` fast

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
    from hpcai500.campaign.heads import read_heads  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.progress import track  # noqa: PLC0415
    from hpcai500.results.ranking.documents import ranking_document  # noqa: PLC0415
    from hpcai500.results.ranking.making import make_ranking  # noqa: PLC0415
    from hpcai500.results.ranking.published import published_page  # noqa: PLC0415
    from hpcai500.results.ranking.published_words import published_document, published_lines  # noqa: PLC0415
    from hpcai500.results.ranking.text import ranking_lines  # noqa: PLC0415

    given = read_heads(heads) if heads else None
    ranking = make_ranking(files, site=html, signers=signers, heads=given, tracker=track, told=_tell)
    if html:
        say(f"{html / 'index.html'}: written")
    if as_json:
        beside = {"published": published_document(published_page())} if published else {}
        show({**ranking_document(ranking, level, benchmark), **beside})
        return
    show(ranking_lines(ranking, level, benchmark))
    if published:
        show(["", *published_lines(published_page())])


def _tell(examined: Examined) -> None:
    from hpcai500.results.ranking.text import examined_line  # noqa: PLC0415 - keeps `--help` fast

    say(examined_line(examined))


def _published(as_json: bool) -> None:
    from hpcai500.results.ranking.published import published_page  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.ranking.published_words import published_document, published_lines  # noqa: PLC0415

    page = published_page()
    show({"entries": published_document(page)} if as_json else published_lines(page))
