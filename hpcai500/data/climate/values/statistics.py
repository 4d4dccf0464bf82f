"""Mean and standard deviation of each channel over years of images: measured once, in parallel, and kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import CHANNELS
from hpcai500.data.climate.values.content import YearContent, content_of, load_contents, store_contents
from hpcai500.data.climate.values.moments import ChannelStatistics
from hpcai500.data.climate.values.raw_images import UnreadableImagesError
from hpcai500.data.climate.values.scan import ImageScan, processes, scan_years
from hpcai500.data.climate.year_file import YearFile
from hpcai500.data.staging.reading import require_all_images
from hpcai500.errors import DataError
from hpcai500.progress import Tracker, silent


def non_finite_channels(whole: ChannelStatistics, channels: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return which of `channels` (all, where None) hold NaN or infinite values, a phrase each."""
    bad = whole.nan + whole.infinite
    return tuple(
        f"channel {channel} {CHANNELS[channel]}: {bad[channel]} values are NaN or infinite"
        for channel in _those(bad > 0, channels)
    )


def constant_channels(whole: ChannelStatistics, channels: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return which of `channels` (all, where None) have one value only, a phrase each.

    No division by their deviation can normalise them.
    """
    constant = whole.constant & (whole.count > 0)
    return tuple(
        f"channel {channel} {CHANNELS[channel]}: all values are {whole.minimum[channel]:g}"
        for channel in _those(constant, channels)
    )


def require_varied(statistics: ChannelStatistics, channels: Sequence[int] | None, where: str) -> None:
    """Raise DataError, which begins with `where`, unless each of `channels` (all, where None) has two values."""
    if reasons := constant_channels(statistics, channels):
        raise DataError(
            f"{where}: {reasons[0]}, so that nothing can be normalised by its deviation; leave it out of the recipe's "
            "channels, or take other training years"
        )


def _those(marked: npt.NDArray[np.bool_], channels: Sequence[int] | None) -> list[int]:
    return [channel for channel in np.flatnonzero(marked).tolist() if channels is None or channel in channels]


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
        DataError: the years are staged in part.
    """
    require_all_images(year.path for year in years)
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
    years: Sequence[YearFile],
    *,
    channels: Sequence[int] | None = None,
    workers: int | None = None,
    progress: Tracker = silent,
) -> tuple[ChannelStatistics, ...]:
    """Return the statistics of each of `years`; those of which nothing is kept are measured, all channels of them.

    Raises:
        DataError: one of `channels` (all, where None) holds NaN or infinite values, or chunks cannot be read.
    """
    known = load(years)
    missing = [year for year in years if year.year not in known]
    if missing:
        measured = measure(missing, workers=workers, progress=progress)
        known |= {year: content.statistics for year, content in measured.items()}
    for year in years:
        if reasons := non_finite_channels(known[year.year], channels):
            raise DataError(f"{year.path}: {reasons[0]}; `hpcai500 data check ewa {year.path.parent}` names the images")
    return tuple(known[year.year] for year in years)
