"""Whether a file that is there already is what a year becomes: by its form, and by all values of both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.repacking.file import FILTERS, image_chunk
from hpcai500.data.climate.repacking.origin import is_made_from
from hpcai500.data.climate.repacking.year import YearJob
from hpcai500.data.climate.values.content import YearContent, content_of, load_contents
from hpcai500.data.climate.values.raw_images import UnreadableImagesError
from hpcai500.data.climate.values.scan import ImageScan, scan_years
from hpcai500.data.climate.year_file import YearFile, open_year
from hpcai500.errors import DataError
from hpcai500.progress import Tracker


def has_form(job: YearJob) -> bool:
    """Whether the file of `job` is there, with the right boxes and layout. Raises DataError when another one is."""
    if not job.final.exists():
        return False
    if job.final.samefile(job.year.path):
        raise DataError(f"{job.final}: the same file as {job.year.path}; repack into another folder")
    try:
        there = open_year(job.final)
    except DataError as error:
        raise _another(job) from error
    if (
        there.storage.chunk != image_chunk(job.year)
        or there.storage.filters != FILTERS[job.kind]
        or not np.array_equal(there.boxes, job.boxes)
    ):
        raise _another(job)
    return True


def require_values(job: YearJob, workers: int, progress: Tracker) -> None:
    """Raise DataError unless the file that is there has the values of the source.

    All are read and compared, unless it is known that this very file was made from this very source.
    """
    there = open_year(job.final)
    # Renamed, and then killed before that was noted.
    renamed = not job.part.exists() and len(job.journal.scans()) == there.images
    if renamed or is_made_from(there, job.year):
        return
    expected = _content(job.year, job.boxes, workers, progress)
    try:
        found = _content(there, there.boxes, workers, progress)
    except UnreadableImagesError as error:
        raise _another(job) from error
    if found.digest != expected.digest:
        raise _another(job)


def _content(year: YearFile, boxes: npt.NDArray[np.int32], workers: int, progress: Tracker) -> YearContent:
    """The content of `year`, were its boxes `boxes`."""
    known = load_contents([year]).get(year.year)
    if known is not None and boxes is year.boxes:
        return known
    scans: list[ImageScan] = []
    with progress(year.images, f"comparing {year.path}", "images") as bar:
        for part in scan_years([year], workers):
            if part.faults:
                raise UnreadableImagesError(part.faults)
            scans += part.images
            bar.advance(part.count)
    return content_of(replace(year, boxes=boxes), scans)


def _another(job: YearJob) -> DataError:
    return DataError(f"{job.final}: not what {job.year.path} becomes; remove it, or choose another folder")
