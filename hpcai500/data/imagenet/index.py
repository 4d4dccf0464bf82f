"""The index of an image set: its files, their sizes and labels, and the fingerprints that identify the set.

A set has the folder layout that ImageNet ships in: `train/<class>/*.JPEG`, `val/<class>/*.JPEG`. A class's label is its
rank among the sorted folder names of `train`. Listing 1.28 M files takes minutes on a parallel file system, so the
index is kept between runs; a run then checks one modification time per class folder.

This module also reads image files in Python, and decodes by Pillow those that the core's JPEG decoder does not support.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import json
import os
import stat
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from hpcai500.data.derived import derived_paths, map_in_threads, write_derived
from hpcai500.data.samplers import SampleIds
from hpcai500.data.staged import INDEX, read_set, state_folder
from hpcai500.errors import DataError
from hpcai500.files import why_not
from hpcai500.progress import Tracker, silent

# ----------------------------------------------------------------------------------------------------
# An image set without its pixels: paths, sizes, labels and one fingerprint.


SPLIT_NAMES = ("train", "val")
INDEX_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Split:
    """One of the two splits of a set. Sample i is `paths[i]`; samples are sorted by class, then by file name.

    `paths` are relative to the set's root, with forward slashes; `sizes_bytes` and `labels` are read-only.
    """

    name: str
    paths: tuple[str, ...]
    sizes_bytes: npt.NDArray[np.int64]
    labels: SampleIds

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """An image set without its pixels.

    `fingerprint` is a SHA-256 (hex) over classes, paths and sizes: equal for all copies of a set.
    `ignored_files` counts entries whose names are not those of images.
    """

    root: Path
    classes: tuple[str, ...]
    train: Split
    val: Split
    fingerprint: str
    ignored_files: int

    @property
    def splits(self) -> tuple[Split, Split]:
        return self.train, self.val

    @functools.cached_property
    def classes_absent_in_val(self) -> tuple[str, ...]:
        """Classes that are trained on but not evaluated, which is allowed: quality is then over fewer classes."""
        present = set(self.val.labels.tolist())
        return tuple(name for label, name in enumerate(self.classes) if label not in present)


def make_split(name: str, paths: tuple[str, ...], sizes_bytes: SampleIds, labels: SampleIds) -> Split:
    """Make a split with read-only arrays. Raises ValueError when lengths differ."""
    if not len(paths) == len(sizes_bytes) == len(labels):
        raise ValueError(f"{name}: {len(paths)} paths, {len(sizes_bytes)} sizes, {len(labels)} labels")
    sizes_bytes.setflags(write=False)
    labels.setflags(write=False)
    return Split(name, paths, sizes_bytes, labels)


def build_index(root: Path, classes: tuple[str, ...], train: Split, val: Split, ignored_files: int) -> ImageIndex:
    """Make an index and compute its fingerprint."""
    digest = hashlib.sha256(pack_names([f"hpcai500 image index {INDEX_FORMAT}", str(len(classes)), *classes]))
    for split in (train, val):
        digest.update(pack_names([split.name, str(len(split))]))
        digest.update(pack_names(split.paths))
        digest.update(pack_names(map(str, split.sizes_bytes.tolist())))
    return ImageIndex(root, classes, train, val, digest.hexdigest(), ignored_files)


def pack_names(names: Iterable[str]) -> bytes:
    """Join file names to bytes without ambiguity: NUL cannot occur in a name. Names need not be UTF-8."""
    return "".join(f"{name}\0" for name in names).encode("utf-8", "surrogateescape")


def unpack_names(packed: bytes) -> list[str]:
    """The inverse of `pack_names`."""
    return packed.decode("utf-8", "surrogateescape").split("\0")[:-1]


# ----------------------------------------------------------------------------------------------------
# Parallel listing of class folders: one `scandir` each, with file sizes.


EXTENSIONS = (".jpeg", ".jpg", ".png")
# Listing waits for the metadata server of the file system, not for a core.
_THREADS = 16


@dataclass(frozen=True)
class ClassFolder:
    """One class folder: its images as (file name, size in bytes), sorted, and its modification time before listing.

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
    """The sorted names of the class folders in `split`. Raises DataError when it cannot be read."""
    try:
        with os.scandir(split) as entries:
            return sorted(entry.name for entry in entries if not _hidden(entry.name) and entry.is_dir())
    except OSError as error:
        raise _unreadable(split, error) from error


def holds_images(folder: Path) -> bool:
    """Whether `folder` itself contains images."""
    with os.scandir(folder) as entries:
        return any(_is_image_name(entry.name) for entry in entries)


def scan_classes(root: Path, paths: Sequence[str], progress: Tracker) -> list[ClassFolder]:
    """List the class folders `paths` (relative to `root`), in that order.

    Raises DataError, naming the folder or file, when one cannot be read.
    """
    folders = []
    with progress(len(paths), "listing images", "class folders") as bar:
        for folder in map_in_threads(lambda path: _scan_class(root, path), paths, _THREADS, name="list"):
            folders.append(folder)
            bar.advance()
    return folders


def _scan_class(root: Path, path: str) -> ClassFolder:
    folder = root / path
    files: list[tuple[str, int]] = []
    ignored_files = 0
    try:
        mtime_ns = folder.stat().st_mtime_ns
        with os.scandir(folder) as entries:
            for entry in entries:
                # A dangling link with an image's name is an error: stat() raises.
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


# ----------------------------------------------------------------------------------------------------
# The index, kept between runs.
#
# The cache is used only if its format and the folders' times match; a damaged cache is rebuilt without a warning.


INDEX_FILE = ".hpcai500-index.npz"
# File systems keep times in steps of up to 2 s (FAT; NFS and Lustre 1 s).
_SETTLED_NS = 2_000_000_000
# What NumPy and zipfile have been seen to raise on damaged files; tests/data/test_images.py flips bits to find more.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    MemoryError,
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
)


def _load(root: Path) -> ImageIndex | None:
    """The cached index of the set at `root`; None if there is none, or it is out of date."""
    for path in derived_paths(root, INDEX_FILE):
        try:
            with np.load(path, allow_pickle=False) as arrays:
                if arrays["format"].tolist() == [INDEX_FORMAT] and not _has_changed(root, arrays):
                    return _unpack(root, arrays)
        except _DAMAGED:
            continue
    return None


def _has_changed(root: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    folders, times_ns = unpack_names(arrays["folders"].tobytes()), arrays["folder_times_ns"].tolist()
    return any((root / folder).stat().st_mtime_ns != time for folder, time in zip(folders, times_ns, strict=True))


def _store(index: ImageIndex, folder_times_ns: dict[str, int]) -> None:
    """Cache `index`, valid while the folders (relative to its root) keep these modification times in ns.

    A set that has just changed is not cached: another change within the same tick of the file system's clock would
    never be noticed.
    """
    if max(folder_times_ns.values()) > time.time_ns() - _SETTLED_NS:
        return
    write_derived(index.root, INDEX_FILE, pack_index(index, folder_times_ns))


def pack_index(index: ImageIndex, folder_times_ns: Mapping[str, int]) -> bytes:
    """Serialise an index for `unpack_index`, with the modification times of its folders."""
    stream = io.BytesIO()
    arrays = {
        "format": np.array([INDEX_FORMAT]),
        "classes": _as_array(index.classes),
        "ignored_files": np.array([index.ignored_files]),
        "folders": _as_array(folder_times_ns),
        "folder_times_ns": np.array(list(folder_times_ns.values()), dtype=np.int64),
    }
    for split in index.splits:
        arrays[f"{split.name}_names"] = _as_array(path.rpartition("/")[2] for path in split.paths)
        arrays[f"{split.name}_sizes_bytes"] = split.sizes_bytes
        arrays[f"{split.name}_labels"] = split.labels
    # Compressed: a thousand ranks read this file at once, and names compress tenfold.
    # NumPy's type stub mistakes the arrays for its keyword allow_pickle.
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def unpack_index(root: Path, content: bytes) -> ImageIndex:
    """The index in `content`, of a set at `root`; folder times are ignored. Raises ValueError if it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if arrays["format"].tolist() == [INDEX_FORMAT]:
                return _unpack(root, arrays)
    except _DAMAGED as error:
        raise ValueError(f"the index is damaged: {error}") from error
    raise ValueError("unknown format of the index")


def _unpack(root: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> ImageIndex:
    classes = tuple(unpack_names(arrays["classes"].tobytes()))
    splits = []
    for split in SPLIT_NAMES:
        labels, names = arrays[f"{split}_labels"], unpack_names(arrays[f"{split}_names"].tobytes())
        folders = [f"{split}/{name}/" for name in classes]
        paths = tuple(folders[label] + name for label, name in zip(labels.tolist(), names, strict=True))
        splits.append(make_split(split, paths, arrays[f"{split}_sizes_bytes"], labels))
    train, val = splits
    return build_index(root, classes, train, val, int(arrays["ignored_files"][0]))


def _as_array(names: Iterable[str]) -> npt.NDArray[np.uint8]:
    # NumPy's own string arrays would pad every name to the longest.
    return np.frombuffer(pack_names(names), dtype=np.uint8)


# ----------------------------------------------------------------------------------------------------
# The index of a staged folder: the index of the set at its source.


def staged_index(root: Path) -> ImageIndex | None:
    """The index of the set that is staged in `root`; None if `root` is not a staged folder.

    Raises:
        DataError: climate years are staged there, or the index is damaged.
    """
    staged = read_set(root)
    if staged is None:
        return None
    if staged.benchmark != "ic":
        raise DataError(f"{root}: holds staged {staged.benchmark} data from {staged.source}; give a folder of images")
    try:
        return unpack_index(root, (state_folder(root) / INDEX).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{root}: its index cannot be read ({error}); remove it, and stage the set again") from error


# ----------------------------------------------------------------------------------------------------
# Finding a set: from a staged folder, from the cache, or by listing it.


LAYOUT = "expected train/<class>/*.JPEG and val/<class>/*.JPEG"


def load_index(root: Path | str, *, refresh: bool = False, progress: Tracker = silent) -> ImageIndex:
    """The index of the set at `root`, from the cache if that is valid.

    The cache is valid while no class folder changes its modification time; a file that is overwritten in place is
    noticed only with `refresh=True`, which lists everything again. A staged folder has the index of the whole set,
    even if only a part is staged.

    Raises DataError when the layout is not as expected, a class is empty, `val` has a class that `train` lacks, or a
    folder cannot be read.
    """
    root = Path(root)
    if (staged := staged_index(root)) is not None:
        return staged
    if not refresh:
        cached = _load(root)
        if cached is not None:
            return cached
    # Times are read before the listing: a folder that changes meanwhile makes the cache stale, not wrong.
    index, folder_times_ns = _scan(root, progress)
    _store(index, folder_times_ns)
    return index


def _scan(root: Path, progress: Tracker) -> tuple[ImageIndex, dict[str, int]]:
    if why := why_not("folder", root):
        raise DataError(f"no data set at {root}: {why}; {LAYOUT}")
    for name in SPLIT_NAMES:
        if not (root / name).is_dir():
            raise DataError(f"{root} has no folder {name}/: {LAYOUT}")
    folder_times_ns = {name: (root / name).stat().st_mtime_ns for name in SPLIT_NAMES}
    names = {split: list_classes(root / split) for split in SPLIT_NAMES}
    classes = tuple(names["train"])
    _refuse_unusable_classes(root, names)

    folders = scan_classes(root, [f"{s}/{c}" for s in SPLIT_NAMES for c in names[s]], progress)
    _refuse_empty_classes(root, folders)
    folder_times_ns |= {folder.path: folder.mtime_ns for folder in folders}
    label_of = {name: label for label, name in enumerate(classes)}
    train, val = (
        _split_of(name, [f for f in folders if f.path.startswith(f"{name}/")], label_of) for name in SPLIT_NAMES
    )
    ignored_files = sum(folder.ignored_files for folder in folders)
    return build_index(root, classes, train, val, ignored_files), folder_times_ns


def _refuse_unusable_classes(root: Path, names: dict[str, list[str]]) -> None:
    for split in SPLIT_NAMES:
        if names[split]:
            continue
        if holds_images(root / split):
            # The ILSVRC2012 archive unpacks like this.
            raise DataError(
                f"{root / split} holds images but no class folders: {LAYOUT}; "
                f"move each image into the folder of its class"
            )
        raise DataError(f"{root / split} has no class folders: {LAYOUT}")
    foreign = sorted(set(names["val"]) - set(names["train"]))
    if foreign:
        raise DataError(
            f"val/ has {_listed(foreign)}, which train/ lacks ({root}): "
            "a class must be trained to be evaluated; rename or remove it"
        )


def _refuse_empty_classes(root: Path, folders: list[ClassFolder]) -> None:
    empty = [folder.path for folder in folders if not folder.files]
    if empty:
        raise DataError(
            f"no image in {_listed(empty)} ({root}): "
            f"a class needs at least one file ending in {', '.join(EXTENSIONS)}; fill it or remove it"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"class folder{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def _split_of(name: str, folders: list[ClassFolder], label_of: dict[str, int]) -> Split:
    paths = tuple(f"{folder.path}/{file}" for folder in folders for file, _ in folder.files)
    sizes_bytes = np.fromiter((size for folder in folders for _, size in folder.files), np.int64, len(paths))
    labels = np.repeat(
        np.array([label_of[folder.class_name] for folder in folders], dtype=np.int64),
        [len(folder.files) for folder in folders],
    )
    return make_split(name, paths, sizes_bytes, labels)


# ----------------------------------------------------------------------------------------------------
# The fingerprint of all bytes of a set, kept beside the index for the records of later runs.


CONTENT = ".hpcai500-content.json"
_FORMAT = "hpcai500 image content 1"


class ContentDigest:
    """SHA-256 over every file's path and the SHA-256 of its bytes, in the order of the index."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(pack_names([_FORMAT]))

    def add(self, path: str, sha256: bytes) -> None:
        """Add the next file of the index: its path relative to the root, and the 32 bytes of its own digest."""
        self._digest.update(pack_names([path]) + sha256)

    def hexdigest(self) -> str:
        """The fingerprint of all files added so far."""
        return self._digest.hexdigest()


def store_content_fingerprint(index: ImageIndex, fingerprint: str) -> None:
    """Keep `fingerprint` (hex) as that of the files that `index` lists."""
    document = {"format": _FORMAT, "index_fingerprint": index.fingerprint, "content_fingerprint": fingerprint}
    write_derived(index.root, CONTENT, (json.dumps(document, indent=1) + "\n").encode())


def load_content_fingerprint(index: ImageIndex) -> str | None:
    """The fingerprint from the last complete check of these files, or None.

    Paths and sizes must be those of the check. A file overwritten with the same number of bytes is noticed only by
    another check.
    """
    for path in derived_paths(index.root, CONTENT):
        try:
            document = json.loads(path.read_bytes())
            if (document["format"], document["index_fingerprint"]) == (_FORMAT, index.fingerprint):
                return str(document["content_fingerprint"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


# ----------------------------------------------------------------------------------------------------
# Reading image files in threads, with the limits of the native loader (csrc/core/jpeg/loader.cpp).


# most_file_bytes in loader.cpp: a path to a video or a disk fails here, not at the memory limit.
MOST_BYTES = 2**30
_FILES_PER_TASK = 16

Result = TypeVar("Result")


def over_files(
    index: ImageIndex, function: Callable[[str], Result], threads: int, *, name: str
) -> Iterator[list[Result]]:
    """Call `function` on each file's path in `threads` threads; yield a few results at a time, in the set's order."""
    groups = (
        split.paths[start : start + _FILES_PER_TASK]
        for split in index.splits
        for start in range(0, len(split), _FILES_PER_TASK)
    )
    return map_in_threads(lambda paths: [function(path) for path in paths], groups, threads, name=name)


def read_image(path: Path) -> bytes:
    """The whole file. Raises OSError, whose `strerror` says why, if it is unreadable, not regular, or too large."""
    # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > MOST_BYTES:
            reason = f"the file has {status.st_size} bytes; the limit for an image is {MOST_BYTES}"
            raise OSError(errno.EFBIG, reason)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            # Bounded, in case the file grows meanwhile.
            return stream.read(status.st_size)
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# Files that the core's JPEG decoder does not support: ImageNet itself holds a PNG named .JPEG.


Pixels = npt.NDArray[np.uint8]


def decode_odd(content: bytes) -> Pixels:
    """Decode any image file that Pillow reads to uint8 of shape (height, width, 3), RGB.

    Grey becomes RGB, transparency is dropped, 16-bit grey keeps its upper 8 bits. Raises ValueError with the reason
    when the file is not an image, truncated, damaged, or so large that Pillow suspects an attack.
    """
    try:
        with warnings.catch_warnings():
            # Pillow's warnings for programmers (a palette's transparency, a large size) are no defects of the data.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content)) as image:
                return _rgb(image)
    except UnidentifiedImageError as error:
        raise ValueError("not a JPEG or another image format that Pillow supports") from error
    except Exception as error:
        # Pillow's decoders raise a dozen types (OSError, SyntaxError, struct.error, ...) for damaged input.
        raise ValueError(f"{str(error).strip() or type(error).__name__}") from error


def _rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I"):
        # Pillow's conversion of 16-bit grey clips at 255, which makes the image white.
        grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    # A copy: asarray of an image is read-only.
    return np.array(image.convert("RGB"), dtype=np.uint8)
