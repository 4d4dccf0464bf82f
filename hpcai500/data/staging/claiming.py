"""Makes a folder the staged folder of one data set, or finds that it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from hpcai500.data.staging.digests import Digests
from hpcai500.data.staging.layout import FOLDER, NAMES, PART, StagedSet, read_set, state_folder, write_set
from hpcai500.data.staging.pieces import Source
from hpcai500.errors import DataError
from hpcai500.system.process import boot

# A file system has it at its top, and it holds no data.
_NO_DATA = {"lost+found"}


def require_apart(source: Path, root: Path) -> None:
    """Raise DataError unless `root` can be a staged folder of the set at `source`."""
    origin, place = source.resolve(), root.resolve()
    if not origin.is_dir():
        raise DataError(f"{source}: no such folder; give the folder of the data set")
    if place == origin or place.is_relative_to(origin):
        raise DataError(f"{root}: inside the set {source}; stage it into a folder of the node's own")
    if origin.is_relative_to(place):
        raise DataError(f"{root}: the set {source} lies in it; stage it into a folder of its own")
    if place.exists() and not place.is_dir():
        raise DataError(f"{root}: no folder; give another one")
    if place.is_dir() and not (place / FOLDER).is_dir():
        strangers = sorted(entry.name for entry in place.iterdir() if entry.name not in {*_NO_DATA, FOLDER})
        if strangers:
            raise DataError(
                f"{root}: holds files that staging did not put there ({strangers[0]}): give another "
                f"folder; one inside it will do"
            )


def claim(root: Path, path: Path, source: Source) -> StagedSet:
    """Describe `source`, the set at `path`, in `root`, where that was not done before; its lock is held.

    Raises:
        DataError: `root` is of another set, or the source has changed.
        OSError: it cannot be written.
    """
    # What a killed staging was at.
    shutil.rmtree(state_folder(root) / PART, ignore_errors=True)
    (state_folder(root) / PART).mkdir()
    found = read_set(root)
    if found is None:
        shutil.rmtree(state_folder(root) / NAMES, ignore_errors=True)
        Digests.create(root, source.pieces)
        source.describe_set()
        staged = StagedSet(source.benchmark, str(path.resolve()), source.fingerprint, source.pieces, boot())
        write_set(root, staged)
        return staged
    if (found.benchmark, found.fingerprint) != (source.benchmark, source.fingerprint):
        what = "has changed since" if found.source == str(path.resolve()) else "is another one"
        raise DataError(
            f"{root}: the set {found.source} is staged there, and {path} {what}: give another "
            f"folder, or release this one: hpcai500 data stage {found.benchmark} {path} {root} --release"
        )
    source.require_same()
    return found
