"""How a dataset lies in its HDF5 file: the addresses by which it is read without HDF5 and its global lock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from hpcai500.errors import DataError

# HDF5's registered numbers of the filters that the reader undoes (H5Z_FILTER_*; LZF is h5py's own).
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
ABSENT = 2**64 - 1


@dataclass(frozen=True, eq=False)
class Storage:
    """Where the values of a dataset are.

    Attributes:
        shape: extent of the dataset.
        dtype: type of its values, as NumPy names it.
        kind: one piece, or chunks of equal shape.
        offset: address of the first value; None for chunks, and for a dataset that was never written.
        chunk: shape of a chunk; None for one piece.
        filters: what was done to a chunk, in the order of writing: shuffle, deflate, lzf, fletcher32.
        addresses, sizes, masks: of each chunk in C order of the grid of chunks: byte address in the file (ABSENT for
            one that was never written), stored bytes, and the bits of filters that were left out.
        stored_bytes: what all values take in the file.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: Literal["contiguous", "chunked"]
    offset: int | None
    chunk: tuple[int, ...] | None
    filters: tuple[str, ...]
    addresses: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    masks: npt.NDArray[np.uint32]
    stored_bytes: int

    @property
    def chunks_per_image(self) -> int:
        """Pieces of the file that one image (first dimension) is spread over."""
        if self.chunk is None:
            return 1
        cells = [-(-extent // side) for extent, side in zip(self.shape[1:], self.chunk[1:], strict=True)]
        return int(np.prod(cells))

    @property
    def window(self) -> int:
        """Images that share chunks, and are therefore best read together."""
        return 1 if self.chunk is None else self.chunk[0]


class Located:
    """A Storage and the path of its file, as the core's reader wants them."""

    def __init__(self, path: Path, storage: Storage) -> None:
        self.path = str(path)
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def storage_of(dataset: h5py.Dataset) -> Storage:
    """Describe where `dataset` lies.

    Raises:
        DataError: it is stored in a way that has no addresses (compact, external, virtual), by an unknown filter, or
            parts of it that were never written stand for another value than 0.
    """
    properties = dataset.id.get_create_plist()
    name = f"{dataset.file.filename}: dataset {dataset.name.lstrip('/')}"
    layout = properties.get_layout()
    empty = np.zeros(0, np.uint64)
    common: dict[str, Any] = {"shape": dataset.shape, "dtype": dataset.dtype.str, "filters": _filters(properties, name)}
    if layout == h5py.h5d.CONTIGUOUS and properties.get_external_count() == 0:
        offset = dataset.id.get_offset()
        if offset is None:
            _require_zero_fill(dataset, name)
        return Storage(
            **common,
            kind="contiguous",
            offset=offset,
            chunk=None,
            addresses=empty,
            sizes=empty,
            masks=empty.astype(np.uint32),
            stored_bytes=dataset.id.get_storage_size(),
        )
    if layout != h5py.h5d.CHUNKED:
        raise DataError(
            f"{name}: stored as a compact, external or virtual dataset, which has no addresses to read from; "
            "rewrite it with h5repack, contiguous or chunked"
        )
    addresses, sizes, masks = _chunk_table(dataset)
    if (addresses == ABSENT).any():
        _require_zero_fill(dataset, name)
    return Storage(
        **common,
        kind="chunked",
        offset=None,
        chunk=dataset.chunks,
        addresses=addresses,
        sizes=sizes,
        masks=masks,
        stored_bytes=int(sizes.sum()),
    )


def may_be_of(storage: Storage, dataset: h5py.Dataset) -> bool:
    """Whether `storage`, found out earlier, agrees with all that `dataset` says of itself without a walk of its chunks.

    Raises DataError for an unknown filter.
    """
    name = f"{dataset.file.filename}: dataset {dataset.name.lstrip('/')}"
    filters = _filters(dataset.id.get_create_plist(), name)
    expected = (dataset.shape, dataset.dtype.str, dataset.chunks, filters)
    if (storage.shape, storage.dtype, storage.chunk, storage.filters) != expected:
        return False
    chunks = math.prod(_grid(dataset)) if dataset.chunks else 0
    return all(array.shape == (chunks,) for array in (storage.addresses, storage.sizes, storage.masks))


def _grid(dataset: h5py.Dataset) -> tuple[int, ...]:
    return tuple(-(-extent // side) for extent, side in zip(dataset.shape, dataset.chunks, strict=True))


def _require_zero_fill(dataset: h5py.Dataset, name: str) -> None:
    if dataset.fillvalue != 0:
        raise DataError(
            f"{name}: parts of it were never written and stand for {dataset.fillvalue}, but hpcai500 reads 0 there; "
            "write them, or copy the values into a new file"
        )


def _filters(properties: Any, name: str) -> tuple[str, ...]:
    numbers = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    unknown = [number for number in numbers if number not in _FILTERS]
    if unknown:
        raise DataError(
            f"{name}: written with the HDF5 filter {unknown[0]}, which hpcai500 does not read: it knows "
            f"{', '.join(_FILTERS.values())}; rewrite the file with h5repack -f NONE"
        )
    return tuple(_FILTERS[number] for number in numbers)


def _chunk_table(
    dataset: h5py.Dataset,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    grid = _grid(dataset)
    addresses = np.full(grid, ABSENT, np.uint64)
    sizes = np.zeros(grid, np.uint64)
    masks = np.zeros(grid, np.uint32)

    found: list[tuple[int, ...]] = []
    # One walk over the index: get_chunk_info(i) would begin anew for each of 131,072 chunks.
    dataset.id.chunk_iter(lambda c: found.append((*c.chunk_offset, c.byte_offset, c.size, c.filter_mask)))
    if found:
        table = np.array(found, np.uint64)
        cells = tuple((table[:, : len(grid)] // np.array(dataset.chunks, np.uint64)).T.astype(np.intp))
        addresses[cells], sizes[cells], masks[cells] = table[:, -3], table[:, -2], table[:, -1]
    return addresses.ravel(), sizes.ravel(), masks.ravel()
