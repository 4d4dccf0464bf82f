"""Small HDF5 files of climate images in every layout that a year may have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcai500.data.climate.years import Storage, storage_of

SHAPE = (7, 5, 24, 36)

# Name of a layout, and what h5py is told to get it.
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "image-chunks": {"chunks": (1, 5, 24, 36)},
    "channel-chunks": {"chunks": (1, 1, 24, 36)},
    "shipped": {"chunks": (4, 1, 6, 9), "compression": "gzip", "compression_opts": 4},
    "shipped-raw": {"chunks": (4, 1, 6, 9)},
    "partial": {"chunks": (3, 2, 7, 11), "compression": "gzip"},
    "partial-raw": {"chunks": (3, 2, 7, 11)},
    "larger-than-data": {"chunks": (16, 8, 32, 64), "maxshape": (None,) * 4, "compression": "gzip"},
    "shuffle": {"chunks": (2, 2, 24, 36), "shuffle": True},
    "shuffle-gzip": {"chunks": (1, 5, 24, 36), "shuffle": True, "compression": "gzip"},
    "shuffle-gzip-fletcher": {"chunks": (2, 3, 8, 36), "shuffle": True, "compression": "gzip", "fletcher32": True},
    "fletcher": {"chunks": (2, 3, 8, 35), "fletcher32": True},
    "lzf": {"chunks": (1, 1, 24, 36), "compression": "lzf"},
    "shuffle-lzf": {"chunks": (3, 1, 24, 20), "shuffle": True, "compression": "lzf"},
    "shuffle-lzf-fletcher": {"chunks": (3, 1, 5, 36), "shuffle": True, "compression": "lzf", "fletcher32": True},
}


@dataclass(frozen=True)
class Year:
    """A Storage and its path, as the reader wants them."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int | None
    chunk: tuple[int, ...] | None
    filters: tuple[str, ...]
    addresses: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    masks: NDArray[np.uint32]


def fields(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> NDArray[np.float32]:
    """Smooth fields with a little noise: they compress, and no two values are alike. Channels differ in scale."""
    random = np.random.default_rng(seed)
    images, channels, rows, columns = shape
    y, x = np.mgrid[0:rows, 0:columns]
    result = np.empty(shape, np.float32)
    for image in range(images):
        for channel in range(channels):
            wave = np.sin(2 * np.pi * (x / columns + image / 7)) * np.cos(y / rows + channel)
            result[image, channel] = 10.0 ** (channel % 6 - 3) * (
                wave + 3 + 1e-3 * random.standard_normal((rows, columns))
            )
    return result


def write_year(
    path: Path, images: NDArray[np.float32], *, userblock: int = 0, keep_absent: bool = False, **layout: Any
) -> Path:
    """Write `images` as h5py does; with keep_absent, chunks of zeros alone are never written."""
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.attrs["shifts the data"] = np.arange(37)
        dataset = file.create_dataset("images", images.shape, "<f4", **layout)
        if not keep_absent:
            dataset[:] = images
        else:
            for corner in dataset.iter_chunks():
                if images[corner].any():
                    dataset[corner] = images[corner]
    return path


def year_of(path: Path, storage: Storage | None = None) -> Year:
    """What the reader needs to know of a file."""
    if storage is None:
        with h5py.File(path) as file:
            storage = storage_of(file["images"])
    known = {name: getattr(storage, name) for name in Year.__dataclass_fields__ if name != "path"}
    return Year(path=str(path), **known)


def write_chunks(path: Path, images: NDArray[np.float32], chunk: tuple[int, ...], filters: Any, encode: Any) -> Path:
    """Write chunks that HDF5 does not encode itself: `encode(raw bytes, cell)` gives the stored bytes and the mask.

    `filters` adds filters to an h5py property list.
    """
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(chunk)
        filters(properties)
        space = h5py.h5s.create_simple(images.shape)
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"images", h5py.h5t.IEEE_F32LE, space, properties))
        padded = np.zeros([-(-n // side) * side for n, side in zip(images.shape, chunk, strict=True)], "<f4")
        padded[tuple(slice(n) for n in images.shape)] = images
        for cell in np.ndindex(*(n // side for n, side in zip(padded.shape, chunk, strict=True))):
            corner = tuple(i * side for i, side in zip(cell, chunk, strict=True))
            raw = padded[tuple(slice(at, at + side) for at, side in zip(corner, chunk, strict=True))].tobytes()
            data, mask = encode(raw, cell)
            dataset.id.write_direct_chunk(corner, data, mask)
    return path
