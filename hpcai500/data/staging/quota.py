"""Whether what is to be copied fits, before anything is copied."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from hpcai500.data.staging.digests import Marks
from hpcai500.data.staging.pieces import Sizes
from hpcai500.errors import EnvironmentLacksError
from hpcai500.text import size


@dataclass(frozen=True)
class Room:
    """What a staged folder may take.

    Attributes:
        block_bytes: of which each file takes whole ones.
        free_bytes: that this user may still write.
        free_files: that may still be made; None where there is no limit.
        limit_bytes: of all that is staged there; None: as much as the storage has.
    """

    block_bytes: int
    free_bytes: int
    free_files: int | None
    limit_bytes: int | None

    def taken(self, sizes: Sizes, marks: Marks) -> int:
        """Bytes of the storage that pieces take."""
        return int((-(-sizes[marks] // self.block_bytes)).sum()) * self.block_bytes

    def left_bytes(self, sizes: Sizes, here: Marks) -> int:
        """That may still be written beside the pieces that are here."""
        if self.limit_bytes is None:
            return self.free_bytes
        return min(self.free_bytes, self.limit_bytes - self.taken(sizes, here))

    def lacks(self, sizes: Sizes, here: Marks, missing: Marks, files: int, beside_bytes: int = 0) -> str | None:
        """Why the `missing` pieces, in `files` new files, do not fit beside those that are here; None where they do.

        `beside_bytes` are there that belong to no piece.
        """
        needed = self.taken(sizes, missing)
        there = self.taken(sizes, here) + beside_bytes
        if self.limit_bytes is not None and there + needed > self.limit_bytes:
            return f"{size(needed)} to copy beside {size(there)} are more than the --limit of {size(self.limit_bytes)}"
        if needed > self.free_bytes:
            return f"{size(needed)} to copy, and {size(self.free_bytes)} are free"
        if self.free_files is not None and files > self.free_files:
            return f"{files} files to make, and the file system takes {self.free_files} more"
        return None


def room_of(root: Path, limit_bytes: int | None) -> Room:
    """What the storage of `root` has left. Raises OSError."""
    status = os.statvfs(root)
    free_files = status.f_favail if status.f_files else None
    return Room(status.f_frsize, shutil.disk_usage(root).free, free_files, limit_bytes)


def no_room(root: Path, reason: str) -> EnvironmentLacksError:
    """What to raise where it does not fit."""
    return EnvironmentLacksError(
        f"{root}: no room: {reason}: make room there, give another folder, run fewer members on a node, or release "
        "what others have left (--release)"
    )
