"""Writes a learnable synthetic set of years in ExtremeWeather's format.

For machines without ExtremeWeather: smoke runs train on it through the same code as the reference run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hpcai500.data.climate.layout import BOX_COLUMNS, CLASSES, MOST_BOXES, file_name, year_of
from hpcai500.data.climate.weather.fields import Grid
from hpcai500.data.climate.weather.scene import SMALLEST_HEIGHT, SMALLEST_WIDTH, draw_scene
from hpcai500.data.climate.weather.year_writer import LAYOUTS, Boxes, Image, Part, finish, image_bytes, lay_out
from hpcai500.data.part_folder import part_folder
from hpcai500.data.synthetic_manifest import claim_folder
from hpcai500.data.worker_pool import map_in_order
from hpcai500.errors import DataError
from hpcai500.files import sync_folder
from hpcai500.progress import Progress, Tracker, silent

# Raised when the same parameters begin to give other weather: sets of two versions must not mix.
_GENERATOR_VERSION = 1
_LARGEST_SIDE = 16384


@dataclass(frozen=True)
class SyntheticYears:
    """What a set is made of: these numbers alone decide every byte (of one version of NumPy, on one kind of processor).

    Attributes:
        first_year, last_year: the years, both included; each is one file.
        images_per_year: images in each file.
        height, width: grid of the globe; storms keep their proportions.
        layout: how the file stores images, one of `year_writer.LAYOUTS`.
        class_shares: of the storms, by class; any scale.
        seed: another one gives other weather over another ground.

    Raises DataError for values that cannot be made.
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
        """The years in their order."""
        return range(self.first_year, self.last_year + 1)

    @property
    def year_bytes(self) -> int:
        """What the images of a year take, uncompressed; gzip takes a tenth off."""
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
    # HDF5's own text names its addresses and sizes, on lines of their own.
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
        """Draw and write one part; return its boxes."""
        year, part = task
        return part.write(lambda number: self.wanted.draw(year, number))
