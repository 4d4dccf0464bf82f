"""Columns of text for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Each row as a line; columns are as wide as their widest cell, those in `right` end at one edge."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            _padded(cell, width, to_right=index in right)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _padded(cell: str, width: int, *, to_right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if to_right else cell + room


def _width(text: str) -> int:
    """Places that a terminal gives to `text`: two to each letter of Chinese, Japanese or Korean, none to an accent."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
