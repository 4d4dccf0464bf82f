"""Mean and standard deviation of each channel over years of images: measured once, in parallel, and kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import CHANNELS
from hpcai500.data.climate.values.content import YearContent, content_of, load_contents, store_contents
from hpcai500.data.climate.values.moments import ChannelStatistics, combined
from hpcai500.data.climate.values.raw_images import UnreadableImagesError
from hpcai500.data.climate.values.scan import ImageScan, processes, scan_years
from hpcai500.data.climate.year_file import YearFile
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent

__all__ = [
    "ChannelStatistics",
    "combine",
    "constant_channels",
    "load",
    "load_or_measure",
    "measure",
    "non_finite_channels",
    "store",
]

FloatArray = npt.NDArray[np.float32]


def combine(years: Iterable[ChannelStatistics]) -> tuple[FloatArray, FloatArray]:
    """Return mean and population standard deviation of each channel over `years`, as float32 (16,)."""
    whole = combined(years)
    return whole.mean.astype(np.float32), whole.std.astype(np.float32)


def non_finite_channels(whole: ChannelStatistics) -> tuple[str, ...]:
    """Return the channels that hold NaN or infinite values, a phrase each."""
    bad = whole.nan + whole.infinite
    return tuple(
        f"channel {channel} {CHANNELS[channel]}: {bad[channel]} values are NaN or infinite"
        for channel in np.flatnonzero(bad).tolist()
    )


def constant_channels(whole: ChannelStatistics) -> tuple[str, ...]:
    """Return the channels of one value only, which no division by their deviation can normalise, a phrase each."""
    constant = whole.constant & (whole.count > 0)
    return tuple(
        f"channel {channel} {CHANNELS[channel]}: all values are {whole.minimum[channel]:g}"
        for channel in np.flatnonzero(constant).tolist()
    )


def load(years: Sequence[YearFile]) -> dict[int, ChannelStatistics]:
    """Return the statistics that are kept for `years`, by year; others are absent."""
    return {year: content.statistics for year, content in load_contents(years).items()}


def store(years: Sequence[YearFile], contents: dict[int, YearContent]) -> None:
    """Keep `contents` of `years`, all in one folder, beside the data or in the user's cache."""
    store_contents(years[0].path.parent, years, contents)


def measure(
    years: Sequence[YearFile], *, workers: int | None = None, progress: Tracker = silent
) -> dict[int, YearContent]:
    """Read all images of `years` in `workers` processes (default: one a core of this job), and keep what is found.

    Memory: a block of images (`raw_images.ranges`) a process. The result depends on values only: not on layout or
    workers.

    Raises:
        UnreadableImagesError: chunks cannot be read.
    """
    contents: dict[int, YearContent] = {}
    scans: list[ImageScan] = []
    by_year = {year.year: year for year in years}
    with progress(sum(year.images for year in years), "measuring channels", "images") as bar:
        for part in scan_years(years, processes(workers)):
            if part.faults:
                raise UnreadableImagesError(part.faults)
            scans += part.images
            bar.advance(part.count)
            if len(scans) == by_year[part.year].images:
                contents[part.year] = content_of(by_year[part.year], scans)
                scans.clear()
                # An interrupted measurement goes on where it was.
                store([by_year[part.year]], contents)
    return contents


def load_or_measure(
    years: Sequence[YearFile], *, workers: int | None = None, progress: Tracker = silent
) -> tuple[ChannelStatistics, ...]:
    """Return the statistics of each of `years`, which `combine` takes; those of which nothing is kept are measured.

    Raises:
        DataError: a channel cannot be normalised (NaN, infinite, constant), or chunks cannot be read.
    """
    known = load(years)
    missing = [year for year in years if year.year not in known]
    if missing:
        measured = measure(missing, workers=workers, progress=progress)
        known |= {year: content.statistics for year, content in measured.items()}
    for year in years:
        if reasons := non_finite_channels(known[year.year]):
            raise DataError(f"{year.path}: {reasons[0]}; `hpcai500 data check ewa {year.path.parent}` names the images")
    found = tuple(known[year.year] for year in years)
    if reasons := constant_channels(combined(found)):
        raise DataError(f"{years[0].path.parent}: {reasons[0]} over years {years[0].year} to {years[-1].year}")
    return found
