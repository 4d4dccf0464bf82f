"""Writes a learnable synthetic image set as real JPEG files in ImageNet's layout.

For machines without ImageNet: smoke runs train on it through the same code as the reference run.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hpcai500.data.atomic_file import write_unsynced
from hpcai500.data.imagenet.image_index import SPLIT_NAMES
from hpcai500.data.imagenet.synthetic_image import CLASSES, class_name, draw_jpeg
from hpcai500.data.part_folder import part_folder
from hpcai500.data.synthetic_manifest import claim_folder
from hpcai500.data.worker_pool import map_in_order
from hpcai500.errors import DataError
from hpcai500.progress import Progress, Tracker, silent

# Raised when the same parameters begin to give other pictures: sets of two versions must not mix.
_GENERATOR_VERSION = 1
_IMAGES_PER_TASK = 25
_SMALLEST_SIDE, _LARGEST_SIDE = 16, 4096


@dataclass(frozen=True)
class SyntheticSet:
    """What a set is made of: these numbers alone decide every byte (with one version of Pillow and NumPy).

    `smallest_side` and `largest_side` bound both sides of an image, in pixels. Raises DataError for values that
    cannot be made.
    """

    classes: int = 20
    train_per_class: int = 150
    val_per_class: int = 25
    seed: int = 0
    smallest_side: int = 72
    largest_side: int = 128

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= len(CLASSES):
            raise DataError(f"cannot make {self.classes} classes: choose 2 to {len(CLASSES)} (shapes x textures)")
        for name in ("train_per_class", "val_per_class"):
            if getattr(self, name) < 1:
                raise DataError(f"cannot make {getattr(self, name)} images ({name}): a class needs at least 1")
        if not 0 <= self.seed < 2**63:
            raise DataError(f"cannot use seed {self.seed}: choose 0 to 2**63 - 1")
        if not _SMALLEST_SIDE <= self.smallest_side <= self.largest_side <= _LARGEST_SIDE:
            raise DataError(
                f"cannot make sides of {self.smallest_side} to {self.largest_side} pixels: "
                f"choose {_SMALLEST_SIDE} to {_LARGEST_SIDE}, the smaller first"
            )

    @property
    def images(self) -> int:
        """Files in both splits."""
        return self.classes * (self.train_per_class + self.val_per_class)

    def per_class(self, split: str) -> int:
        """Files in each class folder of `split`."""
        return self.train_per_class if split == "train" else self.val_per_class


@dataclass(frozen=True)
class _File:
    """One file to write. Train and val draw from disjoint random streams, as `split` is part of the key."""

    split: str
    label: int
    number: int

    @property
    def path(self) -> str:
        name = class_name(self.label)
        return f"{self.split}/{name}/{name}-{self.number:06d}.JPEG"


def make_images(
    root: Path | str, wanted: SyntheticSet, *, workers: int | None = None, progress: Tracker = silent
) -> int:
    """Write the set `wanted` to `root` and return how many files were missing and have been written.

    A second call writes nothing; a call after an interrupted one writes the rest. Files of others are never touched.
    `workers` processes share the work (default: one a core of this job); the bytes do not depend on it. With more
    than one, a script's main module must be importable, as always with Python's "spawn".

    Raises DataError when `root` holds another set, or cannot be written, and RunError when a worker was killed.
    """
    root = Path(root)
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if workers < 1:
        raise DataError(f"cannot work with {workers} processes: --workers must be at least 1")
    try:
        _claim(root, wanted)
        missing = _missing_files(root, wanted)
        if missing:
            with progress(len(missing), "making images", "images") as bar:
                _write_files(root, wanted, missing, min(workers, len(missing)), bar)
    except OSError as error:
        raise DataError(
            f"cannot write the synthetic set: {error.filename or root}: {error.strerror or error}; "
            "choose a folder with space that you may write to"
        ) from error
    return len(missing)


def _claim(root: Path, wanted: SyntheticSet) -> None:
    """Make `root` ours, or find that it is; refuse a folder with another set."""
    occupied = [f"{name}/" for name in SPLIT_NAMES if (root / name).exists()]
    claim_folder(root, {"generator_version": _GENERATOR_VERSION, **asdict(wanted)}, occupied)


def _missing_files(root: Path, wanted: SyntheticSet) -> list[_File]:
    missing = []
    for split in SPLIT_NAMES:
        for label in range(wanted.classes):
            folder = root / split / class_name(label)
            folder.mkdir(parents=True, exist_ok=True)
            present = {path.name for path in folder.iterdir()}
            files = (_File(split, label, number) for number in range(wanted.per_class(split)))
            missing += [file for file in files if file.path.rpartition("/")[2] not in present]
    return missing


def _write_files(root: Path, wanted: SyntheticSet, files: list[_File], workers: int, bar: Progress) -> None:
    with part_folder(root) as folder:
        job = _Job(root, folder, wanted)
        tasks = (files[start : start + _IMAGES_PER_TASK] for start in range(0, len(files), _IMAGES_PER_TASK))
        for written in map_in_order(job.write, tasks, workers, what="makes images"):
            bar.advance(written)


@dataclass(frozen=True)
class _Job:
    """What every worker needs to know."""

    root: Path
    scratch: Path
    wanted: SyntheticSet

    def write(self, files: list[_File]) -> int:
        """Draw and write `files`; return how many they are."""
        for file in files:
            key = np.random.SeedSequence([self.wanted.seed, SPLIT_NAMES.index(file.split), file.label, file.number])
            random = np.random.Generator(np.random.PCG64(key))
            content = draw_jpeg(file.label, random, self.wanted.smallest_side, self.wanted.largest_side)
            write_unsynced(self.root / file.path, content, self.scratch)
        return len(files)
