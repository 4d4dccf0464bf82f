"""The climate files of a staged folder, as it describes them: what readers and writers of it agree on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcai500.data.staging.layout import FORMAT, YEARS, state_folder, write_document


@dataclass(frozen=True)
class StagedYear:
    """One file.

    Attributes:
        name: of the file.
        size_bytes, mtime_ns: of it at the source.
        first: number of its first piece: all but its images; the pieces of its windows follow.
        images: how many it has.
        window: images of a window; 1 where images share no chunks.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    first: int
    images: int
    window: int

    @property
    def windows(self) -> int:
        """How many windows it has."""
        return -(-self.images // self.window)


def read_years(root: Path) -> tuple[StagedYear, ...]:
    """The files of a staged folder; none where it is no such folder, or holds no years.

    Raises:
        OSError, ValueError, KeyError, TypeError: the description cannot be read.
    """
    try:
        document = json.loads((state_folder(root) / YEARS).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    years = tuple(StagedYear(**year) for year in document["years"])
    # Files of these names are written to, and removed.
    if strange := [year.name for year in years if year.name in ("", ".", "..") or "/" in year.name]:
        raise ValueError(f"{strange[0]!r} is no name of a file in it")
    return years


def write_years(root: Path, years: Sequence[StagedYear]) -> None:
    """Describe the files of a staged folder. Raises OSError."""
    write_document(state_folder(root) / YEARS, {"format": FORMAT, "years": [asdict(year) for year in years]})
