"""The seek index of an image set: where decoding can start within each file, so that a crop decodes only its rows.

`hpcai500 data index ic DIR` makes it, and both loaders use it if it exists. It changes no pixel and is not part of
the set: its file is beside the class folders, and no listing, fingerprint or record includes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcai500._core import JpegError, SeekIndex, SeekIndexWriter, check_jpeg, probe_jpeg, seek_key, seek_points
from hpcai500.data.derived import derived_paths, part_folder, workers_or_all
from hpcai500.data.imagenet.index import ImageIndex, load_index, over_files, read_image
from hpcai500.errors import DataError
from hpcai500.hosts import find_placement
from hpcai500.progress import Tracker, silent
from hpcai500.streams import say

# ----------------------------------------------------------------------------------------------------
# Finding the index, and counting its use.


SEEK_INDEX = ".hpcai500-seek-index"

_SLOWER = "images are decoded without it, which is slower"

# Paths of indexes with a warning already printed.
_warned: set[str] = set()


@dataclass(frozen=True)
class SeekCounts:
    """Images decoded with seek points, images missing in the index, and images with a wrong entry.

    Images of kinds without seek points are not counted.
    """

    used: int = 0
    unknown: int = 0
    false: int = 0

    def __add__(self, other: SeekCounts) -> SeekCounts:
        return SeekCounts(self.used + other.used, self.unknown + other.unknown, self.false + other.false)


NO_COUNTS = SeekCounts()


@dataclass(frozen=True, eq=False)
class FoundIndex:
    """A usable index and its path."""

    path: Path
    root: Path
    index: SeekIndex

    def warn_if_wrong(self, counts: SeekCounts, images: int) -> None:
        """Warn, once per process, if entries of a batch of `images` were missing or wrong."""
        problems = []
        if counts.unknown:
            problems.append(f"lacks {counts.unknown}")
        if counts.false:
            problems.append(f"is wrong for {counts.false}")
        if problems:
            self.warn(f"{' and '.join(problems)} of the {images} images of a batch")

    def warn(self, reason: str) -> None:
        """Warn, once per process, that images are decoded without the index."""
        _warn_once(self.path, reason, _SLOWER, _rebuild_hint(self.root))


def find_seek_index(root: Path, *, otherwise: str = _SLOWER) -> FoundIndex | None:
    """The newest usable index of the set at `root`, in the set or in the user's cache.

    An unusable index gives one warning on stderr, with `otherwise` as the consequence if there is no other index.
    """
    found, unusable = None, []
    for path in _newest_first(root):
        try:
            found = FoundIndex(path, root, SeekIndex(os.fsencode(path)))
            break
        except OSError as error:
            reason = f"cannot be read ({os.strerror(error.errno or errno.EIO)})"
            remedy = f"make it readable, or make your own by `hpcai500 data index ic {root} --cache`"
        except MemoryError:
            reason, remedy = "does not fit into memory", "give the job more memory"
        except ValueError as error:
            reason, remedy = str(error), _rebuild_hint(root)
        unusable.append((path, reason, remedy))
    for path, reason, remedy in unusable:
        _warn_once(path, reason, f"the older {found.path} is used instead" if found else otherwise, remedy)
    return found


def _newest_first(root: Path) -> list[Path]:
    times_ns = {}
    for path in derived_paths(root, SEEK_INDEX):
        # An index that this user cannot see counts as missing.
        with contextlib.suppress(OSError):
            times_ns[path] = path.stat().st_mtime_ns
    return sorted(times_ns, key=times_ns.__getitem__, reverse=True)


def _rebuild_hint(root: Path) -> str:
    return f"rebuild it by `hpcai500 data index ic {root}`"


def _warn_once(path: Path, reason: str, consequence: str, remedy: str) -> None:
    """Warn once per process, and from one process of a node."""
    if str(path) in _warned:
        return
    _warned.add(str(path))
    if find_placement(os.environ).local_rank == 0:
        say(f"warning: the seek index {path} {reason}: {consequence}; {remedy}")


# ----------------------------------------------------------------------------------------------------
# Why our own decoder does not support a file, which libjpeg-turbo or Pillow then decodes.


_COLOURS = ("grey", "YCbCr")
_SAMPLINGS = ("1x1", "1x1,1x1,1x1", "2x1,1x1,1x1", "2x2,1x1,1x1")
# Markers (T.81, table B.1), and the kind of a frame by its marker.
_FILL, _START_OF_SCAN = 0xFF, 0xDA
# Headers are shorter, but a file may be 1 GiB of fill bytes.
_MOST_HEADER_BYTES = 2**20
_FRAMES = {
    0xC0: "",
    0xC1: "",
    0xC2: "progressive",
    0xC3: "lossless",
    **dict.fromkeys((0xC5, 0xC6, 0xC7), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF), "arithmetic coding"),
}


def why_not_ours(content: bytes) -> str:
    """Why our own decoder cannot decode a whole file: its kind, or "damaged" if libjpeg-turbo also finds it so."""
    if kind := _kind_by_header(content):
        return kind
    try:
        header = probe_jpeg(content)
        if header.colour_space == "unknown":
            return f"{header.components} components"
        if header.colour_space not in _COLOURS:
            return header.colour_space
        if header.sampling not in _SAMPLINGS:
            return f"sampling {header.sampling}"
        _, _, warnings = check_jpeg(content)
    except JpegError as error:
        return "no JPEG" if error.kind == "unsupported" else "damaged"
    return "damaged" if warnings else "left to libjpeg-turbo"


def _kind_by_header(content: bytes) -> str:
    """The kind as far as `probe_jpeg` does not report it; "" for a baseline image in one scan, or without a header."""
    components = 0
    for marker, payload in _segments(content[:_MOST_HEADER_BYTES]):
        if marker in _FRAMES and len(payload) >= 6:
            bits, components = payload[0], payload[5]
            if _FRAMES[marker] or bits != 8:
                return _FRAMES[marker] or f"{bits} bits"
        elif marker == _START_OF_SCAN and payload:
            return "several scans" if payload[0] < components else ""
    return ""


def _segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Each marker up to the first scan's, with its payload."""
    at = 2 if content.startswith(b"\xff\xd8") else len(content)
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if marker == _FILL:
            at += 1
            continue
        yield marker, content[at + 4 : at + 2 + length]
        if marker == _START_OF_SCAN:
            return
        at += 2 + length


# ----------------------------------------------------------------------------------------------------
# Making the index: every file is read once, and the index is written completely or not at all.


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True)
class SeekIndexReport:
    """The index that was made.

    Attributes:
        files: number of files read.
        with_points: number of files with seek points.
        without_points: number of files without, by reason.
        unreadable: path relative to the root, and reason.
        data_bytes: size of all files read.
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
        """Bytes of the index / bytes of the data."""
        return self.index_bytes / max(self.data_bytes, 1)


def make_seek_index(
    root: Path | str, *, threads: int | None = None, in_cache: bool = False, progress: Tracker = silent
) -> SeekIndexReport:
    """Read every file of the set at `root`, in `threads` threads (default: one per core), and write its seek index.

    The index is in the set or, with `in_cache`, in the user's cache. An existing index is replaced when the new one is
    complete, and is unchanged if this fails or is interrupted. In a staged folder, the staged files are read. The same
    files give the same index.

    Raises DataError if there is no data set, none of its files can be read, or the index cannot be written.
    """
    threads = workers_or_all(threads, work="read", kind="threads", option="--threads")
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
        raise DataError("--cache: this user has no home folder: set XDG_CACHE_HOME to a writable folder")
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
        fix = f"ask its owner to run the same command, or make your own by `hpcai500 data index ic {root} --cache`"
    elif code == errno.EISDIR:
        fix = f"remove the folder of this name, {again}"
    else:
        fix = f"check the disk and the mount, {again}"
    # The core's errors name a temporary file, which the user does not know.
    return DataError(f"cannot write the seek index {path}: {os.strerror(code)}; {fix}")


def _write(index: ImageIndex, path: Path, part: Path, threads: int, progress: Tracker) -> SeekIndexReport:
    start_seconds = time.monotonic()
    writer = SeekIndexWriter(os.fsencode(part))
    without: Counter[str] = Counter()
    unreadable: list[tuple[str, str]] = []
    files = data_bytes = 0
    with progress(len(index.train) + len(index.val), "indexing images", "images") as bar:
        for found in over_files(index, partial(_examine, index.root), threads, name="index"):
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
            f"{index.root}: no file can be read, for example {name}: {reason}; check the permissions, links and mount"
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


def _examine(root: Path, path: str) -> _File:
    try:
        content = read_image(root / path)
    except OSError as error:
        return _File(path, None, None, f"{error.strerror}")
    points = seek_points(content)
    reason = why_not_ours(content) if points is None else "" if points else "no point worth keeping"
    return _File(path, seek_key(content), points, reason)
