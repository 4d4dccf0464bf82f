"""The seek index of an image set: where decoding can begin within each file, so that a crop costs what it shows.

`hpcai500 data index ic DIR` makes it, and both loaders use it where it is. It changes no pixel, and nothing of what the
set is: its file lies beside the classes' folders, and no listing, fingerprint or record has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcai500._core import SeekIndex
from hpcai500.data.derived import derived_paths
from hpcai500.placement import find_placement

SEEK_INDEX = ".hpcai500-seek-index"

_told: set[str] = set()


@dataclass(frozen=True)
class SeekCounts:
    """Images that were decoded with seek points; that the index did not know; of which it said what is not so.

    The others are of kinds that have no points, or there is no index.
    """

    used: int = 0
    unknown: int = 0
    false: int = 0

    def __add__(self, other: SeekCounts) -> SeekCounts:
        return SeekCounts(self.used + other.used, self.unknown + other.unknown, self.false + other.false)


NO_COUNTS = SeekCounts()


@dataclass(frozen=True, eq=False)
class FoundIndex:
    """An index that is used, and where it lies."""

    path: Path
    root: Path
    index: SeekIndex

    def notice(self, counts: SeekCounts, images: int) -> None:
        """Tell, once in a process, that the index does not fit the set: of these `images` it missed some."""
        if counts.unknown or counts.false:
            _tell_once(self.path, f"{_misses(counts, images)}: they are decoded without it, more slowly", self.root)


def find_seek_index(root: Path, complain: Callable[[Path, str, Path], None] | None = None) -> FoundIndex | None:
    """The index of the set at `root`, the newer one where there are one in the set and one in the user's cache.

    Of one that cannot be used `complain(path, reason, root)` is called (default: one warning on stderr).
    """
    complain = complain or _tell_once
    for path in sorted(filter(Path.is_file, _visible(root)), key=_time_ns, reverse=True):
        try:
            return FoundIndex(path, root, SeekIndex(os.fsencode(path)))
        except (OSError, ValueError, MemoryError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            complain(path, f"{reason}: images are decoded without it, more slowly", root)
    return None


def _visible(root: Path) -> list[Path]:
    return [path for path in derived_paths(root, SEEK_INDEX) if os.access(path, os.F_OK)]


def _time_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _misses(counts: SeekCounts, images: int) -> str:
    said = []
    if counts.unknown:
        said.append(f"does not know {counts.unknown} of the first {images} images")
    if counts.false:
        said.append(f"is false for {counts.false} of the first {images} images")
    return " and ".join(said)


def _tell_once(path: Path, reason: str, root: Path) -> None:
    """Once in a process, and by one process of a node."""
    if str(path) in _told:
        return
    _told.add(str(path))
    if find_placement(os.environ).local_rank == 0:
        text = f"hpcai500: warning: the seek index {path} {reason}; `hpcai500 data index ic {root}` makes it anew\n"
        # A folder's name need not be valid UTF-8.
        sys.stderr.write(text.encode("utf-8", "backslashreplace").decode())
