"""What `hpcai500 scale` says: table, pictures, stable lines, or one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.results.figure_files import write_figures
from hpcai500.results.scaling import read_scaling
from hpcai500.results.scaling_figure import draw_scaling


class Table(Protocol):
    """A weak scaling that can be told."""

    def lines(self) -> Iterator[str]:
        """For people."""

    def figure_of_merit_lines(self) -> Iterator[str]:
        """The stable lines for harnesses."""

    def document(self) -> dict[str, Any]:
        """For programs."""


@dataclass(frozen=True)
class ScaleReport:
    """A weak scaling and its pictures; what ended it early, if anything did."""

    scaling: Table | None
    figures: Sequence[Path] = ()
    error: str | None = None
    error_code: int = ExitCode.PASS

    @property
    def verdict(self) -> str:
        """PASS when all points are there; there is no answer that could be wrong."""
        return "PASS" if self.scaling and self.error is None else "INVALID"

    def lines(self) -> Iterator[str]:
        """For people, with the stable lines for harnesses last."""
        if self.scaling:
            yield from self.scaling.lines()
        for figure in self.figures:
            yield f"figure      {figure}"
        if self.error:
            yield f"error       {self.error}"
        if self.scaling:
            yield from self.scaling.figure_of_merit_lines()
        yield f"HPCAI500 RESULT {self.verdict}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.verdict,
            "error": self.error,
            **(self.scaling.document() if self.scaling else {"benchmark": None, "points": []}),
            "figures": [str(figure) for figure in self.figures],
        }


def report_scaling(records: Sequence[Path], folder: Path | None) -> ScaleReport:
    """The table of `records`; its pictures are written to `folder`, if there is one.

    Raises:
        HpcAi500Error: as `read_scaling`, or the pictures cannot be written.
    """
    scaling = read_scaling(records)
    return ScaleReport(scaling, write_figures(folder, draw_scaling(scaling)) if folder else ())


def report_broken_scaling(records: Sequence[Path], error: str, code: int) -> ScaleReport:
    """What is there of a scaling that was ended by `error`; no picture is drawn of it."""
    try:
        scaling = read_scaling(records)
    except HpcAi500Error:
        # Too few points are left, or this is the very error that is told.
        scaling = None
    return ScaleReport(scaling, error=error, error_code=code)
