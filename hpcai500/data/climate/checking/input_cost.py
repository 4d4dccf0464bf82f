"""What the layout of a file costs when a run reads it, measured on this file system, and what another would cost."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcai500.data.climate.layout import CHANNELS
from hpcai500.data.climate.storage import Storage
from hpcai500.data.climate.values.raw_images import MOST_BLOCK_BYTES, chunk_channels, read_images
from hpcai500.data.climate.year_file import YearFile

_SAMPLES = 3
_PLAIN_BYTES = 2**28
_PIECE_BYTES = 2**23
_WORTH = 1.5


@dataclass(frozen=True)
class InputCost:
    """Rates of one process that reads images of one layout from `file`, cold where the system drops its cache.

    Attributes:
        single_images_per_second: images at random, each read for itself.
        window_images_per_second: all images that share chunks, read together, which is how runs read them.
        bytes_per_second: plain reads of the same file.
        repacked_images_per_second: images of one uncompressed chunk each, at that rate of plain reads.
        repacked: the images are uncompressed pieces of the file already.
    """

    file: str
    years: tuple[int, ...]
    chunks_per_image: int
    window: int
    single_images_per_second: float
    window_images_per_second: float
    bytes_per_second: float
    repacked_images_per_second: float
    repacked: bool

    @property
    def gain(self) -> float:
        """How many times as fast repacked images would be read."""
        return 1.0 if self.repacked else self.repacked_images_per_second / self.window_images_per_second

    @property
    def repack_pays(self) -> bool:
        """Whether the gain is beyond the noise of a shared file system."""
        return self.gain > _WORTH


def layouts(years: Sequence[YearFile]) -> list[tuple[YearFile, ...]]:
    """Return `years` grouped by how their images are stored."""
    groups: dict[tuple[object, ...], list[YearFile]] = {}
    for year in years:
        groups.setdefault((year.storage.kind, year.storage.chunk, year.storage.filters), []).append(year)
    return [tuple(group) for group in groups.values()]


def measure_cost(years: Sequence[YearFile]) -> InputCost:
    """Time reads from the first of `years`, which all have the same layout: seconds, also for the shipped one.

    Where channels lie in chunks of their own, the first are read and stand for all. Raises DataError for chunks that
    cannot be read.
    """
    year = years[0]
    channels = slice(0, chunk_channels(year))
    share = (channels.stop - channels.start) / len(CHANNELS)
    bytes_per_second = plain_read_rate(year.path)
    at_random = np.random.default_rng(0).permutation(year.images)[:_SAMPLES].tolist()
    single_seconds = _seconds(
        year.path, lambda: [read_images(year, image, 1, channels=channels) for image in at_random]
    )
    most = max(1, MOST_BLOCK_BYTES // (channels.stop * year.plane_bytes))
    count = min(year.storage.window, year.images, most)
    windows = 1 if count > 1 else min(_SAMPLES, year.images)
    window_seconds = _seconds(
        year.path, lambda: [read_images(year, place * count, count, channels=channels) for place in range(windows)]
    )
    return InputCost(
        file=year.path.name,
        years=tuple(each.year for each in years),
        chunks_per_image=year.storage.chunks_per_image,
        window=year.storage.window,
        single_images_per_second=share * len(at_random) / single_seconds,
        window_images_per_second=share * count * windows / window_seconds,
        bytes_per_second=bytes_per_second,
        repacked_images_per_second=bytes_per_second / year.image_bytes,
        repacked=year.storage.chunks_per_image == year.storage.window == 1 and not year.storage.filters,
    )


def plain_read_rate(path: Path) -> float:
    """Return the bytes per second of plain reads of the first 256 MiB of the file at `path`."""
    piece = bytearray(_PIECE_BYTES)
    read = 0

    def read_pieces() -> None:
        nonlocal read
        with path.open("rb", buffering=0) as stream:
            while read < _PLAIN_BYTES and (count := stream.readinto(piece)):
                read += count

    seconds = _seconds(path, read_pieces)
    return read / seconds


def describe(storage: Storage) -> str:
    """Return how images are stored, in a phrase: "chunks of 46 x 1 x 48 x 72, deflate"."""
    shape = f"chunks of {' x '.join(map(str, storage.chunk))}" if storage.chunk else "one piece"
    return f"{shape}, {' + '.join(storage.filters) or 'uncompressed'}"


def compression_ratio(storage: Storage) -> float | None:
    """Return bytes of the values / bytes stored; None for a file without any."""
    values = math.prod(storage.shape) * np.dtype(storage.dtype).itemsize
    return values / storage.stored_bytes if storage.stored_bytes else None


def _seconds(path: Path, work: Callable[[], object]) -> float:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    start_seconds = time.perf_counter()
    work()
    return max(time.perf_counter() - start_seconds, 1e-9)
