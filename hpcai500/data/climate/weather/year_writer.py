"""Writes a year's HDF5 file in parts that any number of processes fill, in one of three layouts.

HDF5 lets one process at a time write to a file. Uncompressed images therefore go to their addresses without it, into a
file that is laid out before. Others are compressed into files of their own, whose chunks are copied as they are.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import BOXES, CHANNELS, IMAGES
from hpcai500.data.climate.storage import storage_of
from hpcai500.files import allocate

SHIPPED = "shipped"
LAYOUTS = {
    "image": "one uncompressed chunk an image",
    "contiguous": "one uncompressed piece",
    SHIPPED: "as ExtremeWeather ships: gzip, HDF5's default chunks",
}

Image = npt.NDArray[np.float32]
Boxes = npt.NDArray[np.int32]
Draw = Callable[[int], tuple[Image, Boxes]]

# What is written between two steps of a progress bar: one image of the shipped size.
_PART_BYTES = 2**26
# Uncompressed images begin at pages, where they can be mapped, or read past the page cache.
_PAGE_BYTES = 4096
# More than HDF5 needs for its own tables, beyond a sixteenth of what is written.
_METADATA_BYTES = 2**20
# Locks fail on many parallel file systems, and a file that is being written has no other writer.
_UNLOCKED = {"locking": False}
# HDF5's default.
_GZIP_LEVEL = 4
# In the file of a part, before each chunk: its image, channel, row and column, and its size in bytes.
_CHUNK = struct.Struct("<5Q")


def image_bytes(height: int, width: int) -> int:
    """Bytes of one image, uncompressed."""
    return len(CHANNELS) * height * width * 4


@dataclass(frozen=True)
class Part:
    """The `count` images from `first` on, of `image_shape`, of the year whose file is `path`.

    `addresses` are the bytes in it where the images begin. In the layout `shipped` there are none: a part is what
    shares chunks, which have the shape `chunk`.
    """

    path: Path
    first: int
    count: int
    image_shape: tuple[int, ...]
    addresses: tuple[int, ...]
    chunk: tuple[int, ...]

    def write(self, draw: Draw) -> Boxes:
        """Write the images that `draw` gives for their numbers, and return their boxes, shape (count, 15, 5).

        Holds one image in memory, but all of them in the layout `shipped`. Raises OSError when the disk is full.
        """
        numbers = range(self.first, self.first + self.count)
        if not self.addresses:
            return self._write_compressed(draw, numbers)
        found = []
        for number, address in zip(numbers, self.addresses, strict=True):
            image, boxes = draw(number)
            _write_at(self.path, address, image)
            found.append(boxes)
        return np.stack(found)

    def _write_compressed(self, draw: Draw, numbers: range) -> Boxes:
        images = np.empty((self.count, *self.image_shape), np.float32)
        found = []
        for place, number in enumerate(numbers):
            images[place], boxes = draw(number)
            found.append(boxes)
        _compress(self._compressed, images, self.chunk)
        return np.stack(found)

    def join(self) -> None:
        """Copy what was compressed into the year's file; for one process at a time. Raises OSError as `write` does."""
        if not self.addresses:
            _copy_chunks(self._compressed, self.path, self.first)
            self._compressed.unlink()

    @property
    def _compressed(self) -> Path:
        return self.path.with_name(f"{self.path.stem}-{self.first}.part")


def lay_out(path: Path, images: int, height: int, width: int, layout: str) -> list[Part]:
    """Make the file `path` for a year of `images`, without any image yet, and return the parts to write.

    Raises OSError when the file cannot be written.
    """
    shape = (images, len(CHANNELS), height, width)
    size = image_bytes(height, width)
    allocate(path, _METADATA_BYTES)
    if layout != SHIPPED:
        os.truncate(path, images * size)
    alignment = 1 if layout == SHIPPED else _PAGE_BYTES
    with h5py.File(path, "w", **_UNLOCKED, alignment_threshold=alignment, alignment_interval=alignment) as file:
        dataset = file.create_dataset(IMAGES, shape, "<f4", **_options(layout, shape))
        if layout == SHIPPED:
            return _split(path, shape, dataset.chunks[0], [], dataset.chunks)
        storage = storage_of(dataset)
    addresses = [int(address) for address in storage.addresses]
    if storage.offset is not None:
        addresses = [storage.offset + number * size for number in range(images)]
    return _split(path, shape, max(_PART_BYTES // size, 1), addresses, storage.chunk or shape)


def finish(path: Path, boxes: Boxes, layout: str) -> None:
    """Write the `boxes` of all images and wait for the disk. Raises OSError when it is full."""
    _reserve(path, boxes.nbytes)
    with h5py.File(path, "r+", **_UNLOCKED) as file:
        compressed = {"compression": "gzip", "chunks": True} if layout == SHIPPED else {}
        file.create_dataset(BOXES, data=boxes, dtype="<i4", **compressed)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _options(layout: str, shape: tuple[int, ...]) -> dict[str, Any]:
    if layout == SHIPPED:
        return {"compression": "gzip", "compression_opts": _GZIP_LEVEL, "chunks": True}
    # Every image has its address at once, and no zeros are written there first.
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return {"dcpl": properties, "chunks": (1, *shape[1:]) if layout == "image" else None}


def _split(path: Path, shape: tuple[int, ...], most: int, addresses: list[int], chunk: tuple[int, ...]) -> list[Part]:
    images, *image_shape = shape
    return [
        Part(
            path,
            first,
            min(most, images - first),
            tuple(image_shape),
            tuple(addresses[first : first + most]),
            chunk,
        )
        for first in range(0, images, most)
    ]


def _reserve(path: Path, more_bytes: int) -> None:
    """Give `path` what HDF5 is about to add. On a full disk HDF5 can crash; this raises OSError."""
    allocate(path, path.stat().st_size + more_bytes + more_bytes // 16 + _METADATA_BYTES)


def _write_at(path: Path, address: int, image: Image) -> None:
    left = memoryview(image.astype("<f4", copy=False).tobytes())
    with path.open("r+b", buffering=0) as stream:
        stream.seek(address)
        while left:
            left = left[stream.write(left) :]


def _compress(path: Path, images: Image, chunk: tuple[int, ...]) -> None:
    """Write each chunk's place, size and content; those that reach past an edge are filled up with zeros."""
    with path.open("wb") as stream:
        for place in np.ndindex(*(-(-extent // side) for extent, side in zip(images.shape, chunk, strict=True))):
            start = [cell * side for cell, side in zip(place, chunk, strict=True)]
            piece = images[tuple(slice(at, at + side) for at, side in zip(start, chunk, strict=True))]
            whole = np.zeros(chunk, "<f4")
            whole[tuple(slice(extent) for extent in piece.shape)] = piece
            content = zlib.compress(whole.tobytes(), _GZIP_LEVEL)
            stream.write(_CHUNK.pack(*start, len(content)))
            stream.write(content)


def _copy_chunks(source: Path, target: Path, first: int) -> None:
    _reserve(target, source.stat().st_size)
    with source.open("rb") as stream, h5py.File(target, "r+", **_UNLOCKED) as year:
        dataset = year[IMAGES].id
        while head := stream.read(_CHUNK.size):
            image, channel, row, column, size = _CHUNK.unpack(head)
            dataset.write_direct_chunk((first + image, channel, row, column), stream.read(size))
