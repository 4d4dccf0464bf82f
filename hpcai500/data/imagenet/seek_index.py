"""The seek index of an image set: where decoding can begin within each file, so that a crop costs what it shows.

`hpcai500 data index ic DIR` makes it, and both loaders use it where it is. It changes no pixel, and nothing of what the
set is: its file lies beside the classes' folders, and no listing, fingerprint or record has it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from hpcai500._core import SeekIndex
from hpcai500.data.derived import derived_paths
from hpcai500.placement import find_placement
from hpcai500.streams import say

SEEK_INDEX = ".hpcai500-seek-index"

_SLOWER = "images are decoded without it, more slowly"

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
        """Tell, once in a process, that the index does not fit the set: of a batch of `images` it missed some."""
        said = []
        if counts.unknown:
            said.append(f"does not know {counts.unknown}")
        if counts.false:
            said.append(f"is false for {counts.false}")
        if said:
            self.tell(f"{' and '.join(said)} of the {images} images of a batch")

    def tell(self, reason: str) -> None:
        """Tell, once in a process, that images are decoded without the index."""
        _tell_once(self.path, reason, _SLOWER, _anew(self.root))


def find_seek_index(root: Path, *, otherwise: str = _SLOWER) -> FoundIndex | None:
    """The index of the set at `root`, the newer one where there are one in the set and one in the user's cache.

    Of one that cannot be used there is one warning on stderr, which says `otherwise` where there is no other.
    """
    found, unusable = None, []
    for path in _newest_first(root):
        try:
            found = FoundIndex(path, root, SeekIndex(os.fsencode(path)))
            break
        except OSError as error:
            reason = f"cannot be read ({os.strerror(error.errno or errno.EIO)})"
            remedy = f"have it made readable, or `hpcai500 data index ic {root} --cache` makes one of your own"
        except MemoryError:
            reason, remedy = "does not fit into memory", "give the job more memory"
        except ValueError as error:
            reason, remedy = str(error), _anew(root)
        unusable.append((path, reason, remedy))
    for path, reason, remedy in unusable:
        _tell_once(path, reason, f"the older {found.path} is used" if found else otherwise, remedy)
    return found


def _newest_first(root: Path) -> list[Path]:
    times_ns = {}
    for path in derived_paths(root, SEEK_INDEX):
        # There need be none; and what this user cannot see is none.
        with contextlib.suppress(OSError):
            times_ns[path] = path.stat().st_mtime_ns
    return sorted(times_ns, key=times_ns.__getitem__, reverse=True)


def _anew(root: Path) -> str:
    return f"`hpcai500 data index ic {root}` makes it anew"


def _tell_once(path: Path, reason: str, consequence: str, remedy: str) -> None:
    """Once in a process, and by one process of a node."""
    if str(path) in _told:
        return
    _told.add(str(path))
    if find_placement(os.environ).local_rank == 0:
        say(f"warning: the seek index {path} {reason}: {consequence}; {remedy}")
