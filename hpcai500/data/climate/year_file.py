"""One file of ExtremeWeather, opened and checked against the format; its images stay on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.hdf5_errors import DAMAGED, leads_nowhere, open_hdf5, plain
from hpcai500.data.climate.layout import BOX_COLUMNS, BOXES, CHANNELS, IMAGES, MOST_BOXES, file_name, year_of
from hpcai500.data.climate.storage import Storage, may_be_of, storage_of
from hpcai500.data.climate.variant import Variant, variant_of
from hpcai500.data.staging.reading import staged_year
from hpcai500.errors import DataError

_CHANNELS = len(CHANNELS)
_SHAPES = {IMAGES: f"(images, {_CHANNELS}, height, width)", BOXES: f"(images, {MOST_BOXES}, {len(BOX_COLUMNS)})"}
_TYPES = {IMAGES: np.dtype("<f4"), BOXES: np.dtype("<i4")}


@dataclass(frozen=True)
class FileIdentity:
    """What tells cheaply whether a file is the one that was seen before."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, eq=False)
class YearFile:
    """A year of images and boxes.

    Attributes:
        path, year: the file, and the year in its name.
        images: how many there are.
        height, width: of the grid, in pixels.
        storage: where the values of `images` are in the file.
        boxes: (images, 15, 5) int32, read-only, as the file holds them.
        variant: shipped or swapped (`variant.py`), and what says so.
        identity: size and time of the file when it was opened.
    """

    path: Path
    year: int
    images: int
    height: int
    width: int
    storage: Storage
    boxes: npt.NDArray[np.int32]
    variant: Variant
    identity: FileIdentity

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    @property
    def plane_bytes(self) -> int:
        """Bytes of one channel of one image, in memory."""
        return self.height * self.width * _TYPES[IMAGES].itemsize

    @property
    def image_bytes(self) -> int:
        """Bytes of one image in memory."""
        return _CHANNELS * self.plane_bytes


def open_year(path: Path, known: Storage | None = None) -> YearFile:
    """Open the file at `path`, named climo_YYYY.h5, and check it against the format; no image is read.

    Any number of images on any grid is accepted, and any variant of the boxes. `known` is what an earlier call found
    out about the storage of the same file; it is ignored where it contradicts the file.

    Raises:
        DataError: the file is missing, damaged, misnamed, or a dataset of it is missing, of another shape or type, or
            a link into another file.
    """
    year = year_of(path.name)
    if year is None:
        raise DataError(f"{path}: a year's file is named {file_name(1979)}, with its own year")
    identity = identity_of(path)
    with open_hdf5(path) as file:
        try:
            images, boxes = (_dataset(file, path, name) for name in (IMAGES, BOXES))
            if images.shape[0] != boxes.shape[0]:
                raise DataError(f"{path}: dataset boxes: for {boxes.shape[0]} images, but there are {images.shape[0]}")
            rows = boxes[()]
            storage = known if known and may_be_of(known, images) else storage_of(images)
        except DAMAGED as error:
            raise DataError(f"{path}: damaged: {plain(error)}; copy it again") from error
    height, width = storage.shape[2:]
    rows.setflags(write=False)
    variant = variant_of(rows, height, width)
    return YearFile(path, year, storage.shape[0], height, width, storage, rows, variant, identity)


def identity_of(path: Path) -> FileIdentity:
    """Return size and modification time of the file at `path`; of a staged one, those of its original.

    Raises DataError when there is none.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: unreadable: {error.strerror}") from error
    if (staged := staged_year(path)) is not None:
        return FileIdentity(staged.size_bytes, staged.mtime_ns)
    return FileIdentity(status.st_size, status.st_mtime_ns)


def _dataset(file: h5py.File, path: Path, name: str) -> Any:
    if leads_nowhere(file, name):
        raise DataError(f"{path}: dataset {name}: a link that leads nowhere; put the dataset itself in its place")
    if name not in file:
        raise DataError(f"{path}: dataset {name}: missing; the file holds {', '.join(sorted(file)) or 'nothing'}")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"{path}: {name} is a group, where a dataset is expected")
    if dataset.file.filename != file.filename:
        # Its addresses count in the other file: read from this one, they would be other values.
        raise DataError(
            f"{path}: dataset {name}: a link into another file, {dataset.file.filename}; copy both datasets into one "
            f"new file, each by `h5copy -i {path} -o NEW.h5 -s {name} -d {name}`, and put that in its place"
        )
    expected, found = _TYPES[name], dataset.dtype
    if found != expected:
        raise DataError(f"{path}: dataset {name}: type {found} ({found.str}), expected {expected} ({expected.str})")
    fixed = {IMAGES: (_CHANNELS,), BOXES: (MOST_BOXES, len(BOX_COLUMNS))}[name]
    shape, rank = dataset.shape, {IMAGES: 4, BOXES: 3}[name]
    if shape is None or len(shape) != rank or shape[1 : 1 + len(fixed)] != fixed:
        raise DataError(f"{path}: dataset {name}: shape {shape}, expected {_SHAPES[name]}")
    if 0 in shape:
        raise DataError(f"{path}: dataset {name}: empty, of shape {shape}")
    return dataset
