"""The documentation of this version as pages: a ranking whose method cannot be read proves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import hpcai500
from hpcai500.errors import EnvironmentLacksError
from hpcai500.results.ranking.site.prose import first_sentence, title_of, to_html
from hpcai500.results.ranking.site.rendering import site_page
from hpcai500.results.report.words import short

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
    """One page as it was written."""

    name: str
    title: str
    summary: str
    text: str


def docs_folder() -> Path:
    """The folder of the documentation: in the installed package, or beside it in a checkout."""
    installed, checkout = _PACKAGE / "docs", _PACKAGE.parent / "docs"
    return installed if installed.is_dir() else checkout


def method_pages(folder: Path, made: date) -> dict[str, str]:
    """Path in the site -> page, for each page in `folder`, and a list of them.

    Raises:
        EnvironmentLacksError: there is no documentation.
    """
    written = _written(folder)
    titles = {f"{page.name}.md": page.title for page in written}
    pages = {f"method/{page.name}.html": _page(page, titles, made) for page in written}
    return {"method/index.html": _index(written, made), **pages}


def address(href: str, names: frozenset[str]) -> str | None:
    """Where a link of a page leads in the site: to another page of it, to its own headings, or to the web."""
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
