"""Brings the seek index of an image set into its staged folder: found by content, it serves any part of the set."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hpcai500.data.imagenet.seek_index import SEEK_INDEX, find_seek_index
from hpcai500.data.staging.layout import PART, state_folder
from hpcai500.data.staging.pieces import Say
from hpcai500.data.text_table import size

# It is of the whole set. Beside a small part of that, one of what is staged is made sooner than the whole is copied.
_LEAST_IMAGES = 10


def index_bytes(root: Path) -> int:
    """Of the index that is in a staged folder; 0 where none is."""
    try:
        return (root / SEEK_INDEX).stat().st_size
    except OSError:
        return 0


def drop_index(root: Path) -> None:
    """Make room: it can be made again. Raises OSError."""
    (root / SEEK_INDEX).unlink(missing_ok=True)


def bring_index(source: Path, root: Path, *, staged_bytes: int, left_bytes: int, say: Say) -> None:
    """Copy the index of the set at `source`, if it has one that is newer than what is here; `say` why not.

    It may take `left_bytes`, and a tenth of the `staged_bytes` that are here. No run needs it: nothing is raised.
    """
    found = find_seek_index(source)
    if found is None:
        return
    try:
        reason = _copy(found.path, root, staged_bytes, left_bytes)
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        say(f"the seek index {found.path} is not copied: {reason}; `hpcai500 data index ic {root}` makes one there")


def _copy(index: Path, root: Path, staged_bytes: int, left_bytes: int) -> str:
    """Returns why not, or ""."""
    status, here = index.stat(), root / SEEK_INDEX
    if here.exists() and here.stat().st_mtime_ns >= status.st_mtime_ns:
        return ""
    if status.st_size * _LEAST_IMAGES > staged_bytes:
        return f"it takes {size(status.st_size)} beside {size(staged_bytes)} of images"
    if status.st_size > left_bytes:
        return f"no room for its {size(status.st_size)}"
    part = state_folder(root) / PART / "seek-index"
    try:
        shutil.copyfile(index, part)
        os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
        part.replace(here)
    finally:
        part.unlink(missing_ok=True)
    return ""
