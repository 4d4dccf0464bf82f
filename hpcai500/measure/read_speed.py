"""Whether the data set can be read, and as fast as training could ask for it."""

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
from hpcai500.data.climate.years import YearFile, open_year, year_of
from hpcai500.data.imagenet import index
from hpcai500.data.imagenet.check import Verdict, check_file
from hpcai500.data.imagenet.index import LAYOUT
from hpcai500.errors import DataError
from hpcai500.layers import ClimateProblem, Recipe
from hpcai500.measure.preflight import Answer, failures, listed, values
from hpcai500.progress import silent
from hpcai500.system.checks import READING, Check

# ----------------------------------------------------------------------------------------------------
# Reads a bounded, random part of a data set as cold as the system lets, with as many threads as a run has.


_READ_SECONDS, _CHECK_SECONDS = 4.0, 3.0

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Piece:
    """A part of a file, or all of it."""

    path: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Sample:
    """What of a data set one rank reads.

    Attributes:
        pieces: in the order of reading.
        sample_bytes: what one image or one climate field takes of the storage, on average.
        checks: each says of one file what is wrong with it, None where nothing is.
        what: the files, for people.
        pixels: of a sample, where it is the data that says how many.
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
        seconds: from the first to the last read.
        sample_bytes: as in Sample.
        threads: that read.
        checked: files that were looked into.
        broken: what is wrong with some of them.
        what: the files, for people.
    """

    size_bytes: int
    seconds: float
    sample_bytes: float
    threads: int
    checked: int
    broken: tuple[str, ...]
    what: str


def read(sample: Sample, threads: int, together: Callable[[], None] = lambda: None) -> Reading:
    """Read `sample` by `threads`, for some seconds at most, then look into its files.

    Args:
        sample: what.
        threads: how many read at a time.
        together: called right before reading: all ranks begin at once, as in training.

    Raises:
        OSError: a file cannot be read.
    """
    together()
    start = time.perf_counter()
    sizes = _in_time(_read_cold, sample.pieces, threads, _READ_SECONDS)
    seconds = max(time.perf_counter() - start, 1e-9)
    reasons = _in_time(lambda check: check(), sample.checks, threads, _CHECK_SECONDS)
    broken = tuple(reason for reason in reasons if reason)
    return Reading(sum(sizes), seconds, sample.sample_bytes, threads, len(reasons), broken, sample.what)


def _in_time(work: Callable[[Item], Result], items: Iterable[Item], threads: int, seconds: float) -> list[Result]:
    """Results of the items that were begun before the time was over."""
    limit = time.perf_counter() + seconds
    late = object()

    def one(item: Item) -> Result | object:
        return work(item) if time.perf_counter() < limit else late

    with ThreadPoolExecutor(threads) as pool:
        return [result for result in pool.map(one, items) if result is not late]  # type: ignore[misc]


def _read_cold(piece: Piece) -> int:
    descriptor = os.open(piece.path, os.O_RDONLY)
    try:
        # Pages that this host holds of it; what a server keeps in its memory is out of reach.
        os.posix_fadvise(descriptor, piece.offset, piece.size_bytes, os.POSIX_FADV_DONTNEED)
        return len(os.pread(descriptor, piece.size_bytes, piece.offset))
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------------------------
# Which part of a data set a rank looks at: another one on each, chosen at random, without listing all of it.


_MOST_BYTES = 2**27
_MOST_FILES = 1000
_CLASSES = 16
_CHECKED = 64
_YEARS = 3
_PIECE_BYTES = 2**22
# Reading one image of the layout that was shipped means reading a whole year of some channels.
_MOST_WINDOW_BYTES = 2**27


def choose(recipe: Recipe, root: Path, rank: int) -> Sample:
    """The part of the data set at `root` that `rank` looks at.

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
    classes = index.list_classes(root / "train")
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
    wanted = [range(first, last + 1) for first, last in (problem.training_years, problem.evaluation_years)]
    if missing := [year for years in wanted for year in years if year not in paths]:
        raise DataError(f"{root}: no file for {spans(missing)}; there are {spans(sorted(paths))}")
    training = list(wanted[0])
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
    """What is wrong with a year's file and with one of its images."""
    try:
        year = open_year(path)
        if reasons := refusals(year):
            return f"{path}: {reasons[0]}"
        if _window_bytes(year) <= _MOST_WINDOW_BYTES:
            read_images(year, image, 1)
    except DataError as error:
        return str(error)
    return None


def _window_bytes(year: YearFile) -> int:
    return year.storage.window * year.image_bytes


# ----------------------------------------------------------------------------------------------------
# Whether the data set can be read, and as fast as training could ask for it.


# Training reaches about half of what a matrix product does: less than that, and it will wait for its data.
_SHARE = 0.5


@dataclass(frozen=True)
class Need:
    """What training could take at most.

    Attributes:
        benchmark: for the line to type.
        data: the folder.
        flops: a second, of the matrix products of all ranks; None where they could not be measured.
        sample_flops: of one sample's training; None where they are unknown.
    """

    benchmark: str
    data: Path
    flops: float | None
    sample_flops: float | None

    @property
    def samples_per_second(self) -> float | None:
        """The ceiling: as if all of training were one matrix product."""
        return self.flops / self.sample_flops if self.flops and self.sample_flops else None


def judge_reading(answers: Sequence[Answer[Reading]], need: Need) -> Check:
    """Whether what all ranks read together is whole, and enough."""
    folder = shlex.quote(str(need.data))
    check = f"hpcai500 data check {need.benchmark} {folder}"
    if failed := failures(READING, answers, "cannot read the data set", f"`{check}` looks at all of it"):
        return failed
    found = values(answers)
    # Two ranks may have come across the same file.
    told_of = dict.fromkeys((reason, answer.host) for answer, reading in found for reason in reading.broken)
    broken = [f"{reason} (host {host})" for reason, host in told_of]
    checked = sum(reading.checked for _, reading in found)
    if broken:
        more = f" and {len(broken) - 3} more" if broken[3:] else ""
        told = f"{len(broken)} of {checked} files broken: {'; '.join(broken[:3])}{more}"
        return Check(READING, "fail", told, f"copy them again; `{check}` finds all of them")
    rate = math.fsum(reading.size_bytes / reading.seconds for _, reading in found)
    first = found[0][1]
    threads = f"{len(found)} x {first.threads} threads" if len(found) > 1 else f"{first.threads} threads"
    told = f"{rate / 1e6:.3g} MB/s by {threads} ({first.what}), {checked} files whole"
    if need.samples_per_second is None or not first.sample_bytes:
        return Check(READING, "pass", told)
    wanted = need.samples_per_second * first.sample_bytes
    told = (
        f"{told}; training takes {wanted / 1e6:.3g} MB/s at most ({need.samples_per_second:.3g} samples/s at the speed "
        "of GEMM)"
    )
    if rate >= _SHARE * wanted:
        return Check(READING, "pass", told)
    slowest = min(found, key=lambda it: it[1].size_bytes / it[1].seconds)[0]
    return Check(
        READING,
        "warn",
        f"{told}: training will wait for data; slowest was {listed([slowest.name])}",
        "stage the data set on storage of the nodes, or more threads: --set os.input_threads=N",
    )
