"""Climate files that are cut, damaged or hostile: an error with its place, never a crash and never other values."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from builders.data import LAYOUTS_OF_IMAGES, SHAPE, StoredYear, fields, stored_year, write_chunks, write_images
from climate_twin import encode, fletcher32

from hpcai500 import _core

IMAGES, CHANNELS, ROWS, COLUMNS = SHAPE


def read_all(year: StoredYear, threads: int = 2) -> np.ndarray[Any, Any]:
    settings: dict[str, Any] = {"channels": range(year.shape[1]), "mean": None, "std": None, "dtype": "float32"}
    with _core.ClimateReader([year], left=0, width=year.shape[3], threads=threads, **settings) as reader:
        out = np.empty(year.shape, np.float32)
        reader.read(np.zeros(len(out), int), np.arange(len(out)), out)
    return out


def failure(year: StoredYear, threads: int = 2) -> _core.ClimateError:
    with pytest.raises(_core.ClimateError) as caught:
        read_all(year, threads)
    return caught.value


@pytest.mark.parametrize("layout", ["contiguous", "image-chunks", "shipped", "shuffle-gzip", "fletcher"])
def test_a_file_cut_anywhere_is_truncated_or_whole(tmp_path: Path, layout: str) -> None:
    path = write_images(tmp_path / "year.h5", fields(), **LAYOUTS_OF_IMAGES[layout])
    year, data = stored_year(path), path.read_bytes()
    end = int((year.addresses + year.sizes).max(initial=0)) if year.offset is None else year.offset + fields().nbytes
    cuts = random.Random(4).sample(range(len(data)), 60)
    for cut in [*cuts, 0, 1, end - 1, end, end + 1]:
        path.write_bytes(data[:cut])
        if cut >= end:
            np.testing.assert_array_equal(read_all(year), fields())
        else:
            error = failure(year)
            assert error.kind == "truncated"
            assert f"the file ends at byte {cut}" in error.reason


def test_a_file_that_is_cut_while_it_is_open_is_truncated(tmp_path: Path) -> None:
    path = write_images(tmp_path / "year.h5", fields())
    year = stored_year(path)
    settings: dict[str, Any] = {"channels": range(CHANNELS), "mean": None, "std": None, "dtype": "float32"}
    with _core.ClimateReader([year], left=0, width=COLUMNS, threads=2, **settings) as reader:
        out = np.empty((1, *SHAPE[1:]), np.float32)
        reader.read(np.zeros(1, int), np.array([6]), out)
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(_core.ClimateError) as caught:
            reader.read(np.zeros(1, int), np.array([6]), out)
        assert (caught.value.kind, caught.value.image, caught.value.channel) == ("truncated", 6, 0)
        reader.read(np.zeros(1, int), np.array([0]), out)
        np.testing.assert_array_equal(out[0], fields()[0])


def damage(year: StoredYear, chunk: int, at: float = 0.5, by: bytes = b"\xff" * 6) -> None:
    path = Path(year.path)
    data = bytearray(path.read_bytes())
    start = int(year.addresses[chunk]) + int(int(year.sizes[chunk]) * at)
    data[start : start + len(by)] = by
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("shipped", "inflate fails: the data is damaged"),
        ("shuffle-gzip-fletcher", "the checksum (fletcher32) is not that of the data"),
        ("fletcher", "the checksum (fletcher32) is not that of the data"),
    ],
)
@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_damaged_chunk_is_told_with_its_place(tmp_path: Path, layout: str, reason: str, threads: int) -> None:
    year = stored_year(write_images(tmp_path / "year.h5", fields(), **LAYOUTS_OF_IMAGES[layout]))
    grid = [-(-n // side) for n, side in zip(SHAPE, year.chunk or SHAPE, strict=True)]
    cells = [(1, 1, 2, 0), (1, 1, 1, 0), (0, 1, 1, 0)]
    for cell in cells:
        damage(year, int(np.ravel_multi_index(cell, grid)))
    for _ in range(5):
        error = failure(year, threads)
        assert (error.kind, error.file, error.image, error.chunk) == ("corrupt", 0, 0, (0, 1, 1, 0))
        assert error.channel == (year.chunk or SHAPE)[1]
        assert error.reason == reason
        assert str(error) == f"corrupt: file 0, image 0, channel {error.channel}, chunk (0, 1, 1, 0): {reason}"
        assert isinstance(error, ValueError)


def test_damage_elsewhere_does_not_matter(tmp_path: Path) -> None:
    year = stored_year(write_images(tmp_path / "year.h5", fields(), **LAYOUTS_OF_IMAGES["channel-chunks"]))
    damage(year, 3, by=b"\0" * 4)
    expected = fields()
    with h5py.File(year.path) as file:
        expected[0, 3] = file["images"][0, 3]
    np.testing.assert_array_equal(read_all(year), expected)


HUGE = 2**63


@pytest.mark.parametrize(
    ("table", "value", "kind", "reason"),
    [
        ("addresses", 10**9, "truncated", "the file ends at byte"),
        ("addresses", HUGE, "truncated", "the file ends at byte"),
        ("addresses", 2**64 - 2, "truncated", "the file ends at byte"),
        ("sizes", 0, "corrupt", "inflate fails"),
        ("sizes", 5, "corrupt", "inflate fails"),
        ("sizes", 1 << 33, "corrupt", "the chunk claims"),
        ("sizes", 2**64 - 1, "corrupt", "the chunk claims"),
        ("masks", 1, "corrupt", "bytes instead of"),
    ],
)
def test_a_hostile_table_is_an_error_with_a_place(
    tmp_path: Path, table: str, value: int, kind: str, reason: str
) -> None:
    year = stored_year(write_images(tmp_path / "year.h5", fields(), **LAYOUTS_OF_IMAGES["shipped"]))
    hostile = getattr(year, table).copy()
    hostile[17] = value
    error = failure(replace(year, **{table: hostile}))
    assert (error.kind, error.chunk) == (kind, (0, 1, 0, 1))
    assert reason in error.reason


@pytest.mark.parametrize("offset", [10**6, HUGE - 100, HUGE, 2**64 - 2])
def test_a_hostile_offset_is_an_error(tmp_path: Path, offset: int) -> None:
    error = failure(replace(stored_year(write_images(tmp_path / "year.h5", fields())), offset=offset))
    assert (error.kind, error.image, error.channel, error.chunk) == ("truncated", 0, 0, None)


def test_a_chunk_of_another_size_than_its_own_is_corrupt(tmp_path: Path) -> None:
    def deflated(properties: Any) -> None:
        properties.set_deflate(1)

    for extra, reason in [(400, "inflate makes more bytes than the chunk has"), (-400, "bytes instead of 3456")]:

        def encoded(raw: bytes, _cell: Any, extra: int = extra) -> tuple[bytes, int]:
            return encode(raw + bytes(extra) if extra > 0 else raw[:extra], ["deflate"]), 0

        path = write_chunks(tmp_path / f"{extra}.h5", fields(), (1, 1, 24, 36), deflated, encoded)
        assert reason in failure(stored_year(path)).reason


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (b"\x20\x00", "lzf fails"),  # copies what is before the beginning
        (b"\x00a\x20\x05", "lzf fails"),
        (b"\x05abc", "lzf fails"),  # fewer literals than announced
        (b"\x00a\xe0", "lzf fails"),  # ends within a copy
        (b"\x00a\xe0\xff", "lzf fails"),
        (b"\x00a" + b"\xe0\xff\x00" * 40, "lzf fails"),  # more than the chunk has
        (b"\x00a", "bytes instead of 3456"),
        (b"", "bytes instead of 3456"),
    ],
)
def test_hostile_lzf_is_refused(tmp_path: Path, stored: bytes, reason: str) -> None:
    path = write_images(
        tmp_path / "year.h5", np.zeros((1, 1, 24, 36), np.float32), chunks=(1, 1, 24, 36), compression="lzf"
    )
    year = stored_year(path)
    path.write_bytes(path.read_bytes() + stored)
    end = np.array([path.stat().st_size - len(stored)], np.uint64)
    error = failure(
        replace(year, addresses=end, sizes=np.array([len(stored)], np.uint64), masks=np.zeros(1, np.uint32))
    )
    assert error.kind == "corrupt"
    assert reason in error.reason


def test_a_checksum_in_the_order_of_old_versions_is_accepted(tmp_path: Path) -> None:
    # HDF5 1.6.2 and older exchanged the bytes of each half on little-endian machines.
    def exchanged(raw: bytes, _cell: Any) -> tuple[bytes, int]:
        a, b, c, d = fletcher32(raw)
        return raw + bytes([b, a, d, c]), 0

    path = write_chunks(tmp_path / "old.h5", fields(), (1, 1, 24, 36), lambda p: p.set_fletcher32(), exchanged)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["images"][:], fields())
    np.testing.assert_array_equal(read_all(stored_year(path)), fields())


FILTERS: dict[str, tuple[tuple[str, ...], Callable[[Any], None]]] = {
    "deflate": (("deflate",), lambda p: p.set_deflate(1)),
    "fletcher32": (("fletcher32",), lambda p: p.set_fletcher32()),
    "shuffle-lzf": (
        ("shuffle", "lzf"),
        lambda p: (p.set_shuffle(), p.set_filter(32000, h5py.h5z.FLAG_OPTIONAL, (4, 261, 1024))),
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_what_is_read_of_a_mutated_chunk_is_what_hdf5_reads(tmp_path: Path, name: str) -> None:
    """Where we read something, HDF5 reads the same."""
    filters, add = FILTERS[name]
    noise, outcomes = random.Random(name), set()
    image = np.round(fields((1, 1, 12, 16)), 4)
    for trial in range(200):

        def mutated(raw: bytes, _cell: Any) -> tuple[bytes, int]:
            data = bytearray(encode(raw, filters))
            for _ in range(noise.randint(0, 2)):
                data[noise.randrange(len(data))] ^= 1 << noise.randrange(8)
            return bytes(data[: noise.randint(len(data) - 2, len(data))] if noise.random() < 0.3 else data), 0

        path = write_chunks(tmp_path / f"{trial}.h5", image, (1, 1, 12, 16), add, mutated)
        year = stored_year(path)
        try:
            values = read_all(year, threads=1)
        except _core.ClimateError as error:
            outcomes.add(error.kind)
            continue
        outcomes.add("read")
        with h5py.File(path) as file:
            np.testing.assert_array_equal(values.view(np.uint32), file["images"][:].view(np.uint32))
    assert outcomes == {"read", "corrupt"}


def test_a_file_that_cannot_be_opened_is_unreadable(tmp_path: Path) -> None:
    year = stored_year(write_images(tmp_path / "year.h5", fields()))
    os.mkfifo(tmp_path / "pipe")
    for name, reason in [
        ("missing", "cannot open the file: No such file"),
        ("", "not a regular file"),
        ("pipe", "not a"),
    ]:
        error = failure(replace(year, path=str(tmp_path / name)))
        assert (error.kind, error.file, error.image, error.channel, error.chunk) == ("unreadable", 0, None, None, None)
        assert reason in error.reason
