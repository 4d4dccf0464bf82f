"""Writes a learnable synthetic set of years in ExtremeWeather's format.

For machines without ExtremeWeather. Smoke runs train on it with the same code as the reference run.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast, get_args

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.weather import SMALLEST_HEIGHT, SMALLEST_WIDTH, Grid, draw_scene
from hpcai500.data.climate.writing import (
    GZIP_LEVEL,
    Chunk,
    Layout,
    addresses_of,
    new_file,
    opened_again,
    put_spool,
    sync,
    write_at,
    write_spool,
)
from hpcai500.data.climate.years import BOX_COLUMNS, BOXES, CHANNELS, CLASSES, IMAGES, MOST_BOXES, file_name, year_of
from hpcai500.data.derived import claim_folder, map_in_order, part_folder, workers_or_all
from hpcai500.errors import DataError
from hpcai500.files import sync_folder
from hpcai500.job_options import MadeLayout, YearSet
from hpcai500.progress import Progress, Tracker, silent

# ----------------------------------------------------------------------------------------------------
# A year's file, written in parts, in one of three layouts.


SHIPPED = "shipped"
LAYOUTS: tuple[str, ...] = get_args(MadeLayout)

Image = npt.NDArray[np.float32]
Boxes = npt.NDArray[np.int32]
Draw = Callable[[int], tuple[Image, Boxes]]

# What is written between two steps of a progress bar: one image of the shipped size.
_PART_BYTES = 2**26


def image_bytes(height: int, width: int) -> int:
    """Bytes of one image, uncompressed."""
    return len(CHANNELS) * height * width * 4


@dataclass(frozen=True)
class Part:
    """The `count` images from `first` on, of `image_shape`, of the year whose file is `path`.

    `addresses` are their byte offsets in it. The layout `shipped` has none: there, a part is the images that share
    chunks of the shape `chunk`.
    """

    path: Path
    first: int
    count: int
    image_shape: tuple[int, ...]
    addresses: tuple[int, ...]
    chunk: tuple[int, ...] | None

    def write(self, draw: Draw) -> Boxes:
        """Write the images that `draw` gives for their numbers, and return their boxes, shape (count, 15, 5).

        Holds one image in memory, in the layout `shipped` all of them. Raises OSError when the disk is full.
        """
        found = []

        def images() -> Iterator[Image]:
            for number in range(self.first, self.first + self.count):
                image, boxes = draw(number)
                found.append(boxes)
                yield image

        if self.addresses:
            write_at(self.path, images(), self.addresses)
        else:
            together = np.empty((self.count, *self.image_shape), np.float32)
            for place, image in zip(together, images(), strict=True):
                place[:] = image
            write_spool(self._spool, self._compressed(together))
        return np.stack(found)

    def join(self) -> None:
        """Put compressed chunks into the year's file; one process at a time. Raises OSError as `write` does."""
        if not self.addresses:
            put_spool(self._spool, self.path)

    @property
    def _spool(self) -> Path:
        return self.path.with_name(f"{self.path.stem}-{self.first}.part")

    def _compressed(self, images: Image) -> Iterator[Chunk]:
        """The chunks of `images`; those that reach past an edge are filled up with zeros."""
        assert self.chunk is not None
        for cell in np.ndindex(*(-(-extent // side) for extent, side in zip(images.shape, self.chunk, strict=True))):
            start = [at * side for at, side in zip(cell, self.chunk, strict=True)]
            piece = images[tuple(slice(at, at + side) for at, side in zip(start, self.chunk, strict=True))]
            whole = np.zeros(self.chunk, "<f4")
            whole[tuple(slice(extent) for extent in piece.shape)] = piece
            yield (self.first + start[0], *start[1:]), 0, zlib.compress(whole.tobytes(), GZIP_LEVEL)


def lay_out(path: Path, images: int, height: int, width: int, layout: str) -> list[Part]:
    """Make the file `path` for a year of `images`, without any image yet, and return the parts to write.

    Raises OSError when the file cannot be written.
    """
    with new_file(path, (images, len(CHANNELS), height, width), cast(Layout, layout)) as file:
        _, *image_shape = file[IMAGES].shape
        chunk = file[IMAGES].chunks
        addresses = [] if layout == SHIPPED else addresses_of(file)
    most = chunk[0] if layout == SHIPPED else max(_PART_BYTES // image_bytes(height, width), 1)
    return [
        Part(path, first, min(most, images - first), tuple(image_shape), tuple(addresses[first : first + most]), chunk)
        for first in range(0, images, most)
    ]


def finish(path: Path, boxes: Boxes, layout: str) -> None:
    """Write the `boxes` of all images and sync the file. Raises OSError when the disk is full."""
    with opened_again(path, boxes.nbytes) as file:
        compressed = {"compression": "gzip", "chunks": True} if layout == SHIPPED else {}
        file.create_dataset(BOXES, data=boxes, dtype="<i4", **compressed)
    sync(path)


# ----------------------------------------------------------------------------------------------------
# The whole set: its parameters, and the processes that draw and write it.


# Increase it when the same parameters give different weather: sets of two versions must not mix.
_GENERATOR_VERSION = 1
_LARGEST_SIDE = 16384


@dataclass(frozen=True)
class SyntheticYears(YearSet):
    """Parameters of a set, which alone decide every byte (with one version of NumPy, on one kind of processor).

    Raises DataError for invalid values.
    """

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
    root: Path | str, parameters: SyntheticYears, *, workers: int | None = None, progress: Tracker = silent
) -> int:
    """Write the set `parameters` to `root` and return how many years were missing and have been written.

    A second call writes nothing; a call after an interrupted one writes the missing years. Other files are never
    touched. `workers` processes share the work (default: one per core of this job); the bytes do not depend on it. With
    more than one, a script's main module must be importable, as always with Python's "spawn". A worker holds one
    image in memory, in the layout `shipped` as many as share a chunk (46 of the shipped size are 2.6 GB).

    Raises DataError when `root` holds another set, cannot be written or is too small, and RunError when a worker was
    killed.
    """
    root = Path(root)
    workers = workers_or_all(workers)
    try:
        missing = _claim(root, parameters)
        if missing:
            _check_space(root, parameters, len(missing))
            with progress(len(missing) * parameters.images_per_year, "making images", "images") as bar:
                _write_years(root, parameters, missing, workers, bar)
    except OSError as error:
        raise DataError(
            f"cannot write the synthetic set: {error.filename or root}: {_reason(error)}; "
            "choose a folder with space that you may write to"
        ) from error
    return len(missing)


def _reason(error: OSError) -> str:
    # HDF5's message has several lines of addresses and sizes.
    return os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]


def _claim(root: Path, parameters: SyntheticYears) -> list[int]:
    """Claim `root` for this set, or check that it already belongs to it, and return the missing years."""
    present = {path.name: year_of(path.name) for path in root.iterdir()} if root.is_dir() else {}
    years = sorted(name for name, year in present.items() if year is not None)
    claim_folder(root, {"generator_version": _GENERATOR_VERSION, **asdict(parameters)}, years)
    foreign = [name for name in years if present[name] not in parameters.years]
    if foreign:
        raise DataError(f"{root} has {', '.join(foreign)}, not made by this command: choose another folder")
    return [year for year in parameters.years if file_name(year) not in present]


def _check_space(root: Path, parameters: SyntheticYears, years: int) -> None:
    needed, free = years * parameters.year_bytes, shutil.disk_usage(root).free
    if needed > free:
        raise DataError(
            f"{root} has {free / 1e9:.1f} GB free, and {years} years of {parameters.images_per_year} images take "
            f"{needed / 1e9:.1f} GB: choose a folder with more space, or make fewer years or images"
        )


def _write_years(root: Path, parameters: SyntheticYears, missing: list[int], workers: int, bar: Progress) -> None:
    with part_folder(root) as folder:
        tasks = list(_tasks(folder, parameters, missing))
        boxes = {
            year: np.full((parameters.images_per_year, MOST_BOXES, len(BOX_COLUMNS)), -1, np.int32) for year in missing
        }
        done = map_in_order(partial(_write_part, parameters), tasks, min(workers, len(tasks)), what="makes images")
        for (year, part), found in zip(tasks, done, strict=True):
            part.join()
            end = part.first + part.count
            boxes[year][part.first : end] = found
            if end == parameters.images_per_year:
                finish(part.path, boxes[year], parameters.layout)
                part.path.replace(root / file_name(year))
                sync_folder(root)
            bar.advance(part.count)


def _tasks(folder: Path, parameters: SyntheticYears, years: list[int]) -> Iterator[tuple[int, Part]]:
    for year in years:
        path = folder / file_name(year)
        for part in lay_out(path, parameters.images_per_year, parameters.height, parameters.width, parameters.layout):
            yield year, part


def _write_part(parameters: SyntheticYears, task: tuple[int, Part]) -> Boxes:
    year, part = task
    return part.write(lambda number: parameters.draw(year, number))
