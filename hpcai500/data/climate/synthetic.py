"""Writes a learnable synthetic set of years in ExtremeWeather's format.

For machines without ExtremeWeather: smoke runs train on it through the same code as the reference run.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.weather import SMALLEST_HEIGHT, SMALLEST_WIDTH, Grid, draw_scene
from hpcai500.data.climate.years import (
    BOX_COLUMNS,
    BOXES,
    CHANNELS,
    CLASSES,
    IMAGES,
    MOST_BOXES,
    file_name,
    storage_of,
    year_of,
)
from hpcai500.data.derived import claim_folder, map_in_order, part_folder
from hpcai500.errors import DataError
from hpcai500.files import allocate, sync_folder
from hpcai500.progress import Progress, Tracker, silent

# ----------------------------------------------------------------------------------------------------
# A year's HDF5 file, written in parts that any number of processes fill, in one of three layouts.
#
# HDF5 lets one process at a time write to a file. Uncompressed images are therefore written to their addresses without
# HDF5, into a file that is laid out before. Compressed parts go into files of their own, whose chunks are then copied.


SHIPPED = "shipped"
LAYOUTS = {
    "image": "one uncompressed chunk an image",
    "contiguous": "one uncompressed piece",
    SHIPPED: "as ExtremeWeather ships: gzip, HDF5's default chunks",
}

Image = npt.NDArray[np.float32]
Boxes = npt.NDArray[np.int32]
Draw = Callable[[int], tuple[Image, Boxes]]

# What is written between two steps of a progress bar: one image of the shipped size.
_PART_BYTES = 2**26
# Uncompressed images begin at pages, so that they can be mapped, or read past the page cache.
_PAGE_BYTES = 4096
# More than HDF5 needs for its own tables, beyond a sixteenth of what is written.
_METADATA_BYTES = 2**20
# Locks fail on many parallel file systems, and a file that is being written has no other writer.
_UNLOCKED = {"locking": False}
# HDF5's default.
_GZIP_LEVEL = 4
# In the file of a part, before each chunk: its image, channel, row and column, and its size in bytes.
_CHUNK = struct.Struct("<5Q")


def image_bytes(height: int, width: int) -> int:
    """Bytes of one image, uncompressed."""
    return len(CHANNELS) * height * width * 4


@dataclass(frozen=True)
class Part:
    """The `count` images from `first` on, of `image_shape`, of the year whose file is `path`.

    `addresses` are the bytes in it where the images begin. The layout `shipped` has none: there, a part is the images
    that share chunks of the shape `chunk`.
    """

    path: Path
    first: int
    count: int
    image_shape: tuple[int, ...]
    addresses: tuple[int, ...]
    chunk: tuple[int, ...]

    def write(self, draw: Draw) -> Boxes:
        """Write the images that `draw` gives for their numbers, and return their boxes, shape (count, 15, 5).

        Holds one image in memory, in the layout `shipped` all of them. Raises OSError when the disk is full.
        """
        numbers = range(self.first, self.first + self.count)
        if not self.addresses:
            return self._write_compressed(draw, numbers)
        found = []
        for number, address in zip(numbers, self.addresses, strict=True):
            image, boxes = draw(number)
            _write_at(self.path, address, image)
            found.append(boxes)
        return np.stack(found)

    def _write_compressed(self, draw: Draw, numbers: range) -> Boxes:
        images = np.empty((self.count, *self.image_shape), np.float32)
        found = []
        for place, number in enumerate(numbers):
            images[place], boxes = draw(number)
            found.append(boxes)
        _compress(self._compressed, images, self.chunk)
        return np.stack(found)

    def join(self) -> None:
        """Copy compressed chunks into the year's file; one process at a time. Raises OSError as `write` does."""
        if not self.addresses:
            _copy_chunks(self._compressed, self.path, self.first)
            self._compressed.unlink()

    @property
    def _compressed(self) -> Path:
        return self.path.with_name(f"{self.path.stem}-{self.first}.part")


def lay_out(path: Path, images: int, height: int, width: int, layout: str) -> list[Part]:
    """Make the file `path` for a year of `images`, without any image yet, and return the parts to write.

    Raises OSError when the file cannot be written.
    """
    shape = (images, len(CHANNELS), height, width)
    size = image_bytes(height, width)
    allocate(path, _METADATA_BYTES)
    if layout != SHIPPED:
        os.truncate(path, images * size)
    alignment = 1 if layout == SHIPPED else _PAGE_BYTES
    with h5py.File(path, "w", **_UNLOCKED, alignment_threshold=alignment, alignment_interval=alignment) as file:
        dataset = file.create_dataset(IMAGES, shape, "<f4", **_options(layout, shape))
        if layout == SHIPPED:
            return _split(path, shape, dataset.chunks[0], [], dataset.chunks)
        storage = storage_of(dataset)
    addresses = [int(address) for address in storage.addresses]
    if storage.offset is not None:
        addresses = [storage.offset + number * size for number in range(images)]
    return _split(path, shape, max(_PART_BYTES // size, 1), addresses, storage.chunk or shape)


def finish(path: Path, boxes: Boxes, layout: str) -> None:
    """Write the `boxes` of all images and sync the file. Raises OSError when the disk is full."""
    _reserve(path, boxes.nbytes)
    with h5py.File(path, "r+", **_UNLOCKED) as file:
        compressed = {"compression": "gzip", "chunks": True} if layout == SHIPPED else {}
        file.create_dataset(BOXES, data=boxes, dtype="<i4", **compressed)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _options(layout: str, shape: tuple[int, ...]) -> dict[str, Any]:
    if layout == SHIPPED:
        return {"compression": "gzip", "compression_opts": _GZIP_LEVEL, "chunks": True}
    # Every image has its address at once, and no zeros are written there first.
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return {"dcpl": properties, "chunks": (1, *shape[1:]) if layout == "image" else None}


def _split(path: Path, shape: tuple[int, ...], most: int, addresses: list[int], chunk: tuple[int, ...]) -> list[Part]:
    images, *image_shape = shape
    return [
        Part(
            path,
            first,
            min(most, images - first),
            tuple(image_shape),
            tuple(addresses[first : first + most]),
            chunk,
        )
        for first in range(0, images, most)
    ]


def _reserve(path: Path, more_bytes: int) -> None:
    """Allocate what HDF5 is about to add: on a full disk HDF5 can crash, and this raises OSError."""
    allocate(path, path.stat().st_size + more_bytes + more_bytes // 16 + _METADATA_BYTES)


def _write_at(path: Path, address: int, image: Image) -> None:
    left = memoryview(image.astype("<f4", copy=False).tobytes())
    with path.open("r+b", buffering=0) as stream:
        stream.seek(address)
        while left:
            left = left[stream.write(left) :]


def _compress(path: Path, images: Image, chunk: tuple[int, ...]) -> None:
    """Write each chunk's place, size and content; chunks that reach past an edge are filled up with zeros."""
    with path.open("wb") as stream:
        for place in np.ndindex(*(-(-extent // side) for extent, side in zip(images.shape, chunk, strict=True))):
            start = [cell * side for cell, side in zip(place, chunk, strict=True)]
            piece = images[tuple(slice(at, at + side) for at, side in zip(start, chunk, strict=True))]
            whole = np.zeros(chunk, "<f4")
            whole[tuple(slice(extent) for extent in piece.shape)] = piece
            content = zlib.compress(whole.tobytes(), _GZIP_LEVEL)
            stream.write(_CHUNK.pack(*start, len(content)))
            stream.write(content)


def _copy_chunks(source: Path, target: Path, first: int) -> None:
    _reserve(target, source.stat().st_size)
    with source.open("rb") as stream, h5py.File(target, "r+", **_UNLOCKED) as year:
        dataset = year[IMAGES].id
        while head := stream.read(_CHUNK.size):
            image, channel, row, column, size = _CHUNK.unpack(head)
            dataset.write_direct_chunk((first + image, channel, row, column), stream.read(size))


# ----------------------------------------------------------------------------------------------------
# The whole set: its parameters, and the processes that draw and write it.


# To be raised when the same parameters begin to give other weather: sets of two versions must not mix.
_GENERATOR_VERSION = 1
_LARGEST_SIDE = 16384


@dataclass(frozen=True)
class SyntheticYears:
    """What a set is made of: these numbers alone decide every byte (of one version of NumPy, on one kind of processor).

    `last_year` is included; each year is one file. `layout` is how it stores images, one of LAYOUTS. `class_shares` are
    of the storms, by class, in any scale. Raises DataError for values that cannot be made.
    """

    first_year: int = 1979
    last_year: int = 1982
    images_per_year: int = 200
    height: int = 128
    width: int = 192
    layout: str = "image"
    class_shares: tuple[float, ...] = (0.06, 0.43, 0.46, 0.05)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.first_year <= self.last_year <= 9999:
            raise DataError(
                f"cannot make the years {self.first_year} to {self.last_year}: choose 1 to 9999, the earlier first"
            )
        if self.images_per_year < 1:
            raise DataError(f"cannot make {self.images_per_year} images a year: choose at least 1")
        for name, side, smallest in (("height", self.height, SMALLEST_HEIGHT), ("width", self.width, SMALLEST_WIDTH)):
            if not smallest <= side <= _LARGEST_SIDE:
                raise DataError(
                    f"cannot make a {name} of {side}: choose {smallest} to {_LARGEST_SIDE}; on a smaller grid the "
                    "storms of one image would not fit"
                )
        if self.layout not in LAYOUTS:
            raise DataError(f"cannot make the layout {self.layout!r}: choose {', '.join(LAYOUTS)}")
        self._check_shares()
        if not 0 <= self.seed < 2**63:
            raise DataError(f"cannot use seed {self.seed}: choose 0 to 2**63 - 1")

    def _check_shares(self) -> None:
        shares = self.class_shares
        valid = len(shares) == len(CLASSES) and all(np.isfinite(share) and share >= 0 for share in shares)
        if not valid or not 0 < sum(shares) < np.inf:
            raise DataError(
                f"cannot use the class shares {','.join(map(str, shares))}: give one number for each of "
                f"{', '.join(CLASSES)}; none below 0, not all 0"
            )

    @property
    def years(self) -> range:
        return range(self.first_year, self.last_year + 1)

    @property
    def year_bytes(self) -> int:
        """Bytes of a year's images, uncompressed; gzip takes a tenth off."""
        return self.images_per_year * image_bytes(self.height, self.width)

    def draw(self, year: int, number: int) -> tuple[Image, Boxes]:
        """Draw image `number` of `year`, shape (16, height, width), and its boxes, shape (15, 5)."""
        return draw_scene(self.seed, year, number, Grid(self.height, self.width), self.class_shares)


def make_years(
    root: Path | str, wanted: SyntheticYears, *, workers: int | None = None, progress: Tracker = silent
) -> int:
    """Write the set `wanted` to `root` and return how many years were missing and have been written.

    A second call writes nothing; a call after an interrupted one writes the missing years. Files of others are never
    touched. `workers` processes share the work (default: one a core of this job); the bytes do not depend on it. With
    more than one, a script's main module must be importable, as always with Python's "spawn". A worker holds one
    image in memory, in the layout `shipped` as many as share a chunk (46 of the shipped size are 2.6 GB).

    Raises DataError when `root` holds another set, cannot be written or is too small, and RunError when a worker was
    killed.
    """
    root = Path(root)
    workers = workers if workers is not None else len(os.sched_getaffinity(0))
    if workers < 1:
        raise DataError(f"cannot work with {workers} processes: --workers must be at least 1")
    try:
        missing = _claim(root, wanted)
        if missing:
            _check_space(root, wanted, len(missing))
            with progress(len(missing) * wanted.images_per_year, "making images", "images") as bar:
                _write_years(root, wanted, missing, workers, bar)
    except OSError as error:
        raise DataError(
            f"cannot write the synthetic set: {error.filename or root}: {_reason(error)}; "
            "choose a folder with space that you may write to"
        ) from error
    return len(missing)


def _reason(error: OSError) -> str:
    # HDF5's own text is several lines of addresses and sizes.
    return os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]


def _claim(root: Path, wanted: SyntheticYears) -> list[int]:
    """Make `root` ours, or find that it is, and return the years that it lacks."""
    present = {path.name: year_of(path.name) for path in root.iterdir()} if root.is_dir() else {}
    years = sorted(name for name, year in present.items() if year is not None)
    claim_folder(root, {"generator_version": _GENERATOR_VERSION, **asdict(wanted)}, years)
    strange = [name for name in years if present[name] not in wanted.years]
    if strange:
        raise DataError(f"{root} has {', '.join(strange)}, not made by this command: choose another folder")
    return [year for year in wanted.years if file_name(year) not in present]


def _check_space(root: Path, wanted: SyntheticYears, years: int) -> None:
    needed, free = years * wanted.year_bytes, shutil.disk_usage(root).free
    if needed > free:
        raise DataError(
            f"{root} has {free / 1e9:.1f} GB free, and {years} years of {wanted.images_per_year} images take "
            f"{needed / 1e9:.1f} GB: choose a folder with more space, or make fewer years or images"
        )


def _write_years(root: Path, wanted: SyntheticYears, missing: list[int], workers: int, bar: Progress) -> None:
    with part_folder(root) as folder:
        tasks = list(_tasks(folder, wanted, missing))
        boxes = {
            year: np.full((wanted.images_per_year, MOST_BOXES, len(BOX_COLUMNS)), -1, np.int32) for year in missing
        }
        done = map_in_order(_Job(wanted).write, tasks, min(workers, len(tasks)), what="makes images")
        for (year, part), found in zip(tasks, done, strict=True):
            part.join()
            end = part.first + part.count
            boxes[year][part.first : end] = found
            if end == wanted.images_per_year:
                finish(part.path, boxes[year], wanted.layout)
                part.path.replace(root / file_name(year))
                sync_folder(root)
            bar.advance(part.count)


def _tasks(folder: Path, wanted: SyntheticYears, years: list[int]) -> Iterator[tuple[int, Part]]:
    for year in years:
        path = folder / file_name(year)
        for part in lay_out(path, wanted.images_per_year, wanted.height, wanted.width, wanted.layout):
            yield year, part


@dataclass(frozen=True)
class _Job:
    """What every worker needs to know."""

    wanted: SyntheticYears

    def write(self, task: tuple[int, Part]) -> Boxes:
        year, part = task
        return part.write(lambda number: self.wanted.draw(year, number))
