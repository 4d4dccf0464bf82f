"""Rewrites climate years so that an image is one piece of its file, which is read as fast as the disk gives it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcai500.data.climate.hdf5_errors import plain
from hpcai500.data.climate.index import build_index, load_content_fingerprint, open_years, spans, year_paths
from hpcai500.data.climate.layout import year_of
from hpcai500.data.climate.repacking.comparison import has_form, require_values
from hpcai500.data.climate.repacking.estimate import Estimate, estimate
from hpcai500.data.climate.repacking.file import Filter
from hpcai500.data.climate.repacking.lock import only_writer
from hpcai500.data.climate.repacking.year import YearJob, repack_year, settle
from hpcai500.data.climate.values.scan import processes
from hpcai500.data.climate.variant import as_shipped
from hpcai500.data.climate.year_file import YearFile
from hpcai500.errors import DataError, RunError
from hpcai500.progress import Tracker, silent


@dataclass(frozen=True)
class RepackReport:
    """What was done: the years, the bytes of all their files, and fingerprints of the new set.

    `written` were written now and read back; `kept` were there, and are what the source becomes.
    `converted` are the years whose boxes were of the swapped variant. The fingerprint is that of the years at the
    source, unless boxes were converted.
    """

    root: Path
    written: tuple[int, ...]
    kept: tuple[int, ...]
    converted: tuple[int, ...]
    images: int
    stored_bytes: int
    fingerprint: str
    content_fingerprint: str | None
    seconds: float


class Repacking:
    """A repacking that was found possible: `estimate` tells what it takes, `run` does it."""

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        kind: Filter = "none",
        years: tuple[int, int] | None = None,
        convert_boxes: bool = False,
        workers: int | None = None,
        progress: Tracker = silent,
    ) -> None:
        """Open the years of `source` (`years`: first and last; default: all), to be repacked into the folder `target`.

        Raises:
            DataError: there is nothing to repack, a file does not follow the format, boxes need to be converted, the
                folders are one, or `target` holds other files of these names.
        """
        _require_apart(source, target)
        self._workers, self._progress = processes(workers), progress
        self._source, self._target = source, target
        self._years = open_years(source, _chosen(source, years), progress)
        build_index(source, self._years)
        self._converted = tuple(year.year for year in self._years if _needs_converting(year, convert_boxes))
        self._kind = kind
        self._look()

    def _look(self) -> None:
        """Tell the years that are there from those that are left."""
        jobs = [self._job(year) for year in self._years]
        self._there = [job for job in jobs if has_form(job)]
        self.jobs = [job for job in jobs if job not in self._there]

    def _job(self, year: YearFile) -> YearJob:
        boxes = as_shipped(year.boxes) if year.year in self._converted else year.boxes
        return YearJob(year, self._target, boxes, self._kind)

    def estimate(self) -> Estimate:
        """Return what is left to do. Raises DataError when the disk has no room for it."""
        with _written_to(self._target):
            return estimate(self.jobs, self._workers)

    def run(self) -> RepackReport:
        """Repack what is left; may be killed at any time, and goes on when called again.

        Years that are there are kept once it is known that they have the values of the source.

        Raises:
            DataError: the source cannot be read, or a year that is there has other values.
            RunError: the disk is full, or does not keep what is written; or another repacking writes there.
        """
        start_seconds = time.monotonic()
        with _written_to(self._target):
            self._target.mkdir(parents=True, exist_ok=True)
            with only_writer(self._target):
                # Another repacking may have ended since this one was planned.
                self._look()
                for job in self._there:
                    require_values(job, self._workers, self._progress)
                    settle(job)
                for number, job in enumerate(self.jobs, 1):
                    repack_year(job, self._workers, self._progress, f"{number} of {len(self.jobs)}")
        return self._report(time.monotonic() - start_seconds)

    def _report(self, seconds: float) -> RepackReport:
        paths = [self._target / year.path.name for year in self._years]
        index = build_index(self._target, open_years(self._target, paths))
        before = build_index(self._source, self._years).fingerprint
        if not self._converted and index.fingerprint != before:
            raise RunError(f"{self._target}: another fingerprint than {self._source}: was it changed meanwhile?")
        return RepackReport(
            root=self._target,
            written=tuple(job.year.year for job in self.jobs),
            kept=tuple(job.year.year for job in self._there),
            converted=self._converted,
            images=sum(year.images for year in index.years),
            stored_bytes=sum(year.identity.size_bytes for year in index.years),
            fingerprint=index.fingerprint,
            content_fingerprint=load_content_fingerprint(index),
            seconds=seconds,
        )


def _require_apart(source: Path, target: Path) -> None:
    origin, place = source.resolve(), target.resolve()
    if origin == place:
        raise DataError(f"{target}: the set is there already; repack it into another folder")
    if place.is_relative_to(origin):
        raise DataError(f"{target}: inside the set {source}; repack it into a folder outside")
    if target.exists() and not target.is_dir():
        raise DataError(f"{target}: not a folder")


def _chosen(source: Path, years: tuple[int, int] | None) -> tuple[Path, ...]:
    paths = {year_of(path.name): path for path in year_paths(source)}
    if years is None:
        return tuple(paths.values())
    missing = [year for year in range(years[0], years[1] + 1) if year not in paths]
    if missing or years[1] < years[0]:
        there = spans([year for year in paths if year is not None])
        raise DataError(f"{source}: no file for {spans(missing) or 'no years'}; there are {there}")
    return tuple(path for year, path in paths.items() if year is not None and years[0] <= year <= years[1])


def _needs_converting(year: YearFile, asked: bool) -> bool:
    if year.variant.name == "ambiguous":
        raise DataError(f"{year.path}: dataset boxes: of no known variant ({year.variant.evidence}); mend it first")
    if year.variant.name == "swapped" and not asked:
        raise DataError(
            f"{year.path}: dataset boxes: x and y are swapped, and classes count from 1 ({year.variant.evidence}), "
            "which no run accepts; add --convert-boxes to have them converted"
        )
    return year.variant.name == "swapped"


@contextmanager
def _written_to(target: Path) -> Iterator[None]:
    """Tell of a disk that takes no more in one line: what was written stays, and the next call goes on there."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else plain(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "make room, and run the same command again" if full else "mend it, and run the same command again"
        raise RunError(f"{target}: cannot be written: {reason}; what is done is kept: {remedy}") from error
