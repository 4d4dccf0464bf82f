"""Finds an image set in the folder layout that ImageNet ships in: `train/<class>/*.JPEG`, `val/<class>/*.JPEG`.

A class's label is its rank among the sorted folder names of `train`. Listing 1.28 M files takes minutes on a parallel
file system, so the index is cached (see `index_cache`); a run then checks one modification time per class folder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcai500.data.imagenet import folder_scan, index_cache
from hpcai500.data.imagenet.folder_scan import ClassFolder
from hpcai500.data.imagenet.image_index import SPLIT_NAMES, ImageIndex, Split, build_index, make_split
from hpcai500.data.imagenet.staged_index import staged_index
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent

__all__ = ["LAYOUT", "ImageIndex", "Split", "load_index"]

LAYOUT = "expected train/<class>/*.JPEG and val/<class>/*.JPEG"


def load_index(root: Path | str, *, refresh: bool = False, progress: Tracker = silent) -> ImageIndex:
    """Return the index of the set at `root`, from the cache where that is still valid.

    The cache is valid while no class folder changed its modification time; a file that is overwritten in place is
    noticed only by `refresh=True`, which lists everything again. A staged folder has the index of the whole set,
    however much of it is there. Raises DataError (one line) when the layout is not as expected, a class is empty, `val`
    has a class that `train` has not, or a folder cannot be read.
    """
    root = Path(root)
    if (staged := staged_index(root)) is not None:
        return staged
    if not refresh:
        cached = index_cache.load(root)
        if cached is not None:
            return cached
    # Times are taken before the listing: a folder that changes meanwhile makes the cache stale, not wrong.
    index, folder_times_ns = _scan(root, progress)
    index_cache.store(index, folder_times_ns)
    return index


def _scan(root: Path, progress: Tracker) -> tuple[ImageIndex, dict[str, int]]:
    if not root.is_dir():
        raise DataError(f"no data set at {root}: there is no such folder; {LAYOUT}")
    for name in SPLIT_NAMES:
        if not (root / name).is_dir():
            raise DataError(f"{root} has no folder {name}/: {LAYOUT}")
    folder_times_ns = {name: (root / name).stat().st_mtime_ns for name in SPLIT_NAMES}
    names = {split: folder_scan.list_classes(root / split) for split in SPLIT_NAMES}
    classes = tuple(names["train"])
    _refuse_unusable_classes(root, names)

    folders = folder_scan.scan_classes(root, [f"{s}/{c}" for s in SPLIT_NAMES for c in names[s]], progress)
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
        if folder_scan.holds_images(root / split):
            # How the ILSVRC2012 archive unpacks: everybody meets this once.
            raise DataError(
                f"{root / split} holds images but no class folders: {LAYOUT}; "
                f"move each image into the folder of its class"
            )
        raise DataError(f"{root / split} has no class folders: {LAYOUT}")
    foreign = sorted(set(names["val"]) - set(names["train"]))
    if foreign:
        raise DataError(
            f"val/ has {_listed(foreign)} that train/ has not ({root}): "
            "a class must be trained to be evaluated; rename or remove it"
        )


def _refuse_empty_classes(root: Path, folders: list[ClassFolder]) -> None:
    empty = [folder.path for folder in folders if not folder.files]
    if empty:
        raise DataError(
            f"no image in {_listed(empty)} ({root}): "
            f"a class needs at least one file ending in {', '.join(folder_scan.EXTENSIONS)}; fill it or remove it"
        )


def _listed(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"class folder{'s' if len(names) > 1 else ''} {', '.join(names[:shown])}{more}"


def _split_of(name: str, folders: list[ClassFolder], label_of: dict[str, int]) -> Split:
    paths = tuple(f"{folder.path}/{file}" for folder in folders for file, _ in folder.files)
    sizes_bytes = np.fromiter((size for folder in folders for _, size in folder.files), np.int64, len(paths))
    labels = np.repeat(
        np.array([label_of[folder.class_name] for folder in folders], dtype=np.int64),
        [len(folder.files) for folder in folders],
    )
    return make_split(name, paths, sizes_bytes, labels)
