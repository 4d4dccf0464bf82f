"""The file of a year, written by many processes: laid out first, then filled with images.

HDF5 lets one process at a time write to a file. Uncompressed images have their addresses from the start, and are
written there without HDF5. Compressed chunks have no address before their sizes are known: processes write them into
spools, files beside it, and one process then copies the chunks into the file.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.years import IMAGES, storage_of
from hpcai500.files import allocate

# One uncompressed chunk an image; one uncompressed piece; HDF5's default chunks, by gzip; one chunk an image, by LZF.
Layout = Literal["image", "contiguous", "shipped", "lzf"]
Chunk = tuple[Sequence[int], int, bytes]

# HDF5's default.
GZIP_LEVEL = 4
# Uncompressed images begin at pages, so that they can be mapped, or read past the page cache.
_PAGE_BYTES = 4096
# More than HDF5 needs for its own tables, beyond a sixteenth of what is written.
_METADATA_BYTES = 2**20
# Locks fail on many parallel file systems, and no other process writes this file.
_UNLOCKED = {"locking": False}
# In a spool, before each chunk: where it begins (image, channel, row, column), its mask of filters, its size in bytes.
_CHUNK_HEAD = struct.Struct("<6Q")


@contextmanager
def new_file(
    path: Path, shape: tuple[int, ...], layout: Layout, more_bytes: int = 0, fill: float | None = None
) -> Iterator[h5py.File]:
    """Make the file at `path` with images of `shape`, none written yet, and yield it to receive `more_bytes`.

    `fill` is the fill value of the images that HDF5 records; None for HDF5's own.

    Raises OSError when the disk is full; the file is then missing or unusable.
    """
    # HDF5 cannot even close a file when the disk fills up before its end.
    allocate(path, _METADATA_BYTES + more_bytes)
    if layout in ("image", "contiguous"):
        os.truncate(path, 4 * int(np.prod(shape)))
    page = 1 if layout == "shipped" else _PAGE_BYTES
    with (
        _system_errors(),
        h5py.File(path, "w", **_UNLOCKED, alignment_threshold=page, alignment_interval=page) as file,
    ):
        file.create_dataset(IMAGES, shape, "<f4", fillvalue=fill, **_options(layout, shape))
        yield file


def _options(layout: Layout, shape: tuple[int, ...]) -> dict[str, Any]:
    if layout == "shipped":
        return {"compression": "gzip", "compression_opts": GZIP_LEVEL, "chunks": True}
    if layout == "lzf":
        return {"compression": "lzf", "shuffle": True, "chunks": (1, *shape[1:])}
    # Allocate every image at once, without writing zeros first.
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return {"dcpl": properties, "chunks": (1, *shape[1:]) if layout == "image" else None}


def addresses_of(file: h5py.File) -> list[int]:
    """The byte at which each image of an uncompressed `file` begins."""
    storage = storage_of(file[IMAGES])
    if storage.offset is None:
        return [int(address) for address in storage.addresses]
    images, *image = storage.shape
    return [storage.offset + number * 4 * int(np.prod(image)) for number in range(images)]


def write_at(path: Path, values: Iterable[npt.NDArray[np.float32]], addresses: Iterable[int]) -> None:
    """Write each of `values`, little-endian, at its byte address. Raises OSError when the disk is full."""
    with path.open("r+b", buffering=0) as stream:
        for one, address in zip(values, addresses, strict=True):
            left = np.ascontiguousarray(one, "<f4").data.cast("B")
            stream.seek(address)
            while left:
                left = left[stream.write(left) :]


def write_spool(spool: Path, chunks: Iterable[Chunk]) -> None:
    """Write compressed `chunks`: where each begins, its mask of filters that were left out, and its content."""
    with spool.open("wb") as stream:
        for place, mask, content in chunks:
            stream.write(_CHUNK_HEAD.pack(*place, mask, len(content)))
            stream.write(content)


def put_spool(spool: Path, path: Path) -> None:
    """Move the chunks of `spool` into the file at `path`. Raises OSError when the disk is full."""
    with opened_again(path, spool.stat().st_size) as file, spool.open("rb") as stream:
        dataset = file[IMAGES].id
        while head := stream.read(_CHUNK_HEAD.size):
            *place, mask, size = _CHUNK_HEAD.unpack(head)
            dataset.write_direct_chunk(tuple(place), stream.read(size), filter_mask=mask)
    spool.unlink()


@contextmanager
def opened_again(path: Path, more_bytes: int) -> Iterator[h5py.File]:
    """The file at `path`, to receive `more_bytes`, which are allocated first: HDF5 can crash on a full disk.

    Raises OSError when the disk is full.
    """
    allocate(path, path.stat().st_size + more_bytes + more_bytes // 16 + _METADATA_BYTES)
    with _system_errors(), h5py.File(path, "r+", **_UNLOCKED) as file:
        yield file


def sync(path: Path) -> None:
    """Wait until what was written to `path` is on the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@contextmanager
def _system_errors() -> Iterator[None]:
    """Raise the system's own error where HDF5 wraps it."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
