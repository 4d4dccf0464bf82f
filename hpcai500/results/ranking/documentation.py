"""The documentation of this version as HTML pages, which a ranking shows as its method.

Pages are Markdown (CommonMark and tables). Raw HTML in them stays text. Links to anything but pages of the site and the
web are removed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

import hpcai500
from hpcai500.errors import EnvironmentLacksError
from hpcai500.text import short

_MOST_SUMMARY = 220
# Characters in which title and first paragraph are searched.
_MOST_READ = 4000
_ALIGNED = {"text-align:right": "to-end", "text-align:center": "to-middle"}


@dataclass(frozen=True)
class Document:
    """One page of the documentation; `name` is its file name without `.md`, `summary` its first sentence."""

    name: str
    title: str
    summary: str
    html: Markup


def docs_folder() -> Path:
    """The folder of the documentation: in the installed package, or beside it in a checkout."""
    package = Path(hpcai500.__file__).parent
    installed = package / "docs"
    return installed if installed.is_dir() else package.parent / "docs"


def read_documents(folder: Path) -> list[Document]:
    """All pages in `folder`, by name.

    Raises:
        EnvironmentLacksError: the documentation is missing.
    """
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    if not texts:
        raise EnvironmentLacksError(
            f"{folder}: the documentation is missing, which the site includes; install hpcai500 again: pip install ."
        )
    titles = {name: title_of(text) or name.removesuffix(".md") for name, text in texts.items()}
    return [
        Document(
            name.removesuffix(".md"), titles[name], short(first_sentence(text), _MOST_SUMMARY), to_html(text, titles)
        )
        for name, text in texts.items()
    ]


def to_html(text: str, titles: Mapping[str, str]) -> Markup:
    """`text` as HTML, with links to the pages in `titles` (title by file name).

    The text of a link that is only a file name is replaced by the page's title.
    """
    parser = _parser()
    tokens = parser.parse(text)
    _name_headings(tokens)
    _align_by_class(tokens)
    for token in tokens:
        if token.children:
            token.children = _linked(token.children, titles)
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - raw HTML is off


def title_of(text: str) -> str | None:
    """The first heading, without markup."""
    return _words(text, "heading_open")


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, without markup; empty if there is none."""
    line = re.split(r"(?<=\.)\s", _words(text, "paragraph_open") or "", maxsplit=1)[0]
    return f"{line[:-1]}." if line.endswith(":") else line


def anchor_of(heading: str) -> str:
    """The anchor of a heading, as on GitHub."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


class _Renderer(RendererHTML):
    """Makes wide tables and code scrollable, also by keyboard."""

    def table_open(self, *_: object) -> str:
        return '<div class="scroll" role="region" aria-label="Table" tabindex="0"><table>\n'

    def table_close(self, *_: object) -> str:
        return "</table></div>\n"

    def fence(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        return f'<pre tabindex="0"><code>{escape(tokens[idx].content)}</code></pre>\n'

    def code_block(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        return self.fence(tokens, idx)


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    # Pictures would be loaded from other servers.
    return parser.disable("image")


def _words(text: str, opening: str) -> str | None:
    """Text of the first element that starts with the token `opening`, outside of lists and tables."""
    for token, inside in pairwise(_parser().parse(text[:_MOST_READ])):
        if token.type == opening and token.level == 0:
            words = "".join(" " if child.type == "softbreak" else child.content for child in inside.children or [])
            return " ".join(words.split())
    return None


def _name_headings(tokens: Sequence[Token]) -> None:
    seen: dict[str, int] = {}
    for opening, inside in pairwise(tokens):
        if opening.type == "heading_open":
            anchor = anchor_of("".join(child.content for child in inside.children or []))
            number = seen[anchor] = seen.get(anchor, -1) + 1
            opening.attrSet("id", anchor if not number else f"{anchor}-{number}")


def _align_by_class(tokens: Sequence[Token]) -> None:
    """Replace alignment styles by classes: the page's policy forbids inline styles."""
    for token in tokens:
        style = str(token.attrs.pop("style", ""))
        if style in _ALIGNED:
            token.attrSet("class", _ALIGNED[style])


def _linked(children: Sequence[Token], titles: Mapping[str, str]) -> list[Token]:
    kept: list[Token] = []
    is_open: list[bool] = []
    for token in children:
        if token.type == "link_open":
            target = _address(str(token.attrGet("href") or ""), titles)
            is_open.append(target is not None)
            if target is None:
                continue
            token.attrs = {"href": target, "rel": "noopener noreferrer"} if ":" in target else {"href": target}
        elif token.type == "link_close":
            if not is_open.pop():
                continue
        elif is_open and is_open[-1]:
            token.content = titles.get(token.content.removeprefix("docs/"), token.content)
        kept.append(token)
    return kept


def _address(href: str, files: Collection[str]) -> str | None:
    """The link's target in the site: another page of the documentation, a heading, or the web; None if not allowed."""
    parts = urlsplit(href)
    if parts.scheme in ("http", "https"):
        return href
    if parts.scheme or parts.netloc:
        return None
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    if not parts.path:
        return fragment or None
    file = parts.path.removeprefix("./").removeprefix("docs/")
    return f"{file.removesuffix('.md')}.html{fragment}" if file in files else None
