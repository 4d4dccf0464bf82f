"""Numbers of members for people and for command lines: `0-7,12`, as `parse_members` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def in_ranges(numbers: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2,5`: ascending, each once."""
    return ",".join(_runs(numbers))


def in_short(numbers: Iterable[int], most: int = 12) -> str:
    """The same for a sentence: of many runs, the first `most`, and how many numbers there are in all."""
    numbers = set(numbers)
    runs = _runs(numbers)
    return ",".join(runs) if len(runs) <= most else f"{','.join(runs[:most])},… ({len(numbers)} in all)"


def _runs(numbers: Iterable[int]) -> list[str]:
    found = []
    for _, group in groupby(enumerate(sorted(set(numbers))), key=lambda item: item[1] - item[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return found
