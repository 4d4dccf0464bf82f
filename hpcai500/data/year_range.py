"""Years on a command line."""

from __future__ import annotations

import argparse
import re


def year_range(text: str) -> tuple[int, int]:
    """`1979` or `1979-1981` -> first and last year.

    Raises:
        ArgumentTypeError: it is something else.
    """
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} are no years: write 1979 or 1979-1981")
    return int(match[1]), int(match[2] or match[1])
