"""The seek index of an image set: where decoding can begin within each file, so that a crop costs what it shows.

`hpcai500 data index ic DIR` makes it, and both loaders use it where it exists. It changes no pixel and is no part of
the set: its file lies beside the classes' folders, and no listing, fingerprint or record includes it.
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
# Finding the index, and what decoding by it came to.


SEEK_INDEX = ".hpcai500-seek-index"

_SLOWER = "images are decoded without it, more slowly"

_told: set[str] = set()


@dataclass(frozen=True)
class SeekCounts:
    """Images decoded with seek points; those that the index does not know; and those about which it is wrong.

    Images that are not counted are of kinds without points, or there is no index.
    """

    used: int = 0
    unknown: int = 0
    false: int = 0

    def __add__(self, other: SeekCounts) -> SeekCounts:
        return SeekCounts(self.used + other.used, self.unknown + other.unknown, self.false + other.false)


NO_COUNTS = SeekCounts()


@dataclass(frozen=True, eq=False)
class FoundIndex:
    """An index that is used, and where it lies."""

    path: Path
    root: Path
    index: SeekIndex

    def notice(self, counts: SeekCounts, images: int) -> None:
        """Warn, once in a process, that the index does not fit the set: of a batch of `images` it missed some."""
        said = []
        if counts.unknown:
            said.append(f"does not know {counts.unknown}")
        if counts.false:
            said.append(f"is false for {counts.false}")
        if said:
            self.tell(f"{' and '.join(said)} of the {images} images of a batch")

    def tell(self, reason: str) -> None:
        """Warn, once in a process, that images are decoded without the index."""
        _tell_once(self.path, reason, _SLOWER, _anew(self.root))


def find_seek_index(root: Path, *, otherwise: str = _SLOWER) -> FoundIndex | None:
    """The index of the set at `root`: the newer of the one in the set and the one in the user's cache.

    For one that cannot be used there is one warning on stderr, which says `otherwise` where there is no other.
    """
    found, unusable = None, []
    for path in _newest_first(root):
        try:
            found = FoundIndex(path, root, SeekIndex(os.fsencode(path)))
            break
        except OSError as error:
            reason = f"cannot be read ({os.strerror(error.errno or errno.EIO)})"
            remedy = f"have it made readable, or `hpcai500 data index ic {root} --cache` makes one of your own"
        except MemoryError:
            reason, remedy = "does not fit into memory", "give the job more memory"
        except ValueError as error:
            reason, remedy = str(error), _anew(root)
        unusable.append((path, reason, remedy))
    for path, reason, remedy in unusable:
        _tell_once(path, reason, f"the older {found.path} is used" if found else otherwise, remedy)
    return found


def _newest_first(root: Path) -> list[Path]:
    times_ns = {}
    for path in derived_paths(root, SEEK_INDEX):
        # It may be missing, and one that this user cannot see counts as missing.
        with contextlib.suppress(OSError):
            times_ns[path] = path.stat().st_mtime_ns
    return sorted(times_ns, key=times_ns.__getitem__, reverse=True)


def _anew(root: Path) -> str:
    return f"`hpcai500 data index ic {root}` makes it anew"


def _tell_once(path: Path, reason: str, consequence: str, remedy: str) -> None:
    """Warn once in a process, and from one process of a node."""
    if str(path) in _told:
        return
    _told.add(str(path))
    if find_placement(os.environ).local_rank == 0:
        say(f"warning: the seek index {path} {reason}: {consequence}; {remedy}")


# ----------------------------------------------------------------------------------------------------
# Why our own decoder leaves a file to libjpeg-turbo or to Pillow.


_COLOURS = ("grey", "YCbCr")
_SAMPLINGS = ("1x1", "1x1,1x1,1x1", "2x1,1x1,1x1", "2x2,1x1,1x1")
# Markers (T.81, table B.1), and what only the marker of a frame tells about it.
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
    """Why our own decoder does not take a file whole: its kind, or, for a kind that it takes, "damaged" where
    libjpeg-turbo says so, too.
    """
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
    """What `probe_jpeg` does not tell; "" for a baseline image in one scan, and where there is no header."""
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
# Making the index: every file is read once, and the index is written whole or not at all.


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True)
class SeekIndexReport:
    """What was made.

    Attributes:
        files: that could be read.
        with_points: files that can be decoded from within.
        without_points: how many cannot, by reason.
        unreadable: path relative to the root, and reason.
        data_bytes: of all files that were read.
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
    """Read every file of the set at `root`, in `threads` threads (default: one a core), and write its seek index.

    The index lies in the set or, with `in_cache`, in the user's cache. An existing one is replaced when the new one is
    whole, and stays as it is if this fails or is interrupted. Of a staged folder, what is there is read. The same files
    make the same index.

    Raises DataError where there is no data set, none of its files can be read, or the index cannot be written.
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
    # The core's errors name a temporary file, which would mean nothing to the user.
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


def _examine(root: Path, path: str) -> _File:
    try:
        content = read_image(root / path)
    except OSError as error:
        return _File(path, None, None, f"{error.strerror}")
    points = seek_points(content)
    reason = why_not_ours(content) if points is None else "" if points else "no point worth keeping"
    return _File(path, seek_key(content), points, reason)
