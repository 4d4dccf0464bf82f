"""What readers of data sets ask of a staged folder: which set it is, and whether a sample is here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hpcai500.data.staging import digests
from hpcai500.data.staging.digests import Marks
from hpcai500.data.staging.layout import StagedSet, is_staged, read_set
from hpcai500.data.staging.staged_years import StagedYear, read_years
from hpcai500.errors import DataError

# What reading that description may raise.
DAMAGED = (OSError, ValueError, KeyError, TypeError)


def staged_year(path: Path) -> StagedYear | None:
    """How the staged folder of a climate file describes it; None for files that lie elsewhere. Raises DataError."""
    try:
        years = read_years(path.parent)
    except DAMAGED as error:
        raise damaged(path.parent, error) from error
    return next((year for year in years if year.name == path.name), None)


def images_here(path: Path) -> Marks | None:
    """Which images of a climate file are here; None where it is no staged file. Raises DataError."""
    year = staged_year(path)
    if year is None:
        return None
    try:
        windows = digests.here(path.parent, year.first + 1, year.windows)
    except OSError as error:
        raise damaged(path.parent, error) from error
    return np.repeat(windows, year.window)[: year.images]


def require_images(path: Path, first: int, count: int) -> None:
    """Raise DataError, naming the first image that is missing, where a climate file is a staged one without them."""
    here = images_here(path)
    if here is not None and not here[first : first + count].all():
        missing = first + int(np.argmin(here[first : first + count]))
        raise not_staged(path.parent, f"image {missing} of {path.name}")


def require_all_images(paths: Iterable[Path]) -> None:
    """Raise DataError where images of climate files are holes: no measurement may take those for values."""
    for path in paths:
        here = images_here(path)
        if here is not None and not here.all():
            raise _part(path.parent, f"{int(here.sum())} of the {here.size} images of {path.name}")


def require_all_files(root: Path, files: int) -> None:
    """Raise DataError where `root` is a staged folder without some of its `files`."""
    if not is_staged(root):
        return
    try:
        here = int(digests.here(root, 0, files).sum())
    except OSError as error:
        raise damaged(root, error) from error
    if here < files:
        raise _part(root, f"{here} of {files} images")


def require_described(root: Path, fingerprint: str) -> None:
    """Raise DataError where `root` is a staged folder, and not yet of the set that it is to be of."""
    staged = read_set(root)
    if staged is not None and staged.fingerprint != fingerprint:
        raise DataError(
            f"{root}: not all files of the staged set are here: end its staging: hpcai500 data stage "
            f"{staged.benchmark} {staged.source} {root}"
        )


def not_staged(root: Path, what: str) -> DataError:
    """What to raise where `what` of a staged folder is asked for, and not here."""
    staged = _set(root)
    return DataError(
        f"{root}: {what} was not staged: stage what this run reads: hpcai500 data stage {staged.benchmark} "
        f"{staged.source} {root} --recipe FILE; or without --recipe, all of the set"
    )


def _part(root: Path, share: str) -> DataError:
    staged = _set(root)
    return DataError(f"{root}: only {share} are staged here: give the set itself, {staged.source}")


def _set(root: Path) -> StagedSet:
    staged = read_set(root)
    assert staged is not None
    return staged


def damaged(root: Path, error: Exception) -> DataError:
    """What to raise where a staged folder's own description cannot be read."""
    return DataError(f"{root}: what is staged there cannot be told ({error}); remove it, and stage the set again")
