"""Staging of climate years: of each file a piece for all but its images, and one for each window of images.

A copy is as long as its file, with holes where images are that nobody needs. It gets its name when all that a reader
asks of it but images is in it; images are then put into their places. Readers take its size and time from the staged
folder's description: they are those of the source, whatever is put into it meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from hpcai500.data.climate import index, values
from hpcai500.data.climate.index import load_climate_index
from hpcai500.data.climate.values import measure
from hpcai500.data.climate.years import YearFile, open_year
from hpcai500.data.derived import MANIFEST
from hpcai500.data.samplers import training_samples
from hpcai500.data.staging.copying import Original, changed, copy_extents, digest_extents
from hpcai500.data.staging.digests import Digests, Marks, Pieces
from hpcai500.data.staging.holes import punch
from hpcai500.data.staging.layout import PART, state_folder
from hpcai500.data.staging.pieces import Sizes, Watch
from hpcai500.data.staging.reading import DAMAGED, damaged
from hpcai500.data.staging.staged_years import StagedYear, read_years, write_years
from hpcai500.data.staging.year_extents import YearExtents
from hpcai500.files import write_unsynced
from hpcai500.layers import ClimateProblem, Recipe
from hpcai500.methodology.sampling import probe
from hpcai500.progress import Tracker

_DERIVED = (index.FILE, values.FILE, MANIFEST)


class StagedYears:
    """Climate files in a staged folder.

    Args:
        root: the folder.
        years: its files.
        extents: where images are in the file of that number.
    """

    def __init__(self, root: Path, years: Sequence[StagedYear], extents: Callable[[int], YearExtents]) -> None:
        self._root, self.years = root, years
        self._find, self._known = extents, dict[int, YearExtents]()
        self._firsts = np.array([year.first for year in years], np.int64)

    @cached_property
    def sizes_bytes(self) -> Sizes:
        """Of each piece."""
        sizes: list[Sizes] = []
        for number in range(len(self.years)):
            windows = self._extents(number).window_bytes()
            rest = sum(size for _, size in self._extents(number).rest)
            sizes += [np.array([rest], np.int64), windows]
        return np.concatenate(sizes)

    def place(self, piece: int) -> tuple[int, int | None]:
        """The number of a piece's file, and of its window; None for all but images."""
        number = int(np.searchsorted(self._firsts, piece, "right")) - 1
        window = piece - self.years[number].first - 1
        return number, None if window < 0 else window

    def extents(self, piece: int) -> Sequence[tuple[int, int]]:
        """The bytes of a piece in its file."""
        number, window = self.place(piece)
        return self._extents(number).rest if window is None else self._extents(number).window(window)

    def path(self, piece: int) -> Path:
        """The file of a piece."""
        return self._root / self.years[self.place(piece)[0]].name

    def new_files(self, pieces: Marks) -> int:
        """Images need none."""
        return int(np.count_nonzero(pieces[self._firsts]))

    def batches(self, pieces: Pieces) -> Iterator[Sequence[int]]:
        """One by one: they are large."""
        yield from ([piece] for piece in pieces.tolist())

    def digest(self, batch: Sequence[int], watch: Watch) -> Iterator[tuple[int, bytes | None]]:
        """As `Staged` has it."""
        for piece in batch:
            try:
                descriptor = os.open(self.path(piece), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                yield piece, None
                continue
            try:
                yield piece, digest_extents(descriptor, self.extents(piece), watch.count, watch.stop)
            finally:
                os.close(descriptor)

    def remove(self, pieces: Pieces) -> None:
        """Make holes where images were."""
        for piece in pieces.tolist():
            if self.place(piece)[1] is not None:
                with contextlib.suppress(FileNotFoundError):
                    punch(self.path(piece), self.extents(piece))

    def remove_all(self, pieces: Pieces) -> None:
        """Remove files, and what is derived from the set."""
        del pieces
        for name in (*(year.name for year in self.years), *_DERIVED):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                Path(self._root, name).unlink()

    def with_dependents(self, pieces: Pieces) -> Pieces:
        """Images are in a file that the piece of all else begins anew."""
        marks = np.zeros(self.years[-1].first + 1 + self.years[-1].windows, np.bool_)
        marks[pieces] = True
        for year in self.years:
            if marks[year.first]:
                marks[year.first : year.first + 1 + year.windows] = True
        return np.flatnonzero(marks)

    def _extents(self, number: int) -> YearExtents:
        if number not in self._known:
            self._known[number] = self._find(number)
        return self._known[number]


class YearSource:
    """Climate files at the source."""

    benchmark = "ewa"

    def __init__(self, source: Path, root: Path, progress: Tracker) -> None:
        """Open the years at `source`, to be staged in `root`. Raises DataError as `load_climate_index` does."""
        self._source, self._root, self._progress = source, root, progress
        self._index = load_climate_index(source, progress=progress)
        self.fingerprint = self._index.fingerprint
        years, first = [], 0
        for year in self._index.years:
            identity, window = year.identity, year.storage.window
            staged = StagedYear(year.path.name, identity.size_bytes, identity.mtime_ns, first, year.images, window)
            years.append(staged)
            first += 1 + staged.windows
        self.pieces = first
        self._files = StagedYears(root, years, lambda number: _extents(self._index.years[number]))

    def needed(self, recipes: Sequence[Recipe]) -> Marks:
        """Of all files all but their images; the evaluation images; those that are drawn, or that members judge."""
        marks = np.zeros(self.pieces, np.bool_)
        if not recipes:
            marks[:] = True
        marks[[year.first for year in self._files.years]] = True
        for recipe in recipes:
            problem, options = recipe.problem, recipe.ensemble
            assert isinstance(problem, ClimateProblem)
            training = self._index.select(*problem.training_years)
            counts = [year.images for year in training]
            drawn = training_samples(recipe, sum(counts), {"year": counts}).drawn
            wanted = np.full(sum(counts), drawn is None, np.bool_)
            if drawn is not None:
                wanted[drawn] = True
            if options is not None:
                wanted[probe(sum(counts), options.out_of_bag_samples)] = True
            self._mark(marks, training, wanted)
            evaluation = self._index.select(*problem.evaluation_years)
            self._mark(marks, evaluation, np.ones(sum(year.images for year in evaluation), np.bool_))
        return marks

    def _mark(self, marks: Marks, years: Sequence[YearFile], wanted: Marks) -> None:
        """Mark the windows of `wanted` images of `years`, one after the other."""
        by_name = {year.name: year for year in self._files.years}
        first = 0
        for year in years:
            staged = by_name[year.path.name]
            images = np.flatnonzero(wanted[first : first + year.images])
            marks[staged.first + 1 + images // staged.window] = True
            first += year.images

    def describe_set(self) -> None:
        """The files, and the manifest of a synthetic set."""
        write_years(self._root, self._files.years)
        with contextlib.suppress(FileNotFoundError):
            write_unsynced(self._root / MANIFEST, (self._source / MANIFEST).read_bytes())

    def require_same(self) -> None:
        """Sizes and times must be those of then."""
        try:
            known = read_years(self._root)
        except DAMAGED as error:
            raise damaged(self._root, error) from error
        if len(known) != len(self._files.years):
            raise damaged(self._root, ValueError(f"{len(known)} files of {len(self._files.years)}"))
        for then, now in zip(known, self._files.years, strict=True):
            if then != now:
                raise changed(f"{self._source}/{now.name}")

    def staged(self) -> StagedYears:
        """The files in the staged folder."""
        return self._files

    def order(self, pieces: Pieces) -> list[Pieces]:
        """Images need the file that they are put into."""
        rest = np.isin(pieces, [year.first for year in self._files.years])
        return [pieces[rest], pieces[~rest]]

    def copy(self, batch: Sequence[int], digests: Digests, watch: Watch) -> None:
        """Copy pieces, images into the file that is there."""
        for piece in batch:
            number, window = self._files.place(piece)
            year = self._files.years[number]
            path = f"{self._source}/{year.name}"
            with Original(path, path) as original:
                if (original.status.st_size, original.status.st_mtime_ns) != (year.size_bytes, year.mtime_ns):
                    raise changed(path)
                if window is None:
                    digests.wipe(np.arange(year.first, year.first + 1 + year.windows))
                    digest = self._copy_rest(original, piece, year, watch)
                else:
                    digest = self._copy_images(original, piece, watch)
            digests.put(piece, digest)

    def _copy_rest(self, original: Original, piece: int, year: StagedYear, watch: Watch) -> bytes:
        part = state_folder(self._root) / PART / year.name
        target = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(target, year.size_bytes)
            digest = copy_extents(original, target, self._files.extents(piece), watch.count, watch.stop)
            original.require_unchanged()
        finally:
            os.close(target)
        part.replace(self._root / year.name)
        return digest

    def _copy_images(self, original: Original, piece: int, watch: Watch) -> bytes:
        target = os.open(self._files.path(piece), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            digest = copy_extents(original, target, self._files.extents(piece), watch.count, watch.stop)
            original.require_unchanged()
            return digest
        finally:
            os.close(target)

    def changes(self, batch: Sequence[int], digests: Digests, watch: Watch) -> None:
        """Nothing that `require_same` has not seen."""

    def finish(self, recipes: Sequence[Recipe]) -> None:
        """What is known of the values, measured here where a run would have to: of a part it could not be."""
        wanted = {year.year: year for recipe in recipes for year in self._years_of(recipe)}
        known = values.load_contents(self._index.years)
        if missing := [year for year in wanted.values() if year.year not in known]:
            known |= measure(missing, progress=self._progress)
        staged = load_climate_index(self._root)
        if known:
            values.store_contents(self._root, staged.years, known)

    def _years_of(self, recipe: Recipe) -> tuple[YearFile, ...]:
        problem = recipe.problem
        assert isinstance(problem, ClimateProblem)
        return (*self._index.select(*problem.training_years), *self._index.select(*problem.evaluation_years))


def open_staged(root: Path) -> StagedYears:
    """The files of a staged folder, without their source. Raises OSError, ValueError, KeyError, TypeError."""
    years = read_years(root)
    return StagedYears(root, years, lambda number: _extents(open_year(root / years[number].name)))


def _extents(year: YearFile) -> YearExtents:
    return YearExtents(year.storage, year.identity.size_bytes)
