"""Bars of letters: how much is done, and how a number is spread over members."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_LETTERS = "_.-=+*#@"
_WIDTH = 30


def progress_bar(share: float) -> str:
    """`[######------]` for a share from 0 to 1."""
    done = round(_WIDTH * min(max(share, 0.0), 1.0))
    return f"[{'#' * done}{'-' * (_WIDTH - done)}]"


def spread_bar(values: Sequence[float], *, ascii_only: bool, width: int = _WIDTH) -> str:
    """How many of `values` lie where between the least and the greatest: the higher, the more; a space: none."""
    low, high = min(values), max(values)
    counts = [0] * width
    for value in values:
        counts[int((value - low) / (high - low) * (width - 1) + 0.5) if high > low else width // 2] += 1
    levels = _LETTERS if ascii_only else _BLOCKS
    most = max(counts)
    return "".join(levels[(len(levels) - 1) * count // most] if count else " " for count in counts)
