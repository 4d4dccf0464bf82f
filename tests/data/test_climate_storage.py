"""Where HDF5 says that a dataset lies: addresses in the file itself, and what cannot be addressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest
from climate_files import LAYOUTS, SHAPE, fields, write_year

from hpcai500.data.climate.years import ABSENT, Storage, storage_of
from hpcai500.errors import DataError


def described(path: Path) -> Storage:
    with h5py.File(path) as file:
        return storage_of(file["images"])


@pytest.mark.parametrize("userblock", [0, 512, 4096])
def test_addresses_count_from_the_beginning_of_the_file(tmp_path: Path, userblock: int) -> None:
    images = fields()
    whole = write_year(tmp_path / "whole.h5", images, userblock=userblock)
    storage = described(whole)
    data = whole.read_bytes()
    assert storage.offset is not None
    assert data[storage.offset : storage.offset + images.nbytes] == images.tobytes()
    assert (storage.kind, storage.stored_bytes, storage.addresses.size) == ("contiguous", images.nbytes, 0)

    chunked = write_year(tmp_path / "chunked.h5", images, userblock=userblock, chunks=(1, 1, 24, 36))
    storage = described(chunked)
    data = chunked.read_bytes()
    for plane, address, size in zip(images.reshape(-1, 24, 36), storage.addresses, storage.sizes, strict=True):
        assert data[int(address) : int(address + size)] == plane.tobytes()
    assert (storage.kind, storage.offset, storage.stored_bytes) == ("chunked", None, images.nbytes)


def test_filters_windows_and_pieces_are_told(tmp_path: Path) -> None:
    told = {}
    for name in ("contiguous", "image-chunks", "shipped", "partial", "shuffle-lzf-fletcher"):
        storage = described(write_year(tmp_path / f"{name}.h5", fields(), **LAYOUTS[name]))
        assert (storage.shape, storage.dtype) == (SHAPE, "<f4")
        told[name] = storage.filters, storage.window, storage.chunks_per_image
    assert told == {
        "contiguous": ((), 1, 1),
        "image-chunks": ((), 1, 1),
        "shipped": (("deflate",), 4, 5 * 4 * 4),
        "partial": (("deflate",), 3, 3 * 4 * 4),
        "shuffle-lzf-fletcher": (("shuffle", "lzf", "fletcher32"), 3, 5 * 5 * 1),
    }


def test_what_was_never_written_has_no_address(tmp_path: Path) -> None:
    images = fields()
    images[2:4] = 0
    storage = described(write_year(tmp_path / "year.h5", images, keep_absent=True, chunks=(2, 5, 24, 36)))
    assert (storage.addresses == ABSENT).tolist() == [False, True, False, False]
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_dataset("images", SHAPE, "<f4")
    assert described(tmp_path / "empty.h5").offset is None


@pytest.mark.parametrize("layout", ["contiguous", "shipped"])
def test_another_fill_value_than_zero_matters_only_where_it_is_seen(tmp_path: Path, layout: str) -> None:
    with h5py.File(tmp_path / "year.h5", "w") as file:
        dataset = file.create_dataset("images", SHAPE, "<f4", fillvalue=-999.0, **LAYOUTS[layout])
        # HDF5 may write the fill value itself; chunks wait until they are needed.
        if layout == "shipped":
            with pytest.raises(
                DataError, match=r"year\.h5: dataset images: parts of it were never written and stand for -999"
            ):
                storage_of(dataset)
        dataset[:] = fields()
        assert storage_of(dataset).filters == described_filters(layout)


def described_filters(layout: str) -> tuple[str, ...]:
    return ("deflate",) if "compression" in LAYOUTS[layout] else ()


def compact(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((2, 1, 3, 4))
    h5py.h5d.create(file.id, b"images", h5py.h5t.IEEE_F32LE, space, properties)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (compact, "compact, external or virtual"),
        (
            lambda file: file.create_dataset("images", (2, 1, 3, 4), "<f4", external=[("raw", 0, 96)]),
            "compact, external",
        ),
        (
            lambda file: file.create_dataset("images", (2, 1, 3, 4), "<f4", chunks=True, scaleoffset=2),
            "the HDF5 filter 6",
        ),
    ],
)
def test_what_has_no_addresses_or_an_unknown_filter_is_refused(tmp_path: Path, create: Any, message: str) -> None:
    with h5py.File(tmp_path / "year.h5", "w") as file:
        create(file)
        with pytest.raises(DataError, match=message) as caught:
            storage_of(file["images"])
    assert str(caught.value).startswith(f"{tmp_path / 'year.h5'}: dataset images: ")
    assert "h5repack" in str(caught.value)
