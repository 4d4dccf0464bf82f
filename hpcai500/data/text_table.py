"""Numbers and columns as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> str:
    """Return `rows` in columns under `title` (indented; "" for neither), or "" without rows.

    With a `header`, columns are aligned to the right, as numbers are, but for the first and the last.
    """
    if not rows:
        return ""
    lines = [header, *rows] if header else list(rows)
    columns = list(zip(*lines, strict=True))
    for number, column in enumerate(columns):
        width = max(map(len, column))
        to_right = header and 0 < number < len(columns) - 1
        columns[number] = tuple(cell.rjust(width) if to_right else cell.ljust(width) for cell in column)
    indent = "  " if title else ""
    text = [indent + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join([title, *text] if title else text) + "\n"


def size(count_bytes: int) -> str:
    """Return bytes in GB, or in MB where that is less than one."""
    return f"{count_bytes / 1e9:.3g} GB" if count_bytes >= 1e9 else f"{count_bytes / 1e6:.3g} MB"
