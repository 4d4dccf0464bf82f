"""Makes the seek index of an image set: reads every file once, and writes the index whole or not at all."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hpcai500._core import SeekIndexWriter, seek_key, seek_points
from hpcai500.data.derived import derived_paths
from hpcai500.data.imagenet.image_file import read_image
from hpcai500.data.imagenet.image_index import ImageIndex
from hpcai500.data.imagenet.jpeg_kind import why_not_ours
from hpcai500.data.imagenet.listing import load_index
from hpcai500.data.imagenet.seek_index import SEEK_INDEX
from hpcai500.data.part_folder import part_folder
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent

_FILES_PER_TASK = 16
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True)
class SeekIndexReport:
    """What was made.

    Attributes:
        path: of the index.
        files: of the set that could be read.
        with_points: files that can be decoded from within.
        without_points: how many cannot, by reason.
        unreadable: files that could not be read: path relative to the root, and reason.
        data_bytes: of all files that were read.
        index_bytes: of the index.
        seconds: for reading, decoding and writing.
    """

    path: Path
    files: int
    with_points: int
    without_points: dict[str, int]
    unreadable: tuple[tuple[str, str], ...]
    data_bytes: int
    index_bytes: int
    seconds: float

    @property
    def share(self) -> float:
        """Bytes of the index to one of the data."""
        return self.index_bytes / max(self.data_bytes, 1)


def make_seek_index(
    root: Path | str, *, threads: int | None = None, in_cache: bool = False, progress: Tracker = silent
) -> SeekIndexReport:
    """Read every file of the set at `root`, in `threads` threads (default: one a core), and write its seek index.

    The index lies in the set, or, `in_cache`, in the user's cache. One that is there is replaced when the new one is
    whole; it stays as it is where this fails or is interrupted. Of a staged folder, what is there is read. Same files
    make the same index.

    Raises DataError where there is no data set, none of its files can be read, or the index cannot be written.
    """
    threads = threads if threads is not None else len(os.sched_getaffinity(0))
    if threads < 1:
        raise DataError(f"cannot read with {threads} threads: --threads must be at least 1")
    index = load_index(root, progress=progress)
    path = _place(index.root, in_cache)
    try:
        if in_cache:
            path.parent.mkdir(parents=True, exist_ok=True)
        with part_folder(path.parent) as scratch:
            report = _write(index, path, scratch / "index", threads, progress)
            (scratch / "index").replace(path)
    except OSError as error:
        raise _unwritable(path, index.root, in_cache, error) from error
    return report


def _place(root: Path, in_cache: bool) -> Path:
    places = derived_paths(root, SEEK_INDEX)
    if in_cache and len(places) == 1:
        raise DataError("--cache: this user has no home folder: set XDG_CACHE_HOME to a folder that you may write to")
    return places[1] if in_cache else places[0]


def _unwritable(path: Path, root: Path, in_cache: bool, error: OSError) -> DataError:
    code = error.errno or errno.EIO
    again = "and run the same command again"
    if code in _NO_ROOM:
        fix = f"it takes about 4 % of the set: make room, {again}"
    elif code == errno.EFBIG:
        fix = f"raise the limit of a file's size (ulimit -f), {again}"
    elif in_cache and code in (*_NOT_ALLOWED, *_NO_FOLDER):
        fix = "choose another cache folder by XDG_CACHE_HOME"
    elif code in _NOT_ALLOWED:
        fix = f"have its owner run the same command, or `hpcai500 data index ic {root} --cache` for one of your own"
    elif code == errno.EISDIR:
        fix = f"remove the folder that is in its place, {again}"
    else:
        fix = f"check the disk and the mount, {again}"
    # The core's errors name a file that nobody has asked for.
    return DataError(f"cannot write the seek index {path}: {os.strerror(code)}; {fix}")


def _write(index: ImageIndex, path: Path, part: Path, threads: int, progress: Tracker) -> SeekIndexReport:
    start_seconds = time.monotonic()
    writer = SeekIndexWriter(os.fsencode(part))
    without: Counter[str] = Counter()
    unreadable: list[tuple[str, str]] = []
    files = data_bytes = 0
    with progress(len(index.train) + len(index.val), "indexing images", "images") as bar:
        for found in _files_in_order(index, threads):
            for file in found:
                if file.key is None:
                    unreadable.append((file.path, file.reason))
                    continue
                writer.add(*file.key, file.points)
                files += 1
                data_bytes += file.key[1]
                if not file.points:
                    without[file.reason] += 1
            bar.advance(len(found))
    if not files:
        name, reason = unreadable[0]
        raise DataError(
            f"{index.root}: none of its files can be read, {name} for one: {reason}; check the permissions, links and "
            "mount"
        )
    return SeekIndexReport(
        path=path,
        files=files,
        with_points=files - without.total(),
        without_points=dict(sorted(without.items())),
        unreadable=tuple(unreadable),
        data_bytes=data_bytes,
        index_bytes=writer.finish(),
        seconds=time.monotonic() - start_seconds,
    )


@dataclass(frozen=True)
class _File:
    path: str
    key: tuple[int, int] | None
    points: bytes | None
    reason: str


def _files_in_order(index: ImageIndex, threads: int) -> Iterator[list[_File]]:
    """All files in the set's order; a bounded window of tasks keeps memory flat."""

    def examine_all(paths: tuple[str, ...]) -> list[_File]:
        return [_examine(index.root, path) for path in paths]

    pending: deque[Future[list[_File]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="index")
    try:
        for split in index.splits:
            for start in range(0, len(split), _FILES_PER_TASK):
                pending.append(pool.submit(examine_all, split.paths[start : start + _FILES_PER_TASK]))
                if len(pending) == 4 * threads:
                    yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _examine(root: Path, path: str) -> _File:
    try:
        content = read_image(root / path)
    except OSError as error:
        return _File(path, None, None, f"{error.strerror}")
    points = seek_points(content)
    return _File(path, seek_key(content), points, _why_none(content, points))


def _why_none(content: bytes, points: bytes | None) -> str:
    if points is None:
        return why_not_ours(content)
    return "" if points else "no point worth keeping"
