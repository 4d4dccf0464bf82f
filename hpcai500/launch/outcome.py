"""What became of one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """One run: where its record lies and how its job ended."""

    record: Path
    exit_code: int
