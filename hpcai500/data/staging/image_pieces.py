"""Staging of image sets: a piece is a file, numbered as in the index, training before evaluation."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.data.derived import MANIFEST
from hpcai500.data.imagenet.index import (
    CONTENT,
    INDEX_FILE,
    ImageIndex,
    load_content_fingerprint,
    load_index,
    pack_index,
    store_content_fingerprint,
    unpack_index,
)
from hpcai500.data.imagenet.seek_index import SEEK_INDEX
from hpcai500.data.samplers import training_samples
from hpcai500.data.staging.copying import Original, changed, copy_extents, digest_extents
from hpcai500.data.staging.digests import Digests, Marks, Pieces
from hpcai500.data.staging.layout import INDEX, state_folder
from hpcai500.data.staging.pieces import Sizes, Watch
from hpcai500.errors import DataError, RunError
from hpcai500.files import write_unsynced
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import probe
from hpcai500.progress import Tracker

# Files that one thread takes at a time, of one folder.
_TOGETHER = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_DERIVED = (INDEX_FILE, CONTENT, MANIFEST, SEEK_INDEX)


class StagedImages:
    """Image files in a staged folder."""

    def __init__(self, root: Path, index: ImageIndex) -> None:
        self._root, self._index = root, index

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Of each piece, relative to the root."""
        return (*self._index.train.paths, *self._index.val.paths)

    @cached_property
    def sizes_bytes(self) -> Sizes:
        """Of each file."""
        return np.concatenate([split.sizes_bytes for split in self._index.splits])

    def new_files(self, pieces: Marks) -> int:
        """One each."""
        return int(np.count_nonzero(pieces))

    def batches(self, pieces: Pieces) -> Iterator[Sequence[int]]:
        """Up to 64 files of a folder."""
        for _, group in groupby(pieces.tolist(), self._folder):
            files = list(group)
            yield from (files[at : at + _TOGETHER] for at in range(0, len(files), _TOGETHER))

    def digest(self, batch: Sequence[int], watch: Watch) -> Iterator[tuple[int, bytes | None]]:
        """As `Staged` has it; a file that is missing is a torn one."""
        for piece in batch:
            size = int(self.sizes_bytes[piece])
            try:
                descriptor = os.open(self._root / self.paths[piece], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                yield piece, None
                continue
            try:
                same = os.fstat(descriptor).st_size == size
                yield piece, digest_extents(descriptor, [(0, size)], watch.count, watch.stop) if same else None
            finally:
                os.close(descriptor)

    def remove(self, pieces: Pieces) -> None:
        """Remove files; what lies behind a link in place of a folder is somebody else's."""
        for folder, group in groupby(pieces.tolist(), self._folder):
            if not _is_inside(self._root, folder):
                continue
            for piece in group:
                path = f"{self._root}/{self.paths[piece]}"
                # A folder in its place is somebody else's, too.
                with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                    Path(path).unlink()
                with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                    Path(path).with_name(_temporary(piece)).unlink()

    def remove_all(self, pieces: Pieces) -> None:
        """Remove files, folders that are empty then, and what is derived from the set."""
        self.remove(pieces)
        folders = sorted({self._folder(piece) for piece in range(len(self.paths))})
        for folder in [*folders, *(split.name for split in self._index.splits)]:
            if _is_inside(self._root, folder):
                _remove_empty(self._root / folder)
        for name in _DERIVED:
            (self._root / name).unlink(missing_ok=True)

    def with_dependents(self, pieces: Pieces) -> Pieces:
        """Each file is right by itself."""
        return pieces

    def _folder(self, piece: int) -> str:
        return self.paths[piece].rpartition("/")[0]


class ImageSource:
    """Image files at the source."""

    benchmark = "ic"

    def __init__(self, source: Path, root: Path, progress: Tracker) -> None:
        """List the set at `source`, to be staged in `root`. Raises DataError as `load_index` does."""
        self._source, self._root = source, root
        self._index = load_index(source, progress=progress)
        self.fingerprint = self._index.fingerprint
        self._files = StagedImages(root, self._index)

    @property
    def pieces(self) -> int:
        """Files of both halves."""
        return len(self._index.train) + len(self._index.val)

    def needed(self, recipes: Sequence[Recipe]) -> Marks:
        """All evaluation images; of the training images those that are drawn, or that members are judged on."""
        training = len(self._index.train)
        marks = np.zeros(self.pieces, np.bool_)
        marks[training:] = True
        if not recipes:
            marks[:] = True
        strata = {"class": np.bincount(self._index.train.labels).tolist()}
        for recipe in recipes:
            drawn = training_samples(recipe, training, strata).drawn
            marks[:training] |= True if drawn is None else np.bincount(drawn, minlength=training).astype(np.bool_)
            if recipe.ensemble is not None:
                marks[probe(training, recipe.ensemble.out_of_bag_samples)] = True
        return marks

    def describe_set(self) -> None:
        """The index, the manifest of a synthetic set, and the fingerprint of its bytes where that is known."""
        write_unsynced(state_folder(self._root) / INDEX, pack_index(self._index, {}))
        with contextlib.suppress(FileNotFoundError):
            write_unsynced(self._root / MANIFEST, (self._source / MANIFEST).read_bytes())

    def require_same(self) -> None:
        """Names and sizes are those of then, or the fingerprint would be another."""

    def staged(self) -> StagedImages:
        """The files in the staged folder."""
        return self._files

    def order(self, pieces: Pieces) -> list[Pieces]:
        """All at once."""
        return [pieces]

    def copy(self, batch: Sequence[int], digests: Digests, watch: Watch) -> None:
        """Copy files of one folder, each under another name until it is whole."""
        relative = self._files.paths[batch[0]].rpartition("/")[0]
        with _opened(self._target(relative)) as target:
            try:
                source = os.open(self._source / relative, _FOLDER)
            except OSError as error:
                raise DataError(f"{self._source / relative}: cannot be read: {error.strerror}") from error
            try:
                for piece in batch:
                    digests.put(piece, self._copy(piece, source, target, watch))
            finally:
                os.close(source)

    def _copy(self, piece: int, source: int, target: int, watch: Watch) -> bytes:
        path, size = self._files.paths[piece], int(self._files.sizes_bytes[piece])
        name, temporary = path.rpartition("/")[2], _temporary(piece)
        with Original(f"{self._source}/{path}", name, source) as original:
            if original.status.st_size != size:
                raise changed(original.path)
            copy = os.open(temporary, _NEW, 0o666, dir_fd=target)
            try:
                digest = copy_extents(original, copy, [(0, size)], watch.count, watch.stop)
                original.require_unchanged()
                times = original.status.st_atime_ns, original.status.st_mtime_ns
                os.utime(copy, ns=times)
            except BaseException:
                os.unlink(temporary, dir_fd=target)
                raise
            finally:
                os.close(copy)
        try:
            os.rename(temporary, name, src_dir_fd=target, dst_dir_fd=target)
        except IsADirectoryError as error:
            raise RunError(f"{self._root / path}: a folder where an image belongs; remove it") from error
        return digest

    def changes(self, batch: Sequence[int], digests: Digests, watch: Watch) -> None:
        """By size and time, which the copy has from the source; where they differ, by what is in the file."""
        for piece in batch:
            path = self._files.paths[piece]
            with Original(f"{self._source}/{path}", f"{self._source}/{path}") as original:
                copy = Path(self._root, path).stat()
                here, there = ((it.st_size, it.st_mtime_ns) for it in (copy, original.status))
                if here == there:
                    continue
                size = original.status.st_size
                if original.digest([(0, size)], watch.stop) != digests.get(piece):
                    raise changed(original.path)

    def finish(self, recipes: Sequence[Recipe]) -> None:
        """The fingerprint of all bytes, where it is known at the source."""
        if (content := load_content_fingerprint(self._index)) is not None:
            index = unpack_index(self._root, (state_folder(self._root) / INDEX).read_bytes())
            store_content_fingerprint(index, content)

    def _target(self, relative: str) -> Path:
        """The folder of the staged images of a class, made where it is missing."""
        folder = self._root / relative
        if not _is_inside(self._root, relative):
            raise RunError(f"{folder}: a link where a folder of images belongs; remove it")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def open_staged(root: Path) -> StagedImages:
    """The files of a staged folder, without its source. Raises OSError, ValueError."""
    return StagedImages(root, unpack_index(root, (state_folder(root) / INDEX).read_bytes()))


def _temporary(piece: int) -> str:
    """The name of a file that is not whole yet, beside its place: ext4 makes all files of one folder in one corner.

    Whatever a killed staging leaves under it is written anew, or removed with its piece.
    """
    return f".hpcai500-part-{piece}"


class _opened:  # noqa: N801 - reads as a function
    """The descriptor of a folder that is no link."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, _FOLDER | os.O_NOFOLLOW)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *error: Any) -> None:
        os.close(self._descriptor)


def _is_inside(root: Path, relative: str) -> bool:
    """Whether a path really leads into `root`: no link is on it, and no step upwards."""
    return (root / relative).resolve() == root.resolve() / relative


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
