"""What an image set consists of, without its pixels: paths, sizes, labels and one fingerprint."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcai500.data.samplers import SampleIds

SPLIT_NAMES = ("train", "val")
INDEX_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Split:
    """One of the two halves of a set. Sample i is `paths[i]`; samples are sorted by class, then by file name.

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
    """What a set consists of, without its pixels.

    `fingerprint` is a SHA-256 (hex) over classes, paths and sizes: equal for copies of a set wherever they lie.
    `ignored_files` counts entries that are no images by their name.
    """

    root: Path
    classes: tuple[str, ...]
    train: Split
    val: Split
    fingerprint: str
    ignored_files: int

    @property
    def splits(self) -> tuple[Split, Split]:
        """Both splits, train first."""
        return self.train, self.val

    @functools.cached_property
    def classes_absent_in_val(self) -> tuple[str, ...]:
        """Classes that are trained on but not evaluated: allowed, and quality is then over fewer classes."""
        present = set(self.val.labels.tolist())
        return tuple(name for label, name in enumerate(self.classes) if label not in present)


def make_split(name: str, paths: tuple[str, ...], sizes_bytes: SampleIds, labels: SampleIds) -> Split:
    """Assemble a split whose arrays nobody can change by accident. Raises ValueError when lengths differ."""
    if not len(paths) == len(sizes_bytes) == len(labels):
        raise ValueError(f"{name}: {len(paths)} paths, {len(sizes_bytes)} sizes, {len(labels)} labels")
    sizes_bytes.setflags(write=False)
    labels.setflags(write=False)
    return Split(name, paths, sizes_bytes, labels)


def build_index(root: Path, classes: tuple[str, ...], train: Split, val: Split, ignored_files: int) -> ImageIndex:
    """Assemble an index and compute its fingerprint."""
    digest = hashlib.sha256(pack_names([f"hpcai500 image index {INDEX_FORMAT}", str(len(classes)), *classes]))
    for split in (train, val):
        digest.update(pack_names([split.name, str(len(split))]))
        digest.update(pack_names(split.paths))
        digest.update(pack_names(map(str, split.sizes_bytes.tolist())))
    return ImageIndex(root, classes, train, val, digest.hexdigest(), ignored_files)


def pack_names(names: Iterable[str]) -> bytes:
    """Join file names to bytes that only they give: NUL cannot occur in a name, and names need not be UTF-8."""
    return "".join(f"{name}\0" for name in names).encode("utf-8", "surrogateescape")


def unpack_names(packed: bytes) -> list[str]:
    """Return what `pack_names` joined."""
    return packed.decode("utf-8", "surrogateescape").split("\0")[:-1]
