"""Markdown as HTML: raw HTML in it stays text, and its links lead to pages that are there, or nowhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

# From the address that a page was written with to the one that it has here; None where there is none.
Address = Callable[[str], str | None]
# Where title and first paragraph stand.
_MOST_READ = 4000
_ALIGNED = {"text-align:right": "to-end", "text-align:center": "to-middle"}


def to_html(text: str, address: Address, titles: Mapping[str, str] | None = None) -> Markup:
    """`text` as HTML.

    Args:
        text: Markdown: CommonMark and tables.
        address: where its links lead.
        titles: what to write for a link whose words are only the name of a file.
    """
    parser = _parser()
    tokens = parser.parse(text)
    _name_headings(tokens)
    _align_by_class(tokens)
    for token in tokens:
        if token.children:
            token.children = _linked(token.children, address, titles or {})
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - raw HTML is off


def title_of(text: str) -> str | None:
    """The first heading, without its marks."""
    return _words(text, "heading_open")


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, without its marks; empty where there is none."""
    line = re.split(r"(?<=\.)\s", _words(text, "paragraph_open") or "", maxsplit=1)[0]
    return f"{line[:-1]}." if line.endswith(":") else line


def _words(text: str, opening: str) -> str | None:
    """Text of the first element that `opening` begins, lists and tables aside."""
    for token, inside in pairwise(_parser().parse(text[:_MOST_READ])):
        if token.type == opening and token.level == 0:
            words = "".join(" " if child.type == "softbreak" else child.content for child in inside.children or [])
            return " ".join(words.split())
    return None


def anchor_of(heading: str) -> str:
    """The name that links give a heading, as hosts of repositories make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


class _Renderer(RendererHTML):
    """Tables and code that are too wide are scrolled, also by keyboard."""

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
    # A picture of a repository would be loaded from elsewhere.
    return parser.disable("image")


def _name_headings(tokens: Sequence[Token]) -> None:
    seen: dict[str, int] = {}
    for opening, inside in pairwise(tokens):
        if opening.type == "heading_open":
            anchor = anchor_of("".join(child.content for child in inside.children or []))
            number = seen[anchor] = seen.get(anchor, -1) + 1
            opening.attrSet("id", anchor if not number else f"{anchor}-{number}")


def _align_by_class(tokens: Sequence[Token]) -> None:
    """The page's policy forbids styles of single cells."""
    for token in tokens:
        style = str(token.attrs.pop("style", ""))
        if style in _ALIGNED:
            token.attrSet("class", _ALIGNED[style])


def _linked(children: Sequence[Token], address: Address, titles: Mapping[str, str]) -> list[Token]:
    kept: list[Token] = []
    is_open: list[bool] = []
    for token in children:
        if token.type == "link_open":
            target = address(str(token.attrGet("href") or ""))
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
