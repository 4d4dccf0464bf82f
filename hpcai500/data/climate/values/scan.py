"""One pass over the values of images: digest and statistics of each, whatever the layout they are read from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcai500.data.climate.values.chunk_faults import Fault
from hpcai500.data.climate.values.moments import ChannelStatistics, FloatArray, joined, of_planes
from hpcai500.data.climate.values.raw_images import (
    UnreadableImagesError,
    channel_blocks,
    ranges,
    read_by_hdf5,
    read_images,
)
from hpcai500.data.climate.year_file import YearFile
from hpcai500.data.worker_pool import map_in_order
from hpcai500.errors import UsageError


@dataclass(frozen=True)
class ImageScan:
    """An image's SHA-256 over its values (little-endian float32, channel by channel), and its statistics."""

    digest: bytes
    statistics: ChannelStatistics


@dataclass(frozen=True)
class RangeScan:
    """Consecutive images of one year. `images` is empty when there are `faults`: chunks that cannot be read."""

    year: int
    first: int
    count: int
    images: tuple[ImageScan, ...]
    faults: tuple[Fault, ...] = ()


class Accumulator:
    """Scans of `count` images, whose channels come in blocks, in order."""

    def __init__(self, count: int) -> None:
        self._digests = [hashlib.sha256() for _ in range(count)]
        self._blocks: list[list[ChannelStatistics]] = [[] for _ in range(count)]

    def add(self, block: FloatArray) -> None:
        """Add the next channels of all images: (count, channels, height, width), C-contiguous."""
        for digest, blocks, planes in zip(self._digests, self._blocks, block, strict=True):
            digest.update(np.ascontiguousarray(planes, "<f4").data)
            blocks.append(of_planes(planes))

    def scans(self) -> tuple[ImageScan, ...]:
        """Return the scans, once all 16 channels were added."""
        return tuple(
            ImageScan(digest.digest(), joined(blocks))
            for digest, blocks in zip(self._digests, self._blocks, strict=True)
        )


def digest_images(year: YearFile, first: int, count: int) -> tuple[bytes, ...]:
    """Return the digests of images `first` to `first + count` of `year`, as HDF5's own library reads them.

    What was written is judged by another reader than the one that read its source. Raises UnreadableImagesError.
    """
    digests = [hashlib.sha256() for _ in range(count)]
    for channels in channel_blocks(year, count):
        for digest, planes in zip(digests, read_by_hdf5(year, first, count, channels), strict=True):
            digest.update(np.ascontiguousarray(planes, "<f4").data)
    return tuple(digest.digest() for digest in digests)


def processes(workers: int | None) -> int:
    """Return how many processes share the work: `workers`, or one a core of this job. Raises UsageError below one."""
    if workers is not None and workers < 1:
        raise UsageError(f"cannot work with {workers} processes: --workers must be at least 1")
    return workers if workers is not None else len(os.sched_getaffinity(0))


def scan_years(years: Sequence[YearFile], workers: int) -> Iterator[RangeScan]:
    """Scan all images of `years`, in order, in `workers` processes; each holds at most a block (`raw_images`)."""
    tasks = [(year, first, count) for year in years for first, count in ranges(year)]
    yield from map_in_order(_scan_range, tasks, min(workers, max(len(tasks), 1)), what="reads images")


def _scan_range(task: tuple[YearFile, int, int]) -> RangeScan:
    year, first, count = task
    scans, faults = Accumulator(count), list[Fault]()
    for channels in channel_blocks(year, count):
        try:
            block = read_images(year, first, count, channels=channels)
        except UnreadableImagesError as error:
            faults += error.faults
            continue
        if not faults:
            scans.add(block)
    return RangeScan(year.year, first, count, () if faults else scans.scans(), tuple(faults))
