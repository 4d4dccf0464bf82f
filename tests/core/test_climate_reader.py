"""Images of climate years against h5py: every layout and filter, normalised, rolled, cropped, in windows.

And how a reader may be used: arguments, closing, interruption, fork, memory, files that are cut, damaged or hostile.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from builders.data import LAYOUTS_OF_IMAGES, SHAPE, StoredYear, fields, stored_year, write_chunks, write_images
from builders.instruction_sets import on_each
from builders.memory import room_for
from climate_twin import ITEMS, cast, encode, fletcher32, normalised, rolled_and_cropped
from numpy.typing import NDArray

from hpcai500 import _core

IMAGES, CHANNELS, ROWS, COLUMNS = SHAPE


def open_years(years: list[StoredYear], **settings: Any) -> _core.ClimateReader:
    """A reader of all channels and columns, unless told otherwise."""
    whole = {"channels": range(CHANNELS), "mean": None, "std": None, "dtype": "float32", "left": 0, "width": COLUMNS}
    return _core.ClimateReader(years, **{**whole, "threads": 2, **settings})


def read(reader: _core.ClimateReader, images: Any, dtype: str = "float32", **arguments: Any) -> NDArray[Any]:
    """Images of the first file; what is not written stays 77."""
    images = np.asarray(images)
    out = np.full((len(images), *reader.image_shape), 77, ITEMS[dtype])
    reader.read(np.zeros(len(images), int), images, out, **arguments)
    return out


@pytest.fixture(scope="module")
def years(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("years")
    return {name: write_images(root / f"{name}.h5", fields(), **layout) for name, layout in LAYOUTS_OF_IMAGES.items()}


@pytest.mark.parametrize("layout", LAYOUTS_OF_IMAGES)
def test_every_layout_is_what_h5py_reads_bit_for_bit(years: dict[str, Path], layout: str) -> None:
    with h5py.File(years[layout]) as file:
        expected = file["images"][:]
    with open_years([stored_year(years[layout])]) as reader:
        order = np.random.default_rng(1).permutation(IMAGES)
        np.testing.assert_array_equal(read(reader, order).view(np.uint32), expected[order].view(np.uint32))
        for image in range(IMAGES):
            np.testing.assert_array_equal(read(reader, [image])[0], expected[image])


def test_every_bit_pattern_of_a_float_is_kept(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, SHAPE, np.uint32)
    bits.ravel()[:6] = [0x7FC00001, 0xFFA00001, 0x7F800000, 0x80000000, 1, 0x7F800001]
    for layout in ("contiguous", "shuffle-gzip"):
        year = stored_year(write_images(tmp_path / f"{layout}.h5", bits.view(np.float32), **LAYOUTS_OF_IMAGES[layout]))
        with open_years([year]) as reader:
            np.testing.assert_array_equal(read(reader, range(IMAGES)).view(np.uint32), bits)


def test_a_callers_flushed_subnormals_are_its_own(tmp_path: Path) -> None:
    images = np.full(SHAPE, 3e-39, np.float32)
    mean, std = np.zeros(CHANNELS), np.full(CHANNELS, 2.0)
    year = stored_year(write_images(tmp_path / "year.h5", images, **LAYOUTS_OF_IMAGES["contiguous"]))
    assert torch.set_flush_denormal(True)
    try:
        with open_years([year], mean=mean, std=std) as reader:
            found = read(reader, range(IMAGES))
    finally:
        torch.set_flush_denormal(False)
    assert found.all()
    np.testing.assert_array_equal(found, normalised(images, mean, std))


@pytest.mark.parametrize("layout", ["contiguous", "image-chunks", "shuffle-gzip"])
def test_a_user_block_moves_all_addresses(tmp_path: Path, layout: str) -> None:
    path = write_images(tmp_path / "year.h5", fields(), userblock=1024, **LAYOUTS_OF_IMAGES[layout])
    with open_years([stored_year(path)]) as reader:
        np.testing.assert_array_equal(read(reader, range(IMAGES)), fields())


@pytest.mark.parametrize("layout", ["shipped", "partial-raw", "channel-chunks", "contiguous"])
def test_what_was_never_written_is_zero(tmp_path: Path, layout: str) -> None:
    images = fields()
    images[2:6, 1] = 0
    images[:, 2:4, :, 8:30] = 0
    if layout == "contiguous":
        images[:] = 0
    path = tmp_path / "year.h5"
    if layout == "contiguous":
        with h5py.File(path, "w") as file:
            file.create_dataset("images", SHAPE, "<f4")
    else:
        write_images(path, images, keep_absent=True, **LAYOUTS_OF_IMAGES[layout])
        assert (stored_year(path).addresses == 2**64 - 1).any()
    with open_years([stored_year(path)]) as reader:
        np.testing.assert_array_equal(read(reader, range(IMAGES)), images)
    mean, std = np.full(CHANNELS, 4.0), np.full(CHANNELS, 2.0)
    with open_years([stored_year(path)], mean=mean, std=std) as reader:
        np.testing.assert_array_equal(read(reader, range(IMAGES)), normalised(images, mean, std))


def test_chunks_that_left_filters_out_are_read_by_their_masks(tmp_path: Path) -> None:
    import zlib

    def shuffled(raw: bytes) -> bytes:
        return np.frombuffer(raw, np.uint8).reshape(-1, 4).T.tobytes()

    forms = [
        lambda raw: (zlib.compress(shuffled(raw)), 0b00),
        lambda raw: (shuffled(raw), 0b10),
        lambda raw: (zlib.compress(raw), 0b01),
        lambda raw: (raw, 0b11),
    ]

    def filters(properties: Any) -> None:
        properties.set_shuffle()
        properties.set_deflate(4)

    images = fields()
    path = write_chunks(
        tmp_path / "year.h5", images, (2, 1, 24, 20), filters, lambda raw, cell: forms[sum(cell) % 4](raw)
    )
    year = stored_year(path)
    assert set(year.masks.tolist()) == {0, 1, 2, 3}
    with h5py.File(path) as file, open_years([year]) as reader:
        np.testing.assert_array_equal(file["images"][:], images)
        np.testing.assert_array_equal(read(reader, range(IMAGES)), images)


@pytest.mark.parametrize("order", [("gzip", "shuffle"), ("fletcher", "gzip"), ("gzip", "fletcher", "shuffle", "gzip")])
def test_filters_are_undone_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    add = {
        "gzip": lambda p: p.set_deflate(1),
        "shuffle": lambda p: p.set_shuffle(),
        "fletcher": lambda p: p.set_fletcher32(),
    }
    images = fields()
    path = tmp_path / "year.h5"
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((2, 2, 11, 13))
        for name in order:
            add[name](properties)
        space = h5py.h5s.create_simple(SHAPE)
        h5py.Dataset(h5py.h5d.create(file.id, b"images", h5py.h5t.IEEE_F32LE, space, properties))[:] = images
    with open_years([stored_year(path)]) as reader:
        np.testing.assert_array_equal(read(reader, range(IMAGES)), images)


MEAN, STD = np.array([1e-3, 0.5, -3.0, 12.0, 300.0]), np.array([2e-4, 0.01, 7.0, 3.0, 1e-2])


@pytest.mark.parametrize("layout", ["contiguous", "shipped", "shuffle-lzf-fletcher", "partial"])
@pytest.mark.parametrize("dtype", ITEMS)
def test_normalised_values_are_the_references(years: dict[str, Path], layout: str, dtype: str) -> None:
    expected = normalised(fields(), MEAN, STD)
    with open_years([stored_year(years[layout])], mean=MEAN, std=STD, dtype=dtype) as reader:
        np.testing.assert_array_equal(read(reader, range(IMAGES), dtype), cast(expected, dtype))


def test_float32_is_within_two_roundings_of_the_definition(years: dict[str, Path]) -> None:
    images = fields().astype(np.float64)
    exact = (images - MEAN[:, None, None]) / STD[:, None, None]
    # Each factor has an error of half a unit, and the sum another: relative to the largest of the three terms.
    largest = np.abs(images / STD[:, None, None]) + np.abs(MEAN / STD)[:, None, None]
    with open_years([stored_year(years["contiguous"])], mean=MEAN, std=STD) as reader:
        assert (np.abs(read(reader, range(IMAGES)) - exact) / largest).max() < 1.5 * 2.0**-24


def test_a_cast_alone_rounds_to_nearest_even_and_keeps_what_is_special(tmp_path: Path) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, 65504, 65519.996, 65520, -65520, 1e30, 2.0**-24, 2.0**-25, 2.0**-25 * 1.001]
    special += [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3e-39, -1e-45, 3.4e38, 6.1e-5, 6.09e-5]
    bits = np.random.default_rng(3).integers(0, 2**32, SHAPE, np.uint32)
    bits.ravel()[: len(special)] = np.array(special, np.float32).view(np.uint32)
    images = bits.view(np.float32)
    nan = np.isnan(images)
    year = stored_year(write_images(tmp_path / "year.h5", images))
    for dtype in ("float16", "bfloat16"):
        with open_years([year], dtype=dtype) as reader:
            values = read(reader, range(IMAGES), dtype).view(np.uint16)
        np.testing.assert_array_equal(values[~nan], cast(images, dtype).view(np.uint16)[~nan])
        exponent, mantissa = (0x7C00, 0x3FF) if dtype == "float16" else (0x7F80, 0x7F)
        assert ((values[nan] & exponent) == exponent).all()
        assert ((values[nan] & mantissa) != 0).all()


@pytest.mark.parametrize("layout", ["contiguous", "image-chunks", "shipped", "partial", "shuffle-gzip-fletcher"])
@pytest.mark.parametrize(("left", "width"), [(0, 36), (0, 1), (35, 1), (5, 20), (9, 27)])
def test_rolls_crops_and_channels_are_fused(years: dict[str, Path], layout: str, left: int, width: int) -> None:
    channels, rolls = [4, 0, 2], np.array([0, 1, 35, 18, -7, 36, 1000])
    expected = np.stack(
        [rolled_and_cropped(image[channels], roll, left, width) for image, roll in zip(fields(), rolls, strict=True)]
    )
    with open_years([stored_year(years[layout])], channels=channels, left=left, width=width) as reader:
        assert reader.image_shape == (3, ROWS, width)
        np.testing.assert_array_equal(read(reader, range(IMAGES), rolls=rolls), expected)
        window = np.full((4, 3, ROWS, COLUMNS), 77, np.float32)
        reader.read_window(0, 3, 4, window)
        np.testing.assert_array_equal(window, fields()[3:, channels])
        taken = np.full((3, 3, ROWS, width), 77, np.float32)
        reader.take(window, np.array([3, 0, 3]), taken, rolls=rolls[[6, 3, 4]])
        again = [rolled_and_cropped(window[at], rolls[roll], left, width) for at, roll in [(3, 6), (0, 3), (3, 4)]]
        np.testing.assert_array_equal(taken, np.stack(again))


@pytest.mark.parametrize("dtype", ITEMS)
def test_a_window_gives_what_reading_gives_in_every_type(years: dict[str, Path], dtype: str) -> None:
    rolls = np.array([3, 11, 0, 1, 2, 35, 17])
    settings = {"mean": MEAN, "std": STD, "dtype": dtype, "left": 3, "width": 31}
    with open_years([stored_year(years["shipped"])], **settings) as reader:
        window = np.empty((IMAGES, CHANNELS, ROWS, COLUMNS), ITEMS[dtype])
        reader.read_window(0, 0, IMAGES, window)
        taken = np.empty((IMAGES, *reader.image_shape), ITEMS[dtype])
        reader.take(window, np.arange(IMAGES), taken, rolls=rolls)
        np.testing.assert_array_equal(taken, read(reader, range(IMAGES), dtype, rolls=rolls))


def test_places_say_where_images_go_and_leave_the_rest_alone(years: dict[str, Path]) -> None:
    with open_years([stored_year(years["shipped"]), stored_year(years["contiguous"])]) as reader:
        out = np.full((6, *reader.image_shape), 77, np.float32)
        reader.read(np.array([1, 0, 1]), np.array([6, 2, 2]), out, places=np.array([5, 1, 0]))
        np.testing.assert_array_equal(out[[5, 1, 0]], fields()[[6, 2, 2]])
        assert (out[2:5] == 77).all()
        reader.take(out, np.array([5]), out[2:3])
        np.testing.assert_array_equal(out[2], fields()[6])


def test_a_chunk_is_inflated_once(years: dict[str, Path]) -> None:
    year = stored_year(years["shipped"])
    per_row = CHANNELS * 4 * 4
    with open_years([year]) as reader:
        read(reader, [2, 0, 3])
        assert reader.chunks_inflated == per_row
        window = np.empty((4, *reader.image_shape), np.float32)
        for part in range(9):
            reader.read_window(0, 0, 4, window, part=(part, part + 1, 9))
        assert reader.chunks_inflated == 2 * per_row
        np.testing.assert_array_equal(window, fields()[:4])
        read(reader, range(IMAGES))
        assert reader.chunks_inflated == 4 * per_row
    with open_years([year], channels=[1], left=9, width=9) as reader:
        read(reader, [0])
        assert reader.chunks_inflated == 4
        read(reader, [0], rolls=np.array([5]))
        assert reader.chunks_inflated == 4 + 8


def test_an_output_needs_no_alignment(years: dict[str, Path]) -> None:
    for dtype, item in ITEMS.items():
        with open_years([stored_year(years["contiguous"])], mean=MEAN, std=STD, dtype=dtype) as reader:
            expected = read(reader, range(IMAGES), dtype)
            for shift in (1, 2, 4, 6, 8, 60):
                memory = np.full(expected.nbytes + 128, 77, np.uint8)
                start = -memory.ctypes.data % 64 + shift
                out = memory[start : start + expected.nbytes].view(item).reshape(expected.shape)
                reader.read(np.zeros(IMAGES, int), np.arange(IMAGES), out)
                np.testing.assert_array_equal(out, expected)
                assert (memory[:start] == 77).all()
                assert (memory[start + expected.nbytes :] == 77).all()


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads_makes_the_same_images(years: dict[str, Path], threads: int) -> None:
    for layout in ("contiguous", "shipped", "lzf"):
        with open_years([stored_year(years[layout])], threads=threads) as reader:
            np.testing.assert_array_equal(read(reader, range(IMAGES)), fields())


_READ_ALL = """
import sys
import numpy as np
from pathlib import Path
from builders.data import SHAPE, stored_year
from climate_twin import ITEMS
results = {}
mean, std = np.array([12.0, 1e-3, 300.0]), np.array([3.0, 2e-4, 1e-2])
for path in map(Path, sys.argv[2:]):
    for dtype, item in ITEMS.items():
        for name, (m, s) in {"cast": (None, None), "normalised": (mean, std)}.items():
            reader = _core.ClimateReader(
                [stored_year(path)], channels=[3, 0, 4], mean=m, std=s, dtype=dtype, left=2, width=33, threads=1)
            out = np.empty((SHAPE[0], *reader.image_shape), item)
            reader.read(np.zeros(SHAPE[0], int), np.arange(SHAPE[0]), out, rolls=np.arange(SHAPE[0]) * 5)
            results[f"{path.stem} {dtype} {name}"] = out.view(f"u{out.itemsize}")
np.savez(sys.argv[1], **results)
"""


def test_all_instruction_sets_make_the_same_bits(years: dict[str, Path], tmp_path: Path) -> None:
    bits = np.random.default_rng(5).integers(0, 2**32, SHAPE, np.uint32)
    anything = [
        write_images(tmp_path / f"any-{layout}.h5", bits.view(np.float32), **LAYOUTS_OF_IMAGES[layout])
        for layout in ("contiguous", "shuffle-gzip")
    ]
    isas = on_each(_READ_ALL, tmp_path / "{isa}.npz", years["contiguous"], years["shuffle-lzf"], *anything)
    first, *others = (np.load(tmp_path / f"{isa}.npz") for isa in isas)
    assert len(first.files) == 4 * 6
    for other in others:
        for name in first.files:
            np.testing.assert_array_equal(first[name], other[name], err_msg=name)


@pytest.fixture
def year(tmp_path: Path) -> StoredYear:
    return stored_year(write_images(tmp_path / "year.h5", fields(), **LAYOUTS_OF_IMAGES["shipped"]))


# ----------------------------------------------------------------------------------------------------
# How a reader may be used.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": []}, "at least one channel"),
        ({"channels": [0, 5]}, r"channels must be in \[0, 5\), got 5"),
        ({"channels": [-1]}, "got -1"),
        ({"left": 1}, "left and width must lie in the 36 columns"),
        ({"left": -1}, "left -1"),
        ({"width": 0}, "width 0"),
        ({"left": 2**62, "width": 2**62}, "must lie in the 36 columns"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"dtype": "uint8"}, "dtype must be one of float32, float16, bfloat16; got 'uint8'"),
        ({"mean": np.zeros(5)}, "mean and std must both have a value for each of the 5 channels, got 5 and 0"),
        ({"mean": np.zeros(4), "std": np.ones(4)}, "got 4 and 4"),
        ({"mean": np.zeros(5), "std": np.zeros(5)}, "std above 0"),
        ({"mean": np.zeros(5), "std": np.full(5, -1.0)}, "std above 0"),
        ({"mean": np.full(5, np.nan), "std": np.ones(5)}, "mean must be finite"),
        ({"mean": np.zeros(5), "std": np.full(5, 1e-300)}, "within float32"),
        ({"mean": np.zeros(5), "std": np.full(5, np.inf)}, "within float32"),
    ],
)
def test_settings_that_make_no_sense_are_refused(year: StoredYear, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_years([year], **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (7, 5, 24)}, r"shape must be \(images, channels, rows, columns\)"),
        ({"shape": (0, 5, 24, 36)}, "shape must have extents of at least 1"),
        ({"shape": (2**40, 2**40, 24, 36)}, "shape must have extents of at least 1 and at most"),
        ({"chunk": (4, 0, 6, 9)}, "chunk must have extents of at least 1"),
        ({"chunk": (4, 1, 2**20, 2**20)}, "chunk must have extents of at least 1 and at most"),
        ({"chunk": (4, 1, 6, 12)}, "addresses must have an entry for each of 120 chunks, got 160"),
        ({"sizes": np.zeros(3, np.uint64)}, "sizes must have an entry for each of 160 chunks, got 3"),
        ({"masks": np.zeros((2, 80), np.uint32)}, "masks must be a one-dimensional array"),
        ({"filters": ("deflate", "szip")}, "filters must be among deflate, shuffle, fletcher32, lzf; got 'szip'"),
        ({"filters": ("shuffle",) * 33}, "33 filters"),
        ({"dtype": ">f4"}, "values of type >f4 are not read"),
        ({"path": "a\0b"}, "zero byte"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(year: StoredYear, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_years([replace(year, **changes)])


def test_years_of_different_shapes_are_refused(year: StoredYear, tmp_path: Path) -> None:
    other = stored_year(write_images(tmp_path / "other.h5", fields((3, 5, 24, 30))))
    with pytest.raises(ValueError, match=r"other\.h5: its images differ in channels, rows or columns from those of"):
        open_years([year, other])
    with pytest.raises(ValueError, match="at least one file"):
        open_years([])


def test_requests_outside_the_data_are_refused(year: StoredYear) -> None:
    out = np.full((2, *SHAPE[1:]), 77, np.float32)
    one, zero = np.array([1, 1]), np.array([0, 0])
    with open_years([year]) as reader:
        for files, images, changes, message in [
            (one, zero, {}, r"files must be in \[0, 1\), got 1"),
            (zero, np.array([0, 7]), {}, r"images must be in \[0, 7\), got 7"),
            (zero, np.array([-1, 0]), {}, "got -1"),
            (zero, one, {"places": np.array([0, 2])}, r"places must be in \[0, 2\), got 2"),
            (zero, one, {"places": one}, "places must differ, got 1 twice"),
            (zero, one, {"places": np.array([0])}, "places must be one-dimensional and have one entry for each of 2"),
            (zero, one, {"rolls": np.zeros((2, 1), int)}, "rolls must be one-dimensional"),
            (zero[:1], one[:1], {}, "out must have room for exactly 1 images, got 2; or say which in places"),
        ]:
            with pytest.raises(ValueError, match=message):
                reader.read(files, images, out, **changes)
        with pytest.raises(TypeError):
            reader.read(zero, np.array([0.0, 1.0]), out)
        for first, count in [(6, 2), (-1, 2), (0, 0), (2**62, 2)]:
            with pytest.raises(ValueError, match=r"a window must lie in the 7 images|out must have room"):
                reader.read_window(0, first, count, out)
        for part in [(3, 3, 3), (2, 4, 3), (2, 1, 3), (2**62, 2**63, 2**63)]:
            with pytest.raises(ValueError, match=r"part must be \(begin, end, total\) with begin < end <= total <= 2"):
                reader.read_window(0, 0, 2, out, part=part)
        with pytest.raises(ValueError, match=r"positions must be in \[0, 2\), got 2"):
            reader.take(out, np.array([2]), np.empty((1, *SHAPE[1:]), np.float32))
    assert (out == 77).all()


def test_a_short_file_gets_no_memory_for_the_long_rows_that_it_claims(year: StoredYear, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(100))
    none = {"chunk": None, "filters": (), "addresses": year.addresses[:0], "sizes": year.sizes[:0]}
    place = {"path": str(tmp_path / "short"), "shape": (1, 1, 1, 1 << 27), "offset": 0}
    long = replace(year, **place, **none, masks=year.masks[:0])
    with open_years([long], channels=[0], width=1) as reader, room_for(256 << 20):
        with pytest.raises(_core.ClimateError, match="the file ends at byte 100") as caught:
            read(reader, [0])
        assert caught.value.kind == "truncated"


def test_outputs_of_another_kind_are_refused(year: StoredYear) -> None:
    good = np.zeros((1, *SHAPE[1:]), np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    with open_years([year]) as reader:
        for out, message in [
            (good[0], "must have the shape"),
            (np.empty((1, CHANNELS, ROWS, COLUMNS + 1), np.float32), "must have the shape"),
            (np.empty((1, CHANNELS, ROWS, 2 * COLUMNS), np.float32)[..., ::2], "C-contiguous"),
            (good.astype(np.float16), "must have the type f4, got f2"),
            (good.astype(">f4"), "must have the type f4, got >f4"),
            (frozen, "must be writable"),
        ]:
            with pytest.raises(ValueError, match=message):
                reader.read(np.zeros(1, int), np.zeros(1, int), out)


def test_a_closed_reader_is_closed(year: StoredYear) -> None:
    reader = open_years([year])
    out = np.empty((1, *SHAPE[1:]), np.float32)
    reader.close()
    reader.close()
    with pytest.raises(RuntimeError, match="the reader is closed"):
        reader.read(np.zeros(1, int), np.zeros(1, int), out)


def test_a_reader_that_is_dropped_ends_its_threads_and_closes_its_files(year: StoredYear) -> None:
    def count(folder: str) -> int:
        return len(list(Path("/proc/self", folder).iterdir()))

    before = count("task"), count("fd")
    reader = open_years([year, year], threads=3)
    assert (count("task"), count("fd")) == (before[0] + 3, before[1] + 2)
    del reader
    assert (count("task"), count("fd")) == before


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> StoredYear:
    """A year whose images take a while: 64 of them share chunks, and reading one inflates all."""
    images = np.random.default_rng(0).integers(0, 50, (64, 1, 96, 256)).astype(np.float32)
    path = tmp_path_factory.mktemp("slow") / "year.h5"
    return stored_year(write_images(path, images, chunks=(64, 1, 8, 64), compression="gzip"))


def read_for_minutes(reader: _core.ClimateReader) -> None:
    out = np.empty((1, *reader.image_shape), np.float32)
    for _ in range(100_000):
        reader.read(np.zeros(1, int), np.zeros(1, int), out)


def test_ctrl_c_interrupts_a_long_read(slow: StoredYear) -> None:
    # One call with the same file a thousand times: each of its windows is inflated for one image.
    files = 1000
    few = {"channels": [0], "width": 256}
    with open_years([slow] * files, **few) as reader:
        out = np.empty((files, *reader.image_shape), np.float32)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            reader.read(np.arange(files), np.zeros(files, int), out)
        assert reader.chunks_inflated < files * 48
        timer.join()
        reader.read(np.zeros(1, int), np.zeros(1, int), out[:1])


def test_closing_from_another_thread_ends_a_read(slow: StoredYear) -> None:
    reader = open_years([slow], channels=[0], width=256)
    # Runs only while the read waits without the GIL, and then ends it.
    closer = threading.Timer(0.2, reader.close)
    closer.start()
    with pytest.raises(RuntimeError, match="the reader is closed"):
        read_for_minutes(reader)
    closer.join()


def test_several_python_threads_may_read(year: StoredYear) -> None:
    expected, wrong = fields(), []
    with open_years([year], threads=3) as reader:

        def use(image: int) -> None:
            out = np.empty((1, *SHAPE[1:]), np.float32)
            for _ in range(30):
                reader.read(np.zeros(1, int), np.array([image]), out)
                if not np.array_equal(out[0], expected[image]):
                    wrong.append(image)

        users = [threading.Thread(target=use, args=(image,)) for image in range(IMAGES)]
        for user in users:
            user.start()
        for user in users:
            user.join()
    assert wrong == []


_FLAT_MEMORY = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from pathlib import Path
from builders.data import stored_year
from hpcai500 import _core
years = [stored_year(Path(path)) for path in sys.argv[2:]]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
settings = dict(channels=range(5), mean=np.zeros(5), std=np.ones(5), dtype="float16", left=0, width=36, threads=3)
with _core.ClimateReader(years, **settings) as reader:
    out = np.empty((7, *reader.image_shape), np.float16)
    for epoch in range(400):
        for file in range(len(years)):
            try:
                reader.read(np.full(7, file), np.arange(7), out, rolls=np.arange(7) * epoch)
                reader.read_window(file, 0, 7, out)
                reader.take(out, np.arange(7), out.copy())
            except _core.ClimateError:
                pass
        if epoch == 100:
            warm = resident()
print(resident() - warm)
"""


def test_memory_is_flat_over_epochs(tmp_path: Path) -> None:
    layouts = ("contiguous", "shipped", "shuffle-lzf-fletcher", "partial")
    paths = [write_images(tmp_path / f"{name}.h5", fields(), **LAYOUTS_OF_IMAGES[name]) for name in layouts]
    year = stored_year(paths[3])
    data = bytearray(paths[3].read_bytes())
    data[int(year.addresses[5]) + 9] ^= 0xFF
    paths[3].write_bytes(data)
    command = [sys.executable, "-c", _FLAT_MEMORY, str(Path(__file__).parents[1]), *map(str, paths)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # 300 epochs of 12 calls: one leaked kilobyte a call would be 3.6 MB.
    assert grown < 1_000_000


_FORK = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from pathlib import Path
from builders.data import stored_year
from hpcai500 import _core
reader = _core.ClimateReader([stored_year(Path(sys.argv[2]))], channels=[0], mean=None, std=None, dtype="float32",
                             left=0, width=36, threads=2)
out, zero = np.empty((1, *reader.image_shape), np.float32), np.zeros(1, int)
child = os.fork()
if child == 0:
    try:
        reader.read(zero, zero, out)
    except RuntimeError as error:
        print(error)
    reader.close()
    del reader
    print("child ends")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
reader.read(zero, zero, out)
print("parent reads")
"""


def test_after_fork_the_child_is_told_and_the_parent_goes_on(year: StoredYear) -> None:
    command = [sys.executable, "-c", _FORK, str(Path(__file__).parents[1]), year.path]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "does not survive fork()" in output
    assert "child ends" in output
    assert "parent reads" in output


# --- Files that are cut, damaged or hostile: an error with its place, never a crash and never other values.


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
