"""The file that a year is repacked into: laid out before it is filled, so that no state of it needs HDF5 to mend.

Uncompressed chunks have their addresses from the start, and images are written there without HDF5. Compressed ones have
sizes that nobody knows before: they wait in files beside it, and are put in when all are there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.hdf5_errors import leads_nowhere, open_hdf5
from hpcai500.data.climate.layout import BOXES, IMAGES
from hpcai500.data.climate.storage import Storage, storage_of
from hpcai500.data.climate.year_file import YearFile
from hpcai500.files import allocate

Filter = Literal["none", "lzf"]
FILTERS: dict[Filter, tuple[str, ...]] = {"none": (), "lzf": ("shuffle", "lzf")}
FloatArray = npt.NDArray[np.float32]

# Images begin at pages, where they can be mapped, and read past the page cache.
_PAGE_BYTES = 4096
# What HDF5 writes beside values: a table of chunks above all. It is claimed first, because a file of HDF5 that cannot
# be written to its end can neither be closed.
_INDEX_BYTES = 2**20


def lay_out(path: Path, year: YearFile, boxes: npt.NDArray[np.int32], kind: Filter) -> None:
    """Write the file of `year` at `path`, with `boxes` and all that its own file holds, but for the values of images.

    Raises OSError when the disk is full.
    """
    chunk = image_chunk(year)
    aligned = {"alignment_threshold": _PAGE_BYTES, "alignment_interval": _PAGE_BYTES}
    allocate(path, boxes.nbytes + _INDEX_BYTES)
    with open_hdf5(year.path) as source, _disk_errors(), h5py.File(path, "w", **aligned) as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(chunk)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        if kind == "none":
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        else:
            properties.set_shuffle()
            properties.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((year.images, *chunk[1:]))
        h5py.h5d.create(file.id, IMAGES.encode(), h5py.h5t.IEEE_F32LE, space, properties)
        file.create_dataset(BOXES, data=boxes, dtype="<i4")
        for name in source:
            if name in (IMAGES, BOXES):
                continue
            # A link that leads nowhere has nothing to copy but itself.
            if leads_nowhere(source, name):
                file[name] = source.get(name, getlink=True)
            else:
                source.copy(name, file)
        for old, new in ((source, file), *((source[name], file[name]) for name in (IMAGES, BOXES))):
            _copy_attributes(old, new)
    _sync(path)


def image_chunk(year: YearFile) -> tuple[int, ...]:
    """Return the shape of a chunk that is one image of `year`."""
    return (1, *year.storage.shape[1:])


def storage_at(path: Path) -> Storage:
    """Return where the images lie in the file at `path`. Raises DataError when it is damaged."""
    with open_hdf5(path) as file:
        return storage_of(file[IMAGES])


def boxes_at(path: Path) -> npt.NDArray[np.int32]:
    """Return the boxes in the file at `path`. Raises DataError when it is damaged."""
    with open_hdf5(path) as file:
        rows: npt.NDArray[np.int32] = file[BOXES][()]
        return rows


def write_planes(path: Path, block: FloatArray, addresses: Iterable[int]) -> None:
    """Write each element of `block`, little-endian, at its byte address in the file at `path`, and wait for the disk.

    Raises OSError when the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for planes, address in zip(block, addresses, strict=True):
            left = np.ascontiguousarray(planes, "<f4").data.cast("B")
            while left:
                count = os.pwrite(descriptor, left, address)
                left, address = left[count:], address + count  # noqa: PLW2901 - a write may be cut short
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def compress(image: FloatArray) -> tuple[bytes, int]:
    """Return the chunk of one image (16, height, width), shuffled and by LZF, and its mask of filters left out."""
    # h5py's own filter, in a file that never leaves memory: the bytes are those that HDF5 would write.
    with h5py.File("chunk", "w", driver="core", backing_store=False) as memory:
        chunk = (1, *image.shape)
        dataset = memory.create_dataset("chunk", data=image[None], chunks=chunk, shuffle=True, compression="lzf")
        memory.flush()
        mask, content = dataset.id.read_direct_chunk((0, 0, 0, 0))
        return bytes(content), int(mask)


def put_chunks(path: Path, chunks: Iterable[tuple[int, bytes, int]], stored_bytes: int) -> None:
    """Put compressed `chunks` (image, content, mask), of `stored_bytes` in all, into the file at `path`, and sync it.

    Raises OSError when the disk is full; the file is then gone.
    """
    allocate(path, path.stat().st_size + stored_bytes + _INDEX_BYTES)
    with _disk_errors(), h5py.File(path, "r+") as file:
        dataset = file[IMAGES]
        for image, content, mask in chunks:
            dataset.id.write_direct_chunk((image, 0, 0, 0), content, filter_mask=mask)
    _sync(path)


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise the system's error where HDF5 wraps it in a text of its own."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _copy_attributes(old: Any, new: Any) -> None:
    for name in old.attrs:
        kind = old.attrs.get_id(name).dtype
        # A reference is an address in the old file (dimension scales have them).
        if h5py.check_ref_dtype(kind) is None and h5py.check_vlen_dtype(kind) is None and kind.names is None:
            new.attrs.create(name, old.attrs[name], dtype=kind)
        elif h5py.check_string_dtype(kind) is not None:
            new.attrs[name] = old.attrs[name]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
