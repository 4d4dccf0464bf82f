"""The building blocks of pages; the templates define how each looks.

Templates recognise a block by the name of its class. They escape all text of a record, and spell out characters that
cannot be printed; drawings do both themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup, escape

from hpcai500 import __version__
from hpcai500.text import legible

if TYPE_CHECKING:
    from jinja2 import Environment


# Emphasis of a cell or a sentence, always with a word or a sign, so that no meaning depends on colour alone.
Tone = Literal["", "good", "bad", "flag", "soft"]


@dataclass(frozen=True)
class Text:
    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Sentences:
    items: Sequence[str]
    tone: Tone = ""


@dataclass(frozen=True)
class Tile:
    """An important number, with an explanation below it."""

    name: str
    value: str
    detail: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Tiles:
    """Numbers side by side; the first one is the largest."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Cell:
    """A cell with an emphasis."""

    text: str
    tone: Tone = ""


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """Rows below headings.

    Attributes:
        caption: what the table shows; screen readers read it first.
        rows: each has a cell for each column, or a single cell as a heading of the rows below it.
        numeric: positions of columns of numbers.
        left_out: how many rows are not shown.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    numeric: Sequence[int] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Key:
    """One entry of a chart's legend. Colours are 1 to 6; 0 is the colour of text."""

    name: str
    colour: int
    mark: Literal["line", "dashes", "surface", "dot"] = "surface"


@dataclass(frozen=True)
class Chart:
    """A drawing in the page's colours."""

    title: str
    drawing: Markup
    note: str = ""
    keys: Sequence[Key] = ()
    wide: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts side by side if there is room."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Picture:
    """A picture, embedded in the page."""

    source: str
    description: str


@dataclass(frozen=True)
class Fold:
    """Blocks that are hidden until a reader opens them; printed only if `printed`."""

    title: str
    blocks: Sequence[Block]
    printed: bool = True


Block = Text | Sentences | Tiles | Table | Chart | Charts | Picture | Fold


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Banner:
    """The verdict on one record: PASS, FAIL or INVALID, and why.

    `rankable` is None if there is no result; `reasons` say why it is not rankable, the first of them in `sentence` too.
    """

    verdict: str
    rankable: bool | None
    sentence: str
    reasons: Sequence[str] = ()

    @property
    def tone(self) -> str:
        """Green if the run passed and is rankable, amber if it passed but is not, red if it did not pass."""
        return "amber" if self.verdict == "PASS" and self.rankable is False else self.verdict.lower()


@dataclass(frozen=True)
class Part:
    """One record of a page; `facts` name its machine and site."""

    anchor: str
    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    banner: Banner
    sections: Sequence[Section]


# ----------------------------------------------------------------------------------------------------
# Templates to text.


def render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(version=__version__, **values)


def without_folders(html: str, paths: Iterable[Path]) -> str:
    """`html` with each of `paths` shortened to its name: pages are published, and must not show a user's folders."""
    folders = {str(escape(legible(f"{path.parent}/"))) for path in paths if path.is_absolute()} - {"/"}
    # Not inside a relative path, an embedded picture or a tag.
    for folder in sorted(folders, key=len, reverse=True):
        html = re.sub(rf"(?<![\w+/=<.-]){re.escape(folder)}", "", html)
    return html


def legible_value(value: object) -> object:
    """`value` as a template shows it: text by `legible`, markup unchanged."""
    return legible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # keeps other commands fast

    return Environment(
        loader=PackageLoader("hpcai500.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=legible_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
