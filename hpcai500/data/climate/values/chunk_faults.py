"""Which chunks of a file cannot be read, and why: HDF5 itself only says that some filter failed."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py

from hpcai500.data.climate.hdf5_errors import DAMAGED, plain
from hpcai500.data.climate.layout import CHANNELS, IMAGES


@dataclass(frozen=True)
class Fault:
    """A chunk that cannot be read (None: the file is not chunked), and the images and channels that it holds."""

    path: Path
    chunk: tuple[int, ...] | None
    images: range
    channels: range
    reason: str

    def __str__(self) -> str:
        one = len(self.images) == 1
        images = f"image {self.images[0]}" if one else f"images {self.images[0]} to {self.images[-1]}"
        names = [CHANNELS[channel] for channel in self.channels]
        channels = f"channel {names[0]}" if len(names) == 1 else f"channels {names[0]} to {names[-1]}"
        chunk = f", chunk {self.chunk}" if self.chunk else ""
        return f"dataset {IMAGES}, {images}, {channels}{chunk}: {self.reason}"


def find_faults(path: Path, file: h5py.File, first: int, count: int, channels: slice) -> Iterator[Fault]:
    """Yield the chunks that hold `channels` of images `first` to `first + count` and cannot be read.

    A chunk is named by its place in the grid of chunks.
    """
    dataset = file[IMAGES]
    sides = dataset.chunks or (1, *dataset.shape[1:])
    low, high = (first, channels.start, 0, 0), (first + count, channels.stop, *dataset.shape[2:])
    cells = [range(a // side, -(-b // side)) for a, b, side in zip(low, high, sides, strict=True)]
    for cell in itertools.product(*cells):
        begin = tuple(at * side for at, side in zip(cell, sides, strict=True))
        end = tuple(min(at + side, most) for at, side, most in zip(begin, sides, dataset.shape, strict=True))
        try:
            dataset[tuple(map(slice, begin, end))]
        except DAMAGED as error:
            reason = _reason(dataset, begin, error) if dataset.chunks else plain(error)
            images, of_channels = (range(a, b) for a, b in list(zip(begin, end, strict=True))[:2])
            yield Fault(path, cell if dataset.chunks else None, images, of_channels, reason)


def _reason(dataset: h5py.Dataset, begin: tuple[int, ...], error: BaseException) -> str:
    if "filter" not in str(error):
        return f"unreadable: {plain(error)}"
    try:
        _, stored = dataset.id.read_direct_chunk(begin)
        if dataset.compression == "gzip":
            zlib.decompress(stored[: -4 if dataset.fletcher32 else None])
    except zlib.error as inflating:
        # "Error -3 while decompressing data: incorrect data check"
        return f"does not inflate: {str(inflating).rpartition(': ')[2]}"
    except DAMAGED as reading:
        return f"unreadable: {plain(reading)}"
    return "its checksum (fletcher32) does not match" if dataset.fletcher32 else plain(error)
