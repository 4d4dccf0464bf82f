"""Standard streams that a caller closed (`hpcai500 … >&-`): without them, everything that prints would fail."""

from __future__ import annotations

import io
import os
import sys


def open_missing_streams() -> None:
    """Send what nobody wants to read to nowhere: a run must not die of its last line."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - lives as long as we do


def print_what_can_be_printed() -> None:
    """Where the terminal's encoding lacks a character, print a ? for it: a result must not die of a dash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
