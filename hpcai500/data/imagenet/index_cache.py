"""The index of an image set, kept between runs.

A cache is worth nothing when it lies: it is used only if format and folder times still match, and a damaged one is
rebuilt without a word.
"""

from __future__ import annotations

import io
import time
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500.data.derived import derived_paths, write_derived
from hpcai500.data.imagenet.image_index import (
    INDEX_FORMAT,
    SPLIT_NAMES,
    ImageIndex,
    Split,
    build_index,
    make_split,
    pack_names,
    unpack_names,
)

INDEX_FILE = ".hpcai500-index.npz"
# File systems keep times in steps of up to 2 s (FAT; NFS and Lustre 1 s).
_SETTLED_NS = 2_000_000_000
# What NumPy and zipfile were seen to raise on damaged files; tests/data/test_index.py flips bits to find more.
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

ByteArray = npt.NDArray[np.uint8]


def load(root: Path) -> ImageIndex | None:
    """Return the cached index of the set at `root`, or None when there is none that still holds."""
    for path in derived_paths(root, INDEX_FILE):
        try:
            index = _read(root, path)
        except _DAMAGED:
            continue
        if index is not None:
            return index
    return None


def store(index: ImageIndex, folder_times_ns: dict[str, int]) -> None:
    """Cache `index`, valid while the folders (relative to its root) keep these modification times in ns.

    A set that changed a moment ago is not cached yet: a change within the same tick of the file system's clock would
    go unnoticed for ever.
    """
    if max(folder_times_ns.values()) > time.time_ns() - _SETTLED_NS:
        return
    write_derived(index.root, INDEX_FILE, pack_index(index, folder_times_ns))


def pack_index(index: ImageIndex, folder_times_ns: Mapping[str, int]) -> bytes:
    """What `unpack_index` makes an index of, with the times at which folders were listed."""
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
    # NumPy's stub takes the arrays for its keyword allow_pickle.
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def unpack_index(root: Path, content: bytes) -> ImageIndex:
    """The index in `content`, of a set at `root`, whatever the folders' times. Raises ValueError when it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if arrays["format"].tolist() == [INDEX_FORMAT]:
                return _unpack(root, arrays)
    except _DAMAGED as error:
        raise ValueError(f"the index is damaged: {error}") from error
    raise ValueError("the index has another format")


def _read(root: Path, path: Path) -> ImageIndex | None:
    with np.load(path, allow_pickle=False) as arrays:
        if arrays["format"].tolist() != [INDEX_FORMAT]:
            return None
        folders = unpack_names(arrays["folders"].tobytes())
        times_ns = arrays["folder_times_ns"].tolist()
        if any((root / folder).stat().st_mtime_ns != time for folder, time in zip(folders, times_ns, strict=True)):
            return None
        return _unpack(root, arrays)


def _unpack(root: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> ImageIndex:
    classes = tuple(unpack_names(arrays["classes"].tobytes()))
    train, val = (
        _read_split(name, classes, arrays[f"{name}_names"], arrays[f"{name}_sizes_bytes"], arrays[f"{name}_labels"])
        for name in SPLIT_NAMES
    )
    return build_index(root, classes, train, val, int(arrays["ignored_files"][0]))


def _read_split(
    name: str,
    classes: tuple[str, ...],
    names: ByteArray,
    sizes_bytes: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
) -> Split:
    folders = [f"{name}/{class_name}/" for class_name in classes]
    paths = tuple(
        folders[label] + file for label, file in zip(labels.tolist(), unpack_names(names.tobytes()), strict=True)
    )
    return make_split(name, paths, sizes_bytes, labels)


def _as_array(names: Iterable[str]) -> ByteArray:
    # NumPy's own string arrays would pad every name to the longest.
    return np.frombuffer(pack_names(names), dtype=np.uint8)
