"""Numbers and columns as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from hpcai500.streams import spelt_out


def table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> list[str]:
    """Return lines: `rows` in columns under `title` (indented; "" for neither); none without rows.

    With a `header`, columns are aligned to the right, as numbers are, but for the first and the last.
    """
    if not rows:
        return []
    lines = [[spelt_out(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    columns = list(zip(*lines, strict=True))
    for number, column in enumerate(columns):
        width = max(map(len, column))
        to_right = header and 0 < number < len(columns) - 1
        columns[number] = tuple(cell.rjust(width) if to_right else cell.ljust(width) for cell in column)
    indent = "  " if title else ""
    text = [indent + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return [title, *text] if title else text


def size(count_bytes: int) -> str:
    """Return bytes in GB, or in MB where that is less than one."""
    return f"{count_bytes / 1e9:.3g} GB" if count_bytes >= 1e9 else f"{count_bytes / 1e6:.3g} MB"
