"""Checks for `hpcai500 doctor` whether the data set can be read, and fast enough for training.

Each rank reads a bounded, random part of the data set, without the host's page cache, with as many threads as a run
has.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from hpcai500.data.climate.index import open_years, refusals, spans, year_paths
from hpcai500.data.climate.values import read_images
from hpcai500.data.climate.years import open_year, year_of
from hpcai500.data.imagenet import index
from hpcai500.data.imagenet.check import Verdict, check_file
from hpcai500.data.imagenet.index import LAYOUT
from hpcai500.errors import DataError
from hpcai500.layers import ClimateProblem, Recipe
from hpcai500.measure.file_system import Piece, drop_from_memory
from hpcai500.measure.preflight import Answer, failures, listed, values
from hpcai500.progress import silent
from hpcai500.system.checks import READING, Check

# ----------------------------------------------------------------------------------------------------
# Reading.


_READ_SECONDS, _CHECK_SECONDS = 4.0, 3.0

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Sample:
    """The part of a data set that one rank reads.

    Attributes:
        pieces: in the order of reading.
        sample_bytes: of one image or one climate field in storage, on average.
        checks: each returns what is wrong with one file, None for a good one.
        what: a description of the files, for messages.
        pixels: of a sample, if the data decides it; else None.
    """

    pieces: Sequence[Piece]
    sample_bytes: float
    checks: Sequence[Callable[[], str | None]]
    what: str
    pixels: int | None = None


@dataclass(frozen=True)
class Reading:
    """What one rank has read.

    Attributes:
        size_bytes: read within `seconds`.
        sample_bytes, what: as in `Sample`.
        checked: number of files that were checked.
        broken: what is wrong with some of them.
    """

    size_bytes: int
    seconds: float
    sample_bytes: float
    threads: int
    checked: int
    broken: tuple[str, ...]
    what: str


def read(sample: Sample, threads: int) -> Reading:
    """Read `sample` by `threads`, for some seconds at most, then check its files.

    Raises:
        OSError: a file cannot be read.
    """
    start = time.perf_counter()
    sizes = _in_time(_read_cold, sample.pieces, threads, _READ_SECONDS)
    seconds = max(time.perf_counter() - start, 1e-9)
    reasons = _in_time(lambda check: check(), sample.checks, threads, _CHECK_SECONDS)
    broken = tuple(reason for reason in reasons if reason)
    return Reading(sum(sizes), seconds, sample.sample_bytes, threads, len(reasons), broken, sample.what)


def _in_time(work: Callable[[Item], Result], items: Iterable[Item], threads: int, seconds: float) -> list[Result]:
    """Results of the items that were begun within `seconds`."""
    limit = time.perf_counter() + seconds
    late = object()

    def one(item: Item) -> Result | object:
        return work(item) if time.perf_counter() < limit else late

    with ThreadPoolExecutor(threads) as pool:
        return [result for result in pool.map(one, items) if result is not late]  # type: ignore[misc]


def _read_cold(piece: Piece) -> int:
    drop_from_memory(piece)
    descriptor = os.open(piece.path, os.O_RDONLY)
    try:
        return len(os.pread(descriptor, piece.size_bytes, piece.offset))
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# The part of a data set that a rank reads: a different random one on each rank, chosen without listing all files.


_MOST_BYTES = 2**27
_MOST_FILES = 1000
_CLASSES = 16
_CHECKED = 64
_YEARS = 3
_PIECE_BYTES = 2**22
# In the published layout, reading one image means reading a whole year of some channels; that is left out.
_MOST_WINDOW_BYTES = 2**27


def choose(recipe: Recipe, root: Path, rank: int) -> Sample:
    """The part of the data set at `root` that `rank` reads.

    Raises:
        DataError: it is not the data set of the recipe.
    """
    random = np.random.default_rng(rank)
    if recipe.benchmark == "ic":
        return _images(root, random)
    assert isinstance(recipe.problem, ClimateProblem)
    return _years(root, recipe.problem, random)


def _images(root: Path, random: np.random.Generator) -> Sample:
    if not (root / "train").is_dir():
        raise DataError(f"{root} has no folder train/: {LAYOUT}")
    classes = index.scan_split(root / "train").classes
    chosen = [f"train/{classes[number]}" for number in random.permutation(len(classes))[:_CLASSES]]
    folders = index.scan_classes(root, chosen, silent)
    found = [(f"{folder.path}/{name}", size) for folder in folders for name, size in folder.files]
    if not found:
        raise DataError(f"{root}: no image in {', '.join(chosen[:3]) or 'train/, which has no folders'}: {LAYOUT}")
    shuffled = [found[number] for number in random.permutation(len(found))[:_MOST_FILES]]
    sizes = np.cumsum([size for _, size in shuffled])
    taken = shuffled[: int(np.searchsorted(sizes, _MOST_BYTES)) + 1]
    return Sample(
        [Piece(root / path, 0, size) for path, size in taken],
        math.fsum(size for _, size in found) / len(found),
        [partial(_broken_image, root, path) for path, _ in taken[:_CHECKED]],
        f"images of {len(folders)} of {len(classes)} classes",
    )


def _broken_image(root: Path, path: str) -> str | None:
    found = check_file(root, path)
    return f"{path}: {found.reason}" if found.verdict is Verdict.BROKEN else None


def _years(root: Path, problem: ClimateProblem, random: np.random.Generator) -> Sample:
    paths = {year: path for path in year_paths(root) if (year := year_of(path.name)) is not None}
    required = [range(first, last + 1) for first, last in (problem.training_years, problem.evaluation_years)]
    if missing := [year for years in required for year in years if year not in paths]:
        raise DataError(f"{root}: no file for {spans(missing)}; found {spans(sorted(paths))}")
    training = list(required[0])
    chosen = [paths[training[number]] for number in random.permutation(len(training))[:_YEARS]]
    broken: list[Callable[[], str | None]] = []
    years = open_years(root, chosen, on_error=lambda path, error: broken.append(partial(str, error)))
    pieces = [
        Piece(path, offset, _PIECE_BYTES) for path in chosen for offset in range(0, path.stat().st_size, _PIECE_BYTES)
    ]
    shuffled = [pieces[number] for number in random.permutation(len(pieces))[: _MOST_BYTES // _PIECE_BYTES]]
    images = sum(year.images for year in years)
    stored = math.fsum(year.path.stat().st_size for year in years)
    checks = [partial(_broken_year, year.path, int(random.integers(year.images))) for year in years]
    what = f"years {spans(sorted(year_of(path.name) or 0 for path in chosen))}"
    pixels = years[0].height * years[0].width if years else None
    return Sample(shuffled, stored / images if images else 0.0, [*broken, *checks], what, pixels)


def _broken_year(path: Path, image: int) -> str | None:
    """What is wrong with a year's file or with one of its images."""
    try:
        year = open_year(path)
        if reasons := refusals(year):
            return f"{path}: {reasons[0]}"
        if year.storage.window * year.image_bytes <= _MOST_WINDOW_BYTES:
            read_images(year, image, 1)
    except DataError as error:
        return str(error)
    return None


# ----------------------------------------------------------------------------------------------------
# The verdict.


# Training reaches about half the FLOPS of matrix products; it waits for data that comes more slowly than that.
_SHARE = 0.5


@dataclass(frozen=True)
class Need:
    """The most that training can need.

    Attributes:
        flops: a second, of the matrix products of all ranks; None if they were not measured.
        sample_flops: operations of training on one sample; None if unknown.
    """

    benchmark: str
    data: Path
    flops: float | None
    sample_flops: float | None

    @property
    def samples_per_second(self) -> float | None:
        """The ceiling, if training were as fast as matrix products; None if unknown."""
        return self.flops / self.sample_flops if self.flops and self.sample_flops else None


def check_reading(answers: Sequence[Answer[Reading]], need: Need) -> Check:
    """Check that files are whole, and that all ranks together read fast enough."""
    folder = shlex.quote(str(need.data))
    command = f"hpcai500 data check {need.benchmark} {folder}"
    if failed := failures(READING, answers, "cannot read the data set", f"`{command}` checks all of it"):
        return failed
    found = values(answers)
    # Two ranks may have checked the same file.
    reasons = dict.fromkeys((reason, answer.host) for answer, reading in found for reason in reading.broken)
    broken = [f"{reason} (host {host})" for reason, host in reasons]
    checked = sum(reading.checked for _, reading in found)
    if broken:
        more = f" and {len(broken) - 3} more" if broken[3:] else ""
        detail = f"{len(broken)} of {checked} files broken: {'; '.join(broken[:3])}{more}"
        return Check(READING, "fail", detail, f"copy them again; `{command}` finds all of them")
    rate = math.fsum(reading.size_bytes / reading.seconds for _, reading in found)
    first = found[0][1]
    threads = f"{len(found)} x {first.threads} threads" if len(found) > 1 else f"{first.threads} threads"
    detail = f"{rate / 1e6:.3g} MB/s by {threads} ({first.what}), {checked} files whole"
    if need.samples_per_second is None or not first.sample_bytes:
        return Check(READING, "pass", detail)
    needed = need.samples_per_second * first.sample_bytes
    detail = (
        f"{detail}; training needs at most {needed / 1e6:.3g} MB/s ({need.samples_per_second:.3g} samples/s at the "
        "speed of GEMM)"
    )
    if rate >= _SHARE * needed:
        return Check(READING, "pass", detail)
    slowest = min(found, key=lambda it: it[1].size_bytes / it[1].seconds)[0]
    return Check(
        READING,
        "warn",
        f"{detail}: training will wait for data; the slowest is {listed([slowest.name])}",
        "stage the data set on storage of the nodes, or use more threads: --set os.input_threads=N",
    )
