"""Parts of a site's pages: templates and their security policy, names of pages, Markdown, and the bar chart.

A policy in each page's head names what a browser may do with it: use the one style in the page, by its hash, and run
the site's own script on pages with tables; nothing else, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from hpcai500 import __version__
from hpcai500.results.ranking.entries import Examined
from hpcai500.results.report.blocks import Chart, Key, legible_value
from hpcai500.results.report.drawing import Axis, drawing, element, label, spanning
from hpcai500.text import duration, quantity, short

if TYPE_CHECKING:
    from jinja2 import Environment


# ----------------------------------------------------------------------------------------------------
# Templates of the site, which override those of the report. What is put into them is escaped, as there.


SCRIPT = "site.js"


def site_page(template: str, *, above: str = "", script: bool = False, made: date, **values: object) -> str:
    """The page of `template` with `values`.

    Args:
        above: the way up to the site's folder: empty, or `../`.
        script: whether it has tables to sort.
        made: the day that the page names.
    """
    style = site_style()
    return (
        _environment()
        .get_template(template)
        .render(
            version=__version__,
            style=Markup(style),  # noqa: S704 - our own file
            policy=policy(style, script),
            script=f"{above}{SCRIPT}" if script else None,
            above=above,
            made=made.isoformat(),
            **values,
        )
    )


def site_script() -> str:
    return _template("site.js")


@cache
def site_style() -> str:
    """The report's style, then the site's own."""
    report = files("hpcai500.results.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    # The template puts the style between line ends, which count for its hash.
    return f"\n{report}{_template('site.css')}"


def policy(style: str, script: bool) -> str:
    """The content security policy of a page with this style."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    scripts = "script-src 'self'; " if script else ""
    return (
        f"default-src 'none'; {scripts}style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _template(name: str) -> str:
    return files("hpcai500.results.ranking").joinpath(f"templates/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined  # a terminal needs none

    return Environment(
        loader=ChoiceLoader([PackageLoader("hpcai500.results.ranking"), PackageLoader("hpcai500.results.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=legible_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


# ----------------------------------------------------------------------------------------------------
# Pages of submissions are named by the hash of their manifest, so that links stay valid for years.


_LETTERS = 16


def place_of(examined: Examined) -> str:
    """The submission's short name; empty for a file that could not be read far enough to have one."""
    return examined.facts.manifest_sha256[:_LETTERS] if examined.facts else ""


def page_name(examined: Examined) -> str | None:
    """File of its page; None for a file that could not be read far enough to have one."""
    return f"{place_of(examined)}.html" if examined.facts else None


def report_name(examined: Examined) -> str | None:
    """File of the report about its runs; None where there is none."""
    return f"{place_of(examined)}-report.html" if examined.facts and examined.facts.report else None


# ----------------------------------------------------------------------------------------------------
# Markdown as HTML: raw HTML in it stays text, and its links lead to pages that exist, or nowhere.


# From a link as it was written to the one in the site; None where it leads nowhere.
Address = Callable[[str], str | None]
# Letters in which title and first paragraph are looked for.
_MOST_READ = 4000
_ALIGNED = {"text-align:right": "to-end", "text-align:center": "to-middle"}


def to_html(text: str, address: Address, titles: Mapping[str, str] | None = None) -> Markup:
    """`text` (CommonMark and tables) as HTML; links lead where `address` says.

    `titles` are the words for a link whose own words are only the name of a file.
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
    """Text of the first element that the token `opening` begins, outside of lists and tables."""
    for token, inside in pairwise(_parser().parse(text[:_MOST_READ])):
        if token.type == opening and token.level == 0:
            words = "".join(" " if child.type == "softbreak" else child.content for child in inside.children or [])
            return " ".join(words.split())
    return None


def anchor_of(heading: str) -> str:
    """The anchor of a heading, as hosts of repositories make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


class _Renderer(RendererHTML):
    """Tables and code that are too wide can be scrolled, by keyboard too."""

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
    """Alignment as classes: the page's policy forbids styles of single cells."""
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


# ----------------------------------------------------------------------------------------------------
# VFLOPS as bars, with the time to quality beside each (V2.0 Fig. 14); colours tell precision and compression.


WIDTH = 400.0
MOST_BARS = 40
_TOP, _STEP, _BAR = 24.0, 40.0, 13.0
# Right end of the longest bar, with room for its number after it; left and right end of the times.
_BAR_END, _TIMES, _TIMES_END = 222.0, 312.0, 394.0
_MOST_LETTERS = 32
# Precisions take the page's colours in this order; there are no more than these.
_COLOURS = (1, 4, 3, 5, 2, 6)


@dataclass(frozen=True)
class Bar:
    """One system: its key in the table, its place, and what is drawn of it."""

    key: str
    place: int
    system: str
    implementation: str
    vflops: float
    seconds: float | None


def bar_chart(title: str, bars: Sequence[Bar]) -> Chart:
    """The drawing of the first of `bars`, one below the other."""
    drawn = bars[:MOST_BARS]
    kinds = list(dict.fromkeys(bar.implementation for bar in drawn))
    colours = {kind: _COLOURS[min(index, len(_COLOURS) - 1)] for index, kind in enumerate(kinds)}
    rates = spanning("VFLOPS", [bar.vflops for bar in drawn])
    times = spanning("time to quality", [bar.seconds for bar in drawn if bar.seconds is not None])
    said = "; ".join(_said(bar) for bar in drawn)
    height = _TOP + _STEP * len(drawn)
    parts = [*_frame(), *(_bar(bar, row, rates, times, colours) for row, bar in enumerate(drawn))]
    return Chart(
        title,
        _marked(drawing(title, said, WIDTH, height, parts)),
        "Left: mean VFLOPS of the trials. Right: mean time to the target quality, an auxiliary metric.",
        [Key(kind, colour) for kind, colour in _legend(colours)],
    )


def _legend(colours: dict[str, int]) -> list[tuple[str, int]]:
    kinds = list(colours.items())
    many = len(kinds) - len(_COLOURS)
    return kinds if many <= 0 else [*kinds[: len(_COLOURS) - 1], (f"{many + 1} others", _COLOURS[-1])]


def _said(bar: Bar) -> str:
    time = "target quality not reached" if bar.seconds is None else f"{duration(bar.seconds)} to quality"
    return f"{bar.place}. {short(bar.system, 60)}: {quantity(bar.vflops, 'FLOPS')}, {time}"


def _frame() -> Iterator[Markup]:
    yield label(0, 12, "VFLOPS", "tick")
    yield label(_TIMES_END, 12, "time to quality", "tick", "end")


def _bar(bar: Bar, row: int, rates: Axis, times: Axis, colours: dict[str, int]) -> Markup:
    return element(
        "g",
        *_rate(bar, rates, colours[bar.implementation]),
        *_time(bar, times),
        data_entry=bar.key,
        transform=f"translate(0 {_TOP + _STEP * row:g})",
    )


def _rate(bar: Bar, rates: Axis, colour: int) -> Iterator[Markup]:
    end = rates.place(bar.vflops) * _BAR_END
    place = element("tspan", str(bar.place), class_="rank")
    yield element("text", place, f"  {short(bar.system, _MOST_LETTERS)}", x=0, y=11, class_="name")
    yield element("rect", x=0, y=16, width=max(end, 1.0), height=_BAR, rx=1.5, class_=f"surface c{colour}")
    yield label(end + 6, 27, quantity(bar.vflops, "FLOPS"), "value")


def _time(bar: Bar, times: Axis) -> Iterator[Markup]:
    middle = 16 + _BAR / 2
    yield element("line", x1=_TIMES, x2=_TIMES_END, y1=middle, y2=middle, class_="rule")
    yield label(_TIMES_END, 11, "never" if bar.seconds is None else duration(bar.seconds), "label", "end")
    if bar.seconds is not None:
        at = _TIMES + times.place(bar.seconds) * (_TIMES_END - _TIMES)
        yield element("line", x1=_TIMES, x2=at, y1=middle, y2=middle, class_="stem")
        yield element("circle", cx=at, cy=middle, r=4, class_="head")


def _marked(svg: Markup) -> Markup:
    """The drawing with the sizes that the script needs to close gaps."""
    return Markup(str(svg).replace("<svg ", f'<svg data-top="{_TOP:g}" data-step="{_STEP:g}" ', 1))  # noqa: S704 - escaped
