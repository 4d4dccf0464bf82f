"""Which part of a data set a rank looks at: another one on each, chosen at random, without listing all of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hpcai500.data.climate.index import open_years, refusals, spans, year_paths
from hpcai500.data.climate.layout import year_of
from hpcai500.data.climate.values.raw_images import read_images
from hpcai500.data.climate.year_file import YearFile, open_year
from hpcai500.data.imagenet import folder_scan
from hpcai500.data.imagenet.file_check import Verdict, check_file
from hpcai500.data.imagenet.listing import LAYOUT
from hpcai500.errors import DataError
from hpcai500.layers import ClimateProblem, Recipe
from hpcai500.measure.preflight.reading import Piece, Sample
from hpcai500.progress import silent

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
    classes = folder_scan.list_classes(root / "train")
    chosen = [f"train/{classes[number]}" for number in random.permutation(len(classes))[:_CLASSES]]
    folders = folder_scan.scan_classes(root, chosen, silent)
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
