"""Where in its file each image of a year lies, and where all the rest: what a sparse copy is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.years import ABSENT, Storage
from hpcai500.data.staging.copying import Extent

Addresses = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class YearExtents:
    """The bytes of a year's file: of each window, images that share chunks, and of all else.

    Attributes:
        storage: of the images.
        file_bytes: size of the file.
    """

    storage: Storage
    file_bytes: int

    @property
    def windows(self) -> int:
        """How many there are; a window is one image where images share nothing."""
        return -(-self.storage.shape[0] // self.storage.window)

    def window(self, number: int) -> tuple[Extent, ...]:
        """The bytes of a window, ascending."""
        starts, stops = self._of_window(number)
        return tuple(_joined(starts, stops))

    @cached_property
    def rest(self) -> tuple[Extent, ...]:
        """All bytes of no window, ascending: headers, boxes, attributes, the table of chunks."""
        starts, stops = self._all
        edges = np.concatenate(([0], stops)), np.concatenate((starts, [self.file_bytes]))
        return tuple(_joined(*edges))

    def window_bytes(self) -> Addresses:
        """The bytes of each window."""
        if self.storage.chunk is None:
            image = 0 if self.storage.offset is None else self._image_bytes
            return np.full(self.windows, image, np.int64)
        written = self.storage.addresses != ABSENT
        sizes = np.where(written, self.storage.sizes, 0).astype(np.int64)
        return np.asarray(sizes.reshape(self.windows, -1).sum(axis=1), np.int64)

    @property
    def _image_bytes(self) -> int:
        return math.prod(self.storage.shape[1:]) * np.dtype(self.storage.dtype).itemsize

    @cached_property
    def _all(self) -> tuple[Addresses, Addresses]:
        """First byte of each stored piece of images, and the byte behind it, ascending."""
        storage = self.storage
        if storage.chunk is None:
            starts = np.zeros(0, np.int64)
            if storage.offset is not None:
                starts = storage.offset + self._image_bytes * np.arange(storage.shape[0], dtype=np.int64)
            return starts, starts + self._image_bytes
        return _ascending(storage.addresses, storage.sizes)

    def _of_window(self, number: int) -> tuple[Addresses, Addresses]:
        storage = self.storage
        if storage.chunk is None:
            starts, stops = self._all
            return starts[number : number + 1], stops[number : number + 1]
        chunks = storage.addresses.size // self.windows
        place = slice(number * chunks, (number + 1) * chunks)
        return _ascending(storage.addresses[place], storage.sizes[place])


def _ascending(addresses: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64]) -> tuple[Addresses, Addresses]:
    written = addresses != ABSENT
    starts, lengths = addresses[written].astype(np.int64), sizes[written].astype(np.int64)
    order = np.argsort(starts, kind="stable")
    return starts[order], (starts + lengths)[order]


def _joined(starts: Addresses, stops: Addresses) -> Iterator[Extent]:
    """(start, bytes) of ranges, ascending; those that touch are one, and empty ones none."""
    kept = stops > starts
    starts, stops = starts[kept], stops[kept]
    if not starts.size:
        return
    breaks = np.flatnonzero(starts[1:] != stops[:-1])
    firsts, lasts = np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [starts.size - 1]))
    for start, stop in zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True):
        yield start, stop - start
