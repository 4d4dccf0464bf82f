"""What goes wrong, said in one line on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from hpcai500.errors import HpcAi500Error


def job_error(record: Path) -> str | None:
    """What the job wrote about its end; it has told the user already."""
    path = record / "ERROR"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def tell(error: HpcAi500Error | str) -> str:
    """Say `error` on stderr, with where it came from if HPCAI500_TRACEBACK is set; returns its text."""
    if os.environ.get("HPCAI500_TRACEBACK"):
        traceback.print_exc()
    print(f"hpcai500: error: {error}", file=sys.stderr)  # noqa: T201
    return str(error)
