"""HDF5 files opened with errors that say what is wrong with the file instead of what failed in the library."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from hpcai500.errors import DataError

# What h5py was seen to raise on damaged metadata.
DAMAGED = (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError)
_TRUNCATED = re.compile(r"truncated file: eof = (\d+), .*stored_eof = (\d+)")
_MOST_CHARACTERS = 160


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open the file at `path` for reading.

    Raises:
        DataError: it is missing, unreadable, truncated, or no HDF5 file.
    """
    try:
        # Locks fail on many read-only and parallel file systems, and nobody writes into a set.
        file = h5py.File(path, "r", locking=False)
    except DAMAGED as error:
        raise DataError(f"{path}: {_reason(path, error)}") from error
    with file:
        yield file


def leads_nowhere(file: h5py.File, name: str) -> bool:
    """Whether `name` is a soft or an external link to something that is not there."""
    link = file.get(name, getlink=True)
    return isinstance(link, h5py.SoftLink | h5py.ExternalLink) and file.get(name) is None


def plain(error: BaseException) -> str:
    """Return what an exception of h5py says, in one short line."""
    text = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
    inner = re.search(r"\((.*)\)", text)
    return (inner[1] if inner else text or type(error).__name__)[:_MOST_CHARACTERS]


def _reason(path: Path, error: BaseException) -> str:
    if truncated := _TRUNCATED.search(str(error)):
        found, expected = truncated.groups()
        return f"truncated: {found} bytes of the {expected} that its HDF5 header states; copy it again"
    if isinstance(error, OSError) and error.errno:
        return f"unreadable: {os.strerror(error.errno)}"
    if "file signature not found" in str(error):
        return "empty file; copy it again" if path.stat().st_size == 0 else "not an HDF5 file (no HDF5 signature)"
    return f"not readable as HDF5: {plain(error)}"
