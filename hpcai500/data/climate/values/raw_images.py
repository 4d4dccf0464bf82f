"""Values of images as the file holds them, read in windows: the ranges of images that share chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hpcai500._core import ClimateError, ClimateReader
from hpcai500.data.climate.hdf5_errors import DAMAGED, open_hdf5, plain
from hpcai500.data.climate.layout import CHANNELS, IMAGES
from hpcai500.data.climate.reading.unreadable import unreadable
from hpcai500.data.climate.storage import Located
from hpcai500.data.climate.values.chunk_faults import Fault, find_faults
from hpcai500.data.climate.year_file import YearFile
from hpcai500.data.staging.reading import require_images
from hpcai500.errors import DataError

FloatArray = npt.NDArray[np.float32]
ALL_CHANNELS = slice(0, len(CHANNELS))

# A block is what one process holds at a time; the least is a window of as many channels as one chunk has.
BLOCK_BYTES = 2**28
MOST_BLOCK_BYTES = 2**30


class UnreadableImagesError(DataError):
    """Chunks that cannot be read; the message names the file and the first of them."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        more = f" (and {len(faults) - 1} more chunks)" if len(faults) > 1 else ""
        super().__init__(f"{faults[0].path}: {faults[0]}{more}; copy the file again")
        self.faults = faults

    def __reduce__(self) -> tuple[type[UnreadableImagesError], tuple[tuple[Fault, ...]]]:
        # Crosses from the process that reads to the one that reports.
        return type(self), (self.faults,)


def read_images(
    year: YearFile, first: int, count: int, out: FloatArray | None = None, *, channels: slice = ALL_CHANNELS
) -> FloatArray:
    """Read images `first` to `first + count` of `year`, as (count, channels, height, width) float32.

    `channels` is a plain range of channels. `out`, of that shape, is filled and returned where given.

    Raises:
        UnreadableImagesError: a chunk cannot be read (checksum, inflate, the disk).
        DataError: the file is gone or no longer the one that was opened; images were not staged.
    """
    require_images(year.path, first, count)
    shape = (count, channels.stop - channels.start, *year.grid)
    values = np.empty(shape, np.float32) if out is None else out
    assert values.shape == shape
    try:
        # One thread: those who read much share the work between processes.
        with ClimateReader(
            [Located(year.path, year.storage)],
            channels=range(channels.start, channels.stop),
            mean=None,
            std=None,
            dtype="float32",
            left=0,
            width=year.width,
            threads=1,
        ) as reader:
            reader.read_window(0, first, count, values)
    except ClimateError as error:
        raise _faults(year, first, count, channels) or unreadable(error, year.path, len(CHANNELS)) from error
    return values


def read_by_hdf5(year: YearFile, first: int, count: int, channels: slice) -> FloatArray:
    """As `read_images`, by HDF5's own library: slower, and independent of the core's reader."""
    require_images(year.path, first, count)
    with open_hdf5(year.path) as file:
        try:
            values: FloatArray = file[IMAGES][first : first + count, channels]
        except DAMAGED as error:
            raise _faults(year, first, count, channels) or DataError(
                f"{year.path}: dataset {IMAGES}, images {first} to {first + count - 1}: {plain(error)}, and readable "
                "when tried again: the disk or the network is at fault; run the same command again"
            ) from error
    return values


def _faults(year: YearFile, first: int, count: int, channels: slice) -> UnreadableImagesError | None:
    """A reader stops at its first fault; HDF5's library is then asked for all damaged chunks of the range."""
    with open_hdf5(year.path) as file:
        faults = tuple(find_faults(year.path, file, first, count, channels))
    return UnreadableImagesError(faults) if faults else None


def ranges(year: YearFile) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of consecutive ranges that cover the year, each of whole windows where memory allows.

    Single images are joined up to BLOCK_BYTES; a window is cut where one chunk's channels of it exceed a GiB.
    """
    window, images = year.storage.window, year.images
    most = max(1, MOST_BLOCK_BYTES // (chunk_channels(year) * year.plane_bytes))
    joined = max(1, BLOCK_BYTES // (window * year.image_bytes)) * window
    for start in range(0, images, joined):
        stop = min(start + joined, images)
        for first in range(start, stop, most):
            yield first, min(most, stop - first)


def channel_blocks(year: YearFile, count: int) -> Iterator[slice]:
    """Yield the ranges of channels in which to read `count` images: bounded in memory, no chunk read twice."""
    least = chunk_channels(year)
    step = max(1, BLOCK_BYTES // (least * count * year.plane_bytes)) * least
    for start in range(0, len(CHANNELS), step):
        yield slice(start, min(start + step, len(CHANNELS)))


def chunk_channels(year: YearFile) -> int:
    """Return how many channels a chunk holds; 1 where the file is one piece."""
    return year.storage.chunk[1] if year.storage.chunk else 1
