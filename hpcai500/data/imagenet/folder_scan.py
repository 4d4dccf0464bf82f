"""Lists class folders in parallel: one `scandir` each, sizes included."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import DataError
from hpcai500.progress import Tracker

EXTENSIONS = (".jpeg", ".jpg", ".png")
# Listing waits for the file system's metadata server, not for a core.
_THREADS = 16


@dataclass(frozen=True)
class ClassFolder:
    """What one class folder holds: its images as (file name, size in bytes), sorted, and its time before listing.

    `path` is relative to the set's root ("train/n01440764").
    """

    path: str
    files: tuple[tuple[str, int], ...]
    ignored_files: int
    mtime_ns: int

    @property
    def class_name(self) -> str:
        """The folder's own name ("n01440764")."""
        return self.path.rpartition("/")[2]


def list_classes(split: Path) -> list[str]:
    """Return the sorted names of the class folders in `split`. Raises DataError when it cannot be read."""
    try:
        with os.scandir(split) as entries:
            return sorted(entry.name for entry in entries if not _hidden(entry.name) and entry.is_dir())
    except OSError as error:
        raise _unreadable(split, error) from error


def holds_images(folder: Path) -> bool:
    """Tell whether images lie directly in `folder`."""
    with os.scandir(folder) as entries:
        return any(_is_image_name(entry.name) for entry in entries)


def scan_classes(root: Path, paths: Sequence[str], progress: Tracker) -> list[ClassFolder]:
    """List the class folders `paths` (relative to `root`) and return them in that order.

    Raises DataError, naming the folder or file, when one cannot be read.
    """
    with progress(len(paths), "listing images", "class folders") as bar, ThreadPoolExecutor(_THREADS) as pool:
        folders = []
        try:
            for folder in pool.map(lambda path: _scan_class(root, path), paths):
                folders.append(folder)
                bar.advance()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return folders


def _scan_class(root: Path, path: str) -> ClassFolder:
    folder = root / path
    files: list[tuple[str, int]] = []
    ignored_files = 0
    try:
        mtime_ns = folder.stat().st_mtime_ns
        with os.scandir(folder) as entries:
            for entry in entries:
                # An image name that is a dangling link is an error, not a file to pass over: stat() raises.
                if not _is_image_name(entry.name) or entry.is_dir():
                    ignored_files += 1
                else:
                    files.append((entry.name, entry.stat().st_size))
    except OSError as error:
        raise _unreadable(folder, error) from error
    return ClassFolder(path, tuple(sorted(files)), ignored_files, mtime_ns)


def _hidden(name: str) -> bool:
    # .DS_Store, and the ._x.JPEG that macOS leaves beside each file on a foreign file system.
    return name.startswith(".")


def _is_image_name(name: str) -> bool:
    return not _hidden(name) and name.lower().endswith(EXTENSIONS)


def _unreadable(path: Path, error: OSError) -> DataError:
    where = error.filename if error.filename is not None else path
    return DataError(f"cannot read {where}: {error.strerror or error}; check the permissions, links and mount")
