"""Brings the seek index of an image set into its staged folder: found by content, it serves any part of the set."""

from __future__ import annotations

import os
from pathlib import Path

from hpcai500._core import SeekIndex
from hpcai500.data.imagenet.seek_index import SEEK_INDEX, find_seek_index
from hpcai500.data.staging.copying import Original, copy_extents
from hpcai500.data.staging.layout import PART, state_folder
from hpcai500.data.staging.meter import Meter, megabytes
from hpcai500.data.staging.pieces import Say
from hpcai500.errors import DataError, RunError
from hpcai500.progress import Tracker
from hpcai500.text import size

# It is of the whole set. Beside a small part of that, one of what is staged is made sooner than the whole is copied.
_LEAST_IMAGE_TO_INDEX_BYTES = 10


def index_bytes(root: Path) -> int:
    """Of the index that is in a staged folder; 0 where none is."""
    try:
        return (root / SEEK_INDEX).stat().st_size
    except OSError:
        return 0


def drop_index(root: Path) -> None:
    """Make room: it can be made again. Raises OSError."""
    (root / SEEK_INDEX).unlink(missing_ok=True)


def bring_index(source: Path, root: Path, *, staged_bytes: int, left_bytes: int, progress: Tracker, say: Say) -> None:
    """Copy the index of the set at `source`, if it has one and a usable one as new is not here yet; `say` why not.

    It may take `left_bytes`, and a tenth of the `staged_bytes` that are here. No run needs it: nothing is raised.
    """
    found = find_seek_index(source, otherwise="it is not copied")
    if found is None:
        return
    try:
        if _is_here(found.path, root):
            return
        reason = _why_not(found.path, staged_bytes, left_bytes)
        if not reason:
            _copy(found.path, root, progress)
    except OSError as error:
        reason = str(error.strerror)
    except (DataError, RunError) as error:
        reason = str(error)
    if reason:
        say(f"the seek index {found.path} is not copied: {reason}; `hpcai500 data index ic {root}` makes one there")


def _is_here(index: Path, root: Path) -> bool:
    """Whether one as new is in the folder, and usable: a crash of the node may have left zeros."""
    here = root / SEEK_INDEX
    if not here.exists() or here.stat().st_mtime_ns < index.stat().st_mtime_ns:
        return False
    try:
        SeekIndex(os.fsencode(here))
    except (OSError, ValueError, MemoryError):
        return False
    return True


def _why_not(index: Path, staged_bytes: int, left_bytes: int) -> str:
    index_size = index.stat().st_size
    if index_size * _LEAST_IMAGE_TO_INDEX_BYTES > staged_bytes:
        return f"it takes {size(index_size)} beside {size(staged_bytes)} of images"
    if index_size > left_bytes:
        return f"no room for its {size(index_size)}"
    return ""


def _copy(index: Path, root: Path, progress: Tracker) -> None:
    part = state_folder(root) / PART / "seek-index"
    with Original(str(index), str(index)) as original:
        status = original.status
        try:
            with (
                part.open("w+b", buffering=0) as copy,
                progress(megabytes(status.st_size), "staging the seek index", "MB") as bar,
                Meter(bar, status.st_size, root) as meter,
            ):
                # Nobody need say when to stop: this is the thread that Ctrl-C interrupts.
                copy_extents(original, copy.fileno(), [(0, status.st_size)], meter.add, lambda: False)
                original.require_unchanged()
                os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
            part.replace(root / SEEK_INDEX)
        finally:
            part.unlink(missing_ok=True)
