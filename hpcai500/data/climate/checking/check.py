"""Reads every image and every box of a set of climate years, and says whether it can be trained on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcai500.data.climate.box_table import BoxSizes, box_sizes, usable
from hpcai500.data.climate.checking.input_cost import InputCost, layouts, measure_cost
from hpcai500.data.climate.checking.year_report import YearReport, report_year
from hpcai500.data.climate.index import build_index, open_years, refusals, spans, year_paths
from hpcai500.data.climate.layout import CLASSES, file_name, year_of
from hpcai500.data.climate.values.chunk_faults import Fault
from hpcai500.data.climate.values.content import (
    YearContent,
    content_fingerprint,
    content_of,
    load_contents,
    store_contents,
)
from hpcai500.data.climate.values.moments import ChannelStatistics, combined
from hpcai500.data.climate.values.scan import ImageScan, processes, scan_years
from hpcai500.data.climate.values.statistics import constant_channels
from hpcai500.data.climate.year_file import YearFile
from hpcai500.data.staging.reading import require_all_images
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent


@dataclass(frozen=True)
class Finding:
    """Why a file, named relative to the root, cannot be trained on."""

    path: str
    reason: str


@dataclass(frozen=True)
class CheckReport:
    """What a check of all files found.

    Attributes:
        years: those that follow the format, ascending.
        box_sizes: extents of the boxes of each class, over all years.
        training_years: those whose values `statistics` is of; all, unless some were asked for.
        statistics: None when a training year cannot be read whole.
        fingerprint: None unless all files follow the format.
        content_fingerprint: None unless all files can be read whole, too.
        costs: what each layout costs to read.
        broken: all that keeps the set from being trained on.
    """

    root: Path
    years: tuple[YearReport, ...]
    box_sizes: tuple[BoxSizes, ...]
    training_years: tuple[int, ...]
    statistics: ChannelStatistics | None
    fingerprint: str | None
    content_fingerprint: str | None
    costs: tuple[InputCost, ...]
    broken: tuple[Finding, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the set can be trained on."""
        return not self.broken

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Boxes of each class in all years."""
        return tuple(sum(year.class_counts[label] for year in self.years) for label in range(len(CLASSES)))

    @property
    def images(self) -> int:
        """Of all years that follow the format."""
        return sum(year.file.images for year in self.years)


def check_climate(
    root: Path | str,
    *,
    training: tuple[int, int] | None = None,
    workers: int | None = None,
    progress: Tracker = silent,
) -> CheckReport:
    """Read all years of the set at `root` in `workers` processes (default: one a core of this job).

    `training` are the first and last year of which mean and standard deviation are wanted. Contents are kept for the
    runs that follow. Raises DataError when there is no set at `root`; all that is wrong with one is in the report.
    """
    start_seconds = time.monotonic()
    check = _Check(Path(root))
    check.open(progress)
    chosen = check.choose(training)
    # Before everything is read: the rates of files that no cache holds are those that matter.
    costs = check.costs()
    reports = check.read(processes(workers), progress)
    statistics = check.statistics(chosen)
    return CheckReport(
        root=check.root,
        years=reports,
        box_sizes=_sizes(check.years),
        training_years=tuple(year.year for year in chosen),
        statistics=statistics,
        fingerprint=check.fingerprint,
        content_fingerprint=check.content_fingerprint(),
        costs=costs,
        broken=tuple(sorted(check.broken, key=lambda found: found.path)),
        seconds=time.monotonic() - start_seconds,
    )


class _Check:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.years: tuple[YearFile, ...] = ()
        self.fingerprint: str | None = None
        self.broken: list[Finding] = []
        self._files = 0
        self._contents: dict[int, YearContent] = {}

    def add(self, path: Path, reason: object) -> None:
        """Note what is wrong with the file at `path`."""
        self.broken.append(Finding(path.name, str(reason).removeprefix(f"{path}: ")))

    def open(self, progress: Tracker) -> None:
        """Open all files, and note those that do not follow the format or cannot be trained on."""
        paths = year_paths(self.root)
        self._files = len(paths)
        require_all_images(paths)
        self.years = open_years(self.root, paths, progress, self.add)
        for year in self.years:
            for reason in refusals(year):
                self.add(year.path, reason)
            if year.grid != self.years[0].grid:
                first = self.years[0]
                self.add(
                    year.path,
                    f"images of {year.height} x {year.width}, but {first.path.name} has {first.height} x {first.width}",
                )
        if len(self.years) == self._files and len({year.grid for year in self.years}) == 1:
            self.fingerprint = build_index(self.root, self.years).fingerprint

    def choose(self, training: tuple[int, int] | None) -> tuple[YearFile, ...]:
        """Return the training years, and note those that have no file."""
        if training is None:
            return self.years
        first, last = training
        present = {year_of(path.name) for path in year_paths(self.root)}
        for missing in sorted(set(range(first, last + 1)) - present):
            self.add(self.root / file_name(missing), "missing: no such file")
        return tuple(year for year in self.years if first <= year.year <= last)

    def costs(self) -> tuple[InputCost, ...]:
        """Return what each layout costs to read, where that can be measured."""
        found = []
        for group in layouts(self.years):
            try:
                found.append(measure_cost(group))
            except DataError:
                # The scan tells what cannot be read.
                continue
        return tuple(found)

    def read(self, workers: int, progress: Tracker) -> tuple[YearReport, ...]:
        """Read all images; note what cannot be read or trained on; keep what can for later runs."""
        kept = load_contents(self.years)
        reports = []
        scans: list[tuple[int, ImageScan]] = []
        faults: list[Fault] = []
        left = list(self.years)
        with progress(sum(year.images for year in left), "checking images", "images") as bar:
            for part in scan_years(self.years, workers):
                scans += enumerate(part.images, part.first)
                faults += part.faults
                bar.advance(part.count)
                if part.first + part.count == left[0].images:
                    reports.append(self._finish(left.pop(0), scans, faults, kept))
                    scans, faults = [], []
        return tuple(reports)

    def _finish(
        self,
        year: YearFile,
        scans: Sequence[tuple[int, ImageScan]],
        faults: Sequence[Fault],
        kept: dict[int, YearContent],
    ) -> YearReport:
        report = report_year(year, scans, faults)
        for fault in faults:
            self.add(year.path, fault)
        for finding in report.channels:
            if finding.oddity != "constant":
                self.add(year.path, f"dataset images, {finding}")
        if not faults:
            content = content_of(year, (scan for _, scan in scans))
            if year.year in kept and kept[year.year].digest != content.digest:
                self.add(year.path, "its values are not those of the last check, though its size and time are")
            else:
                self._contents[year.year] = content
                store_contents(self.root, [year], self._contents)
        return report

    def statistics(self, chosen: Sequence[YearFile]) -> ChannelStatistics | None:
        """Return the statistics of the `chosen` years, and note channels that cannot be normalised."""
        if not chosen or any(year.year not in self._contents for year in chosen):
            return None
        whole = combined(self._contents[year.year].statistics for year in chosen)
        for reason in constant_channels(whole):
            self.add(self.root, f"{reason} in the training years {spans([year.year for year in chosen])}")
        return whole

    def content_fingerprint(self) -> str | None:
        """Return the fingerprint of all values, when all could be read."""
        return content_fingerprint(self._contents) if len(self._contents) == self._files else None


def _sizes(years: Sequence[YearFile]) -> tuple[BoxSizes, ...]:
    boxes = [year.boxes[usable(year.boxes, year.height, year.width)] for year in years]
    return box_sizes(np.concatenate([np.empty((0, 5), np.int32), *boxes]))
