"""Removes what nobody needs any more, and the folder with the last who did: only what staging itself has put there."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcai500.data.staging import image_pieces, year_pieces
from hpcai500.data.staging.copying import written_to
from hpcai500.data.staging.digests import Digests
from hpcai500.data.staging.layout import FOLDER, LOCK, SET, StagedSet, read_set, state_folder
from hpcai500.data.staging.lock import held
from hpcai500.data.staging.names import Need, needed_by, path_of, read_needs
from hpcai500.data.staging.pieces import Say, Staged
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent


@dataclass(frozen=True)
class Released:
    """What was done.

    Attributes:
        names: who needs nothing any more.
        others: who still does.
        removed: pieces that are gone.
        left: what is in the folder that staging did not put there; the folder is gone where there is nothing.
    """

    names: tuple[str, ...]
    others: tuple[str, ...]
    removed: int
    left: tuple[str, ...]


def release(root: Path, name: str | None, progress: Tracker = silent, say: Say = lambda _: None) -> Released:
    """Let `name` need nothing (None: let nobody), and remove what nobody needs then; also what killed runs have left.

    Asked again, or of a folder that is gone, it has nothing to do.

    Raises:
        DataError: what is staged there cannot be told.
        RunError: it cannot be removed.
        UsageError: the name cannot be one.
    """
    if name is not None:
        path_of(root, name)
    if not state_folder(root).is_dir():
        return Released((), (), 0, ())
    with written_to(root), held(root, progress, say):
        staged = read_set(root)
        if staged is None:
            return Released((), (), 0, _remove_folder(root))
        needs = read_needs(root)
        going = {key: need for key, need in needs.items() if name is None or key == name or need.is_abandoned}
        staying = {key: need for key, need in needs.items() if key not in going}
        pieces = _open(root, staged)
        digests = Digests(root, staged.pieces)
        try:
            if staying:
                removed, left = _drop(root, pieces, digests, going, staying), tuple[str, ...]()
            else:
                marks = digests.here() | needed_by(going, staged.pieces)
                removed = int(digests.here().sum())
                pieces.remove_all(np.flatnonzero(marks))
                left = _remove_folder(root)
        finally:
            digests.close()
        return Released(tuple(sorted(going)), tuple(sorted(staying)), removed, left)


def drop_abandoned(root: Path, pieces: Staged, digests: Digests, *, but: str) -> None:
    """Remove what only killed runs needed, of whatever name but one. Raises OSError."""
    needs = read_needs(root)
    going = {key: need for key, need in needs.items() if need.is_abandoned and key != but}
    if going:
        _drop(root, pieces, digests, going, {key: need for key, need in needs.items() if key not in going})


def _drop(root: Path, pieces: Staged, digests: Digests, going: Mapping[str, Need], staying: Mapping[str, Need]) -> int:
    """Remove what only `going` need, then their names: killed in between, the same call does the rest."""
    total = len(digests.here())
    marks = needed_by(going, total) & ~needed_by(staying, total)
    removed = int((marks & digests.here()).sum())
    digests.wipe(np.flatnonzero(marks))
    pieces.remove(np.flatnonzero(marks))
    for name in going:
        path_of(root, name).unlink(missing_ok=True)
    return removed


def _open(root: Path, staged: StagedSet) -> Staged:
    try:
        return image_pieces.open_staged(root) if staged.benchmark == "ic" else year_pieces.open_staged(root)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{root}: what is staged there cannot be told ({error}); remove the folder") from error


def _remove_folder(root: Path) -> tuple[str, ...]:
    """Remove the folder, once the data are gone; returns what is in it that is somebody else's."""
    # Without it, what is left is no staged folder, and the next staging begins anew.
    state = state_folder(root)
    (state / SET).unlink(missing_ok=True)
    for entry in state.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
    (state / LOCK).unlink(missing_ok=True)
    left = tuple(sorted(entry.name for entry in root.iterdir() if entry.name != FOLDER))
    for folder in (state, root):
        try:
            folder.rmdir()
        except OSError as error:
            # Somebody else's files are left, or somebody who has waited makes a new lock; a mount point stays.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EACCES, errno.EPERM):
                raise
    return left
