"""The index of an image set: its files, their sizes and labels, and the fingerprints that identify the set.

A set has the folder layout that ImageNet ships in: `train/<class>/*.JPEG`, `val/<class>/*.JPEG`. A class's label is its
rank among the sorted folder names of `train`. Asking for the sizes of 1.28 M files takes minutes on a parallel file
system, so the index is kept between runs; a run then reads the names in each folder, and asks for 2,000 sizes.

Names are bytes wherever they are sorted, hashed or stored, so that a set is the same in every locale.

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
import unicodedata
import warnings
import zipfile
import zlib
from collections import Counter
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
from hpcai500.files import as_utf8, from_utf8, why_not
from hpcai500.progress import Tracker, silent
from hpcai500.text import shell_bytes

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
    `left_out` counts the entries that are not taken, by kind: "hidden", "folder", "in no class folder", or the ending
    of the name.
    """

    root: Path
    classes: tuple[str, ...]
    train: Split
    val: Split
    fingerprint: str
    left_out: Mapping[str, int]

    @property
    def ignored_files(self) -> int:
        """How many entries are not taken as images."""
        return sum(self.left_out.values())

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


def build_index(
    root: Path, classes: tuple[str, ...], train: Split, val: Split, left_out: Mapping[str, int]
) -> ImageIndex:
    """Make an index and compute its fingerprint."""
    digest = hashlib.sha256(pack_names([f"hpcai500 image index {INDEX_FORMAT}", str(len(classes)), *classes]))
    for split in (train, val):
        digest.update(pack_names([split.name, str(len(split))]))
        digest.update(pack_names(split.paths))
        digest.update(pack_names(map(str, split.sizes_bytes.tolist())))
    return ImageIndex(root, classes, train, val, digest.hexdigest(), left_out)


def pack_names(names: Iterable[str]) -> bytes:
    """Join file names, as bytes on the disk, without ambiguity: NUL cannot occur in a name. They need not be UTF-8."""
    return os.fsencode("".join(f"{name}\0" for name in names))


def unpack_names(packed: bytes) -> list[str]:
    """The inverse of `pack_names`."""
    return os.fsdecode(packed).split("\0")[:-1]


# ----------------------------------------------------------------------------------------------------
# Parallel listing of class folders: one `scandir` each, with file sizes.


EXTENSIONS = (".jpeg", ".jpg", ".png")
_MOST_KINDS = 5
# Listing waits for the metadata server of the file system, not for a core.
_THREADS = 16


@dataclass(frozen=True)
class FolderState:
    """What shows later that a folder is still as it was listed.

    `times_ns` are those of modification and of change, from before the listing; `names` is the SHA-256 of all names in
    it. Times alone are not enough: images of data often have them all set to one value (SquashFS, tar).
    """

    times_ns: tuple[int, int]
    names: bytes


def state_of(folder: Path) -> FolderState:
    """The state of `folder`, by its times and by reading the names in it. Raises OSError."""
    times_ns = _times_ns(folder)
    return FolderState(times_ns, _names_digest(os.listdir(os.fsencode(folder))))  # noqa: PTH208 - names are bytes here


def _times_ns(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_mtime_ns, status.st_ctime_ns


def _names_digest(names: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(name + b"\0" for name in sorted(names))).digest()


@dataclass(frozen=True)
class SplitFolder:
    """The folder of a split: the sorted names of its class folders, and images that are in none."""

    classes: list[str]
    left_out: Counter[str]
    state: FolderState


@dataclass(frozen=True)
class ClassFolder:
    """One class folder: its images as (file name, size in bytes), sorted, and what else is in it.

    `path` is relative to the set's root ("train/n01440764").
    """

    path: str
    files: tuple[tuple[str, int], ...]
    left_out: Counter[str]
    state: FolderState

    @property
    def class_name(self) -> str:
        """The folder's own name ("n01440764")."""
        return self.path.rpartition("/")[2]


def scan_split(split: Path) -> SplitFolder:
    """List the class folders in `split`. Raises DataError when it cannot be read."""
    classes, others, names = [], Counter[str](), []
    try:
        times_ns = _times_ns(split)
        with os.scandir(split) as entries:
            for entry in entries:
                names.append(os.fsencode(entry.name))
                if not _hidden(entry.name) and entry.is_dir():
                    classes.append(entry.name)
                elif _is_image_name(entry.name):
                    others["in no class folder"] += 1
    except OSError as error:
        raise _unreadable(split, error) from error
    return SplitFolder(sorted(classes, key=os.fsencode), others, FolderState(times_ns, _names_digest(names)))


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
    others, names = Counter[str](), []
    try:
        times_ns = _times_ns(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(os.fsencode(entry.name))
                # A dangling link with an image's name is an error: stat() raises.
                if not _is_image_name(entry.name):
                    others[_kind_of(entry.name)] += 1
                elif entry.is_dir():
                    others["folder"] += 1
                else:
                    files.append((entry.name, entry.stat().st_size))
    except OSError as error:
        raise _unreadable(folder, error) from error
    in_order = tuple(sorted(files, key=lambda file: os.fsencode(file[0])))
    return ClassFolder(path, in_order, others, FolderState(times_ns, _names_digest(names)))


def _kind_of(name: str) -> str:
    """Of an entry that is not taken: "hidden", the ending of its name, or "no ending"."""
    if _hidden(name):
        return "hidden"
    return as_utf8(os.path.splitext(name)[1].lower()) or "no ending"  # noqa: PTH122 - Path("a.").suffix is ""


def left_out_line(left_out: Mapping[str, int]) -> str:
    """What is not taken from a set, in a phrase for a note or a warning."""
    total = sum(left_out.values())
    kinds = [f"{count} {kind}" for kind, count in left_out.items()]
    more = [f"{len(kinds) - _MOST_KINDS} more kinds"] if len(kinds) > _MOST_KINDS else []
    return (
        f"{total} {'entry is' if total == 1 else 'entries are'} left out ({', '.join(kinds[:_MOST_KINDS] + more)}): "
        f"images are files in class folders whose names end in {', '.join(EXTENSIONS)}, in any case"
    )


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
# The cache is used only if the set is as it was listed: format, folders with their times and all names in them, and the
# sizes of drawn files. Inode and device numbers are no part of this: they differ from node to node and from mount to
# mount (NFS, FUSE). A damaged cache is rebuilt without a warning.


INDEX_FILE = ".hpcai500-index.npz"
_CACHE_FORMAT = 2
# Sizes of this many files are compared, and of at least one in each class folder; of all files in a smaller set. If one
# file in a hundred is of another version, all of 2,000 drawn ones are of this one with probability 2e-9.
_DRAWN_FILES = 2000
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


def _load(root: Path, progress: Tracker) -> ImageIndex | None:
    """The cached index of the set at `root`; None if there is none, or the set is not as it was listed."""
    for path in derived_paths(root, INDEX_FILE):
        try:
            with np.load(path, allow_pickle=False) as arrays:
                if arrays["format"].tolist() != [_CACHE_FORMAT]:
                    continue
                index, folders = _unpack(root, arrays), _unpack_folders(arrays)
            if _is_as_listed(index, folders, progress):
                return index
        except _DAMAGED:
            continue
    return None


def _is_as_listed(index: ImageIndex, folders: Mapping[str, FolderState], progress: Tracker) -> bool:
    """Whether the folders have these states, and drawn files the sizes in `index`. Raises OSError."""
    drawn = _drawn_files(index)

    def same(path: str) -> bool:
        return state_of(index.root / path) == folders[path] and all(
            (index.root / file).stat().st_size == size_bytes for file, size_bytes in drawn.get(path, [])
        )

    with progress(len(folders), "looking whether the set has changed", "class folders") as bar:
        for is_same in map_in_threads(same, folders, _THREADS, name="list"):
            if not is_same:
                return False
            bar.advance()
    return True


def _drawn_files(index: ImageIndex) -> dict[str, list[tuple[str, int]]]:
    """Paths and sizes of the files whose sizes are compared, by class folder: spread evenly, the same in every run."""
    counts = {split.name: np.bincount(split.labels, minlength=len(index.classes)).tolist() for split in index.splits}
    per_folder = max(1, _DRAWN_FILES // sum(count > 0 for of_split in counts.values() for count in of_split))
    drawn: dict[str, list[tuple[str, int]]] = {}
    for split in index.splits:
        first = 0
        for label, count in enumerate(counts[split.name]):
            folder, some = f"{split.name}/{index.classes[label]}", min(count, per_folder)
            # Not always the first file of a folder.
            shift = zlib.crc32(os.fsencode(folder))
            numbers = [first + (shift + number * count // some) % count for number in range(some)]
            drawn[folder] = [(split.paths[number], int(split.sizes_bytes[number])) for number in numbers]
            first += count
    return drawn


def _store(index: ImageIndex, folders: Mapping[str, FolderState]) -> None:
    """Cache `index`, valid while the folders (relative to its root) keep these states.

    A set that has just changed is not cached: another change within the same tick of the file system's clock would
    never be noticed.
    """
    if max(state.times_ns[0] for state in folders.values()) > time.time_ns() - _SETTLED_NS:
        return
    write_derived(index.root, INDEX_FILE, pack_index(index, folders))


def pack_index(index: ImageIndex, folders: Mapping[str, FolderState]) -> bytes:
    """Serialise an index for `unpack_index`, with the states of its folders."""
    stream = io.BytesIO()
    arrays = {
        "format": np.array([_CACHE_FORMAT]),
        "classes": _as_array(index.classes),
        "left_out": np.frombuffer(json.dumps(dict(index.left_out)).encode(), np.uint8),
        "folders": _as_array(folders),
        "folder_times_ns": np.array([state.times_ns for state in folders.values()], np.int64).reshape(-1, 2),
        "folder_names": np.frombuffer(b"".join(state.names for state in folders.values()), np.uint8).reshape(-1, 32),
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
    """The index in `content`, of a set at `root`; folder states are ignored. Raises ValueError if it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if arrays["format"].tolist() == [_CACHE_FORMAT]:
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
    left_out = {str(kind): int(count) for kind, count in json.loads(arrays["left_out"].tobytes()).items()}
    return build_index(root, classes, train, val, left_out)


def _unpack_folders(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, FolderState]:
    folders, times_ns = unpack_names(arrays["folders"].tobytes()), arrays["folder_times_ns"].tolist()
    return {
        folder: FolderState((modified, changed), names.tobytes())
        for folder, (modified, changed), names in zip(folders, times_ns, arrays["folder_names"], strict=True)
    }


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

    The cache is valid while no folder changes its times or the names in it, and no drawn file its size. If a few files
    are overwritten in place, or replaced in an image whose times are all one value, only `refresh=True` is sure to
    notice: it lists everything again. A staged folder has the index of the whole set, even if only a part is staged.

    Raises DataError when the layout is not as expected, a class is empty, `val` has a class that `train` lacks, two
    classes have names that look the same, or a folder cannot be read.
    """
    root = Path(root)
    if (staged := staged_index(root)) is not None:
        return staged
    if not refresh:
        cached = _load(root, progress)
        if cached is not None:
            return cached
    # States begin with times from before the listing: a folder that changes meanwhile makes the cache stale, not wrong.
    index, folders = _scan(root, progress)
    _store(index, folders)
    return index


def _scan(root: Path, progress: Tracker) -> tuple[ImageIndex, dict[str, FolderState]]:
    if why := why_not("folder", root):
        raise DataError(f"no data set at {root}: {why}; {LAYOUT}")
    for name in SPLIT_NAMES:
        if not (root / name).is_dir():
            raise DataError(f"{root} has no folder {name}/: {LAYOUT}")
    split_folders = {name: scan_split(root / name) for name in SPLIT_NAMES}
    names = {name: folder.classes for name, folder in split_folders.items()}
    classes = tuple(names["train"])
    _refuse_unusable_classes(root, names)

    folders = scan_classes(root, [f"{s}/{c}" for s in SPLIT_NAMES for c in names[s]], progress)
    _refuse_empty_classes(root, folders)
    states = {name: folder.state for name, folder in split_folders.items()}
    states |= {folder.path: folder.state for folder in folders}
    label_of = {name: label for label, name in enumerate(classes)}
    train, val = (
        _split_of(name, [f for f in folders if f.path.startswith(f"{name}/")], label_of) for name in SPLIT_NAMES
    )
    left_out = Counter[str]()
    for others in (*(one.left_out for one in split_folders.values()), *(one.left_out for one in folders)):
        left_out += others
    return build_index(root, classes, train, val, dict(left_out.most_common())), states


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
    _refuse_look_alikes(root, names)
    foreign = sorted(set(names["val"]) - set(names["train"]), key=os.fsencode)
    if foreign:
        raise DataError(
            f"val/ has {_listed(foreign)}, which train/ lacks ({root}): "
            "a class must be trained to be evaluated; rename or remove it"
        )


def _refuse_look_alikes(root: Path, names: dict[str, list[str]]) -> None:
    """Refuse class folders whose names look the same but have other bytes, as systems write accents in two ways."""
    shown: dict[str, str] = {}
    for split in SPLIT_NAMES:
        for name in names[split]:
            first = shown.setdefault(unicodedata.normalize("NFC", as_utf8(name)), f"{split}/{name}")
            if first.rpartition("/")[2] != name:
                place = root / split / first.rpartition("/")[2]
                old, new = shell_bytes(str(root / split / name)), shell_bytes(str(place))
                if place.exists():
                    fix = f"put all images into one of them: mv {old}/* {new}/ && rmdir {old}"
                else:
                    fix = f"rename it: mv {old} {new}"
                raise DataError(
                    f"{root}: the class folders {first} and {split}/{name} look the same, but their names have other "
                    f"bytes (Unicode's composed and decomposed letters): {fix}"
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
#
# It is that of the files here if their paths, sizes, and the bytes of drawn files are those of the check. Their times
# are no evidence: two versions of a set may have the same.


CONTENT = ".hpcai500-content.json"
_FORMAT = "hpcai500 image content 1"
# Files that are read again: all files of a smaller set. If one file in twenty is of another version, all of 64 drawn
# ones are of this one with a probability of 4 %.
_DRAWN_CONTENTS = 64


@dataclass(frozen=True)
class ImageContent:
    """The fingerprint (hex) of all bytes of a set, and the SHA-256 (hex) of its drawn files, by path."""

    fingerprint: str
    drawn: Mapping[str, str]


class ContentDigest:
    """SHA-256 over every file's path and the SHA-256 of its bytes, in the order of the index."""

    def __init__(self, index: ImageIndex) -> None:
        self._digest = hashlib.sha256(pack_names([_FORMAT]))
        self._drawn = dict.fromkeys(drawn_for_content(index), "")

    def add(self, path: str, sha256: bytes) -> None:
        """Add the next file of the index: its path relative to the root, and the 32 bytes of its own digest."""
        self._digest.update(pack_names([path]) + sha256)
        if path in self._drawn:
            self._drawn[path] = sha256.hex()

    def content(self) -> ImageContent:
        """The content of the set, all of whose files have been added."""
        return ImageContent(self._digest.hexdigest(), self._drawn)


def drawn_for_content(index: ImageIndex) -> list[str]:
    """Paths of the files by which a content is known again: spread evenly over the set, the same in every run."""
    paths, total = (*index.train.paths, *index.val.paths), len(index.train) + len(index.val)
    some = min(total, _DRAWN_CONTENTS)
    return [paths[number * total // some] for number in range(some)]


def store_content(index: ImageIndex, content: ImageContent) -> None:
    """Keep `content` as that of the files that `index` lists."""
    document = {
        "format": _FORMAT,
        "index_fingerprint": index.fingerprint,
        "content_fingerprint": content.fingerprint,
        "drawn_files": {as_utf8(path): sha256 for path, sha256 in content.drawn.items()},
    }
    write_derived(index.root, CONTENT, (json.dumps(document, indent=1) + "\n").encode())


def load_content(index: ImageIndex) -> ImageContent | None:
    """The content from the last complete check of these files, or None.

    If a few files have changed, but neither names nor sizes, it may be that from before: another check is sure to
    notice. Of a partly staged set, the drawn files that are there are read.
    """
    for path in derived_paths(index.root, CONTENT):
        try:
            document = json.loads(path.read_bytes())
            if (document["format"], document["index_fingerprint"]) != (_FORMAT, index.fingerprint):
                continue
            drawn = {from_utf8(name): str(sha256) for name, sha256 in document["drawn_files"].items()}
            if list(drawn) == drawn_for_content(index) and same_bytes(index.root, drawn):
                return ImageContent(str(document["content_fingerprint"]), drawn)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def load_content_fingerprint(index: ImageIndex) -> str | None:
    """The fingerprint of all bytes, as `load_content` finds it."""
    content = load_content(index)
    return content.fingerprint if content else None


def same_bytes(root: Path, expected: Mapping[str, str]) -> bool:
    """Whether the files at these paths have these SHA-256 (hex). Raises OSError if one cannot be read."""
    is_part = read_set(root) is not None

    def same(path: str) -> bool:
        try:
            return hashlib.sha256(read_image(root / path)).hexdigest() == expected[path]
        except FileNotFoundError:
            if is_part:
                return True
            raise

    return all(map_in_threads(same, expected, _THREADS, name="read"))


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
