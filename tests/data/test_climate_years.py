"""A year is opened when it follows the format, or one line says what is wrong; its boxes, and anchors for them."""

from __future__ import annotations

import ctypes
import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from builders.data import (
    CONTIGUOUS,
    HEIGHT,
    LAYOUTS,
    SHAPE,
    SHIPPED,
    WIDTH,
    boxes_of,
    damage_chunk,
    fields,
    images_of,
    swapped,
    write_year,
)
from builders.data import LAYOUTS_OF_IMAGES as STORED
from builders.data import write_images as write_file
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.climate import values
from hpcai500.data.climate.boxes import Truth, balanced, fit_anchors, most_boxes, moved, truths_of
from hpcai500.data.climate.values import UnreadableImagesError, channel_blocks, ranges, read_images, scan_years
from hpcai500.data.climate.years import (
    ABSENT,
    RowKind,
    Storage,
    as_shipped,
    box_sizes,
    class_counts,
    odd_rows,
    open_year,
    row_kinds,
    storage_of,
    usable,
    variant_of,
)
from hpcai500.errors import DataError
from hpcai500.recipe import load_recipe

GOOD_IMAGES, GOOD_BOXES = images_of(3), boxes_of(3)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_year_is_what_was_written(tmp_path: Path, layout: dict[str, Any]) -> None:
    images, boxes = images_of(13), boxes_of(13)
    year = open_year(write_year(tmp_path, 1984, images, boxes, **layout))
    assert (year.year, year.images, year.grid) == (1984, 13, (HEIGHT, WIDTH))
    assert year.storage.chunk == layout.get("chunks")
    assert np.array_equal(year.boxes, boxes)
    assert not year.boxes.flags.writeable
    assert year.variant.name == "shipped"
    assert np.array_equal(read_images(year, 0, 13), images)
    assert np.array_equal(read_images(year, 4, 3, channels=slice(5, 7)), images[4:7, 5:7])
    assert np.array_equal(read_images(year, 11, 2), images[11:])


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("scale_factor", np.float32(0.01), "packed: its attribute scale_factor is 0.01, which hpcai500 does not apply"),
        ("add_offset", np.array([273.15]), "packed: its attribute add_offset is 273.15, which"),
        ("_FillValue", "-999", "its attribute _FillValue is no number; correct or remove it"),
        ("missing_value", h5py.Empty("f4"), "its attribute missing_value is no number"),
        ("valid_range", np.float32(5), "its attribute valid_range has 1 values, expected 2"),
        ("valid_max", np.array([5, 6]), "its attribute valid_max has 2 values, expected 1"),
    ],
)
def test_attributes_that_change_values_are_refused_by_name(
    tmp_path: Path, attribute: str, value: Any, message: str
) -> None:
    path = write_year(tmp_path)
    with h5py.File(path, "r+") as file:
        file["images"].attrs[attribute] = value
    with pytest.raises(DataError, match=f"{path}: dataset images: {message}"):
        open_year(path)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("block_bytes", [1, 200_000, 2**28])
def test_ranges_and_blocks_cover_a_year_once_in_whole_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any], block_bytes: int
) -> None:
    monkeypatch.setattr("hpcai500.data.climate.values.BLOCK_BYTES", block_bytes)
    year = open_year(write_year(tmp_path, **layout))
    pieces = list(ranges(year))
    assert [image for first, count in pieces for image in range(first, first + count)] == list(range(12))
    assert all(first % year.storage.window == 0 for first, _ in pieces)
    for _, count in pieces:
        blocks = list(channel_blocks(year, count))
        assert [channel for block in blocks for channel in range(block.start, block.stop)] == list(range(16))
        assert all(block.start % (layout.get("chunks") or (1, 1))[1] == 0 for block in blocks)


def rewritten(**datasets: Any) -> Callable[[Path], None]:
    """Writes a file anew that is good but for `datasets`; None leaves one out."""

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name, data in ({"images": GOOD_IMAGES, "boxes": GOOD_BOXES} | datasets).items():
                if data is not None:
                    file[name] = data

    return write


def create(
    path: Path,
    chunk: tuple[int, ...] | None = None,
    filters: Any = (),
    *,
    kind: Any = h5py.h5t.IEEE_F32LE,
    options: int = 0,
    versions: tuple[str, str] = ("earliest", "latest"),
    written: int = 3,
) -> None:
    """Write a year by HDF5's own calls, which know more than h5py's dataset: `options` are H5Pset_chunk_opts's.

    `filters` are numbers with parameters; of the images, the first `written` are written.
    """
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk:
        properties.set_chunk(chunk)
    if options:
        set_options = ctypes.CDLL(h5py.h5p.__file__).H5Pset_chunk_opts
        set_options.argtypes = [ctypes.c_int64, ctypes.c_uint]
        assert set_options(properties.id, options) >= 0
    for number, parameters in filters:
        properties.set_filter(number, h5py.h5z.FLAG_OPTIONAL, parameters)
    with h5py.File(path, "w", libver=versions) as file:
        space = h5py.h5s.create_simple(GOOD_IMAGES.shape, (h5py.h5s.UNLIMITED,) * 4 if chunk else None)
        images = h5py.Dataset(h5py.h5d.create(file.id, b"images", kind, space, properties))
        images[:written] = GOOD_IMAGES[:written]
        file["boxes"] = GOOD_BOXES


def no_single() -> Any:
    """A float of four bytes with an exponent of seven bits: NumPy has none, and h5py calls it <f4."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(31, 24, 7, 1, 23)
    kind.set_ebias(63)
    return kind


WRONG = {
    "text": (lambda path: path.write_bytes(b"year 1979"), r": not an HDF5 file"),
    "empty": (lambda path: path.write_bytes(b""), r": empty file; copy it again"),
    "truncated": (
        lambda path: os.truncate(path, 5000),
        r": truncated: 5000 bytes of the \d+ that its HDF5 header states",
    ),
    "absent": (Path.unlink, r": unreadable: No such file"),
    "no images": (rewritten(images=None), r": dataset images: missing; the file holds boxes"),
    "no boxes": (rewritten(boxes=None), r": dataset boxes: missing; the file holds images"),
    "float64": (
        rewritten(images=GOOD_IMAGES.astype("f8")),
        r": dataset images: type float64 \(<f8\), expected float32 \(<f4\)",
    ),
    "big-endian": (
        rewritten(images=GOOD_IMAGES.astype(">f4")),
        r": dataset images: type >f4 \(>f4\), expected float32",
    ),
    "long boxes": (
        rewritten(boxes=GOOD_BOXES.astype("i8")),
        r": dataset boxes: type int64 \(<i8\), expected int32 \(<i4\)",
    ),
    "15 channels": (
        rewritten(images=GOOD_IMAGES[:, :15]),
        r": dataset images: shape \(3, 15, 24, 36\), expected \(images, 16, height, width\)",
    ),
    "flat images": (rewritten(images=GOOD_IMAGES[0]), r": dataset images: shape \(16, 24, 36\), expected"),
    "boxes of 4": (
        rewritten(boxes=GOOD_BOXES[..., :4]),
        r": dataset boxes: shape \(3, 15, 4\), expected \(images, 15, 5\)",
    ),
    "fewer boxes": (rewritten(boxes=GOOD_BOXES[:2]), r": dataset boxes: has 2 images, but dataset images has 3"),
    "no image": (
        rewritten(images=GOOD_IMAGES[:0], boxes=GOOD_BOXES[:0]),
        r": dataset images: empty, of shape \(0, 16, 24, 36\)",
    ),
    "a group": (rewritten(images=None, **{"images/a": 1}), r": images is a group"),
    "another float": (lambda path: create(path, kind=no_single()), r": dataset images: a number of 4 bytes in another"),
}


@pytest.mark.parametrize(("spoil", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line_that_names_the_file(tmp_path: Path, spoil: Any, message: str) -> None:
    path = write_year(tmp_path)
    spoil(path)
    with pytest.raises(DataError, match=f"^{path}{message}") as error:
        open_year(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["images", "boxes"])
@pytest.mark.parametrize("soft", [False, True])
def test_a_link_into_another_file_is_refused(tmp_path: Path, name: str, soft: bool) -> None:
    path, other = write_year(tmp_path), write_year(tmp_path / "other", 1980)
    with h5py.File(path, "r+") as file:
        del file[name]
        file["elsewhere" if soft else name] = h5py.ExternalLink("other/climo_1980.h5", f"/{name}")
        if soft:
            file[name] = h5py.SoftLink("/elsewhere")
    with pytest.raises(DataError, match=f"^{path}: dataset {name}: a link into another file, {other}; .*h5copy -i"):
        open_year(path)


def test_a_link_within_the_file_is_followed_and_one_that_leads_nowhere_told(tmp_path: Path) -> None:
    path = write_year(tmp_path)
    with h5py.File(path, "r+") as file:
        file.move("images", "values")
        file["images"] = h5py.SoftLink("/values")
    assert np.array_equal(read_images(open_year(path), 0, 12), images_of(12, seed=1979))
    with h5py.File(path, "r+") as file:
        del file["boxes"]
        file["boxes"] = h5py.ExternalLink("gone.h5", "/boxes")
    with pytest.raises(DataError, match=f"^{path}: dataset boxes: a link without a target; replace it by the dataset"):
        open_year(path)


def test_storage_that_contradicts_the_file_is_ignored(tmp_path: Path) -> None:
    path = write_year(tmp_path, **SHIPPED)
    year = open_year(path)
    identity, true = year.identity, year.storage
    other = {
        "shape": (11, 16, 24, 36),
        "dtype": ">f4",
        "chunk": (5, 1, 6, 12),
        "filters": ("shuffle", "deflate"),
        "addresses": true.addresses[:-1],
        "masks": true.masks[:0],
    }
    for name, value in other.items():
        assert vars(open_year(path, (identity, replace(true, **{name: value}))).storage)[name] is not value
    assert open_year(path, (identity, true)).storage is true


def test_what_only_the_cores_reader_cannot_read_is_told_by_its_place(tmp_path: Path) -> None:
    year = open_year(write_year(tmp_path))
    beyond = replace(year, storage=replace(year.storage, offset=10**9))
    with pytest.raises(DataError) as caught:
        read_images(beyond, 2, 3, channels=slice(1, 2))
    assert str(caught.value).startswith(f"{year.path}: dataset images, image 2, channel PS: truncated: the file ends")
    assert str(caught.value).endswith(f"`hpcai500 data check ewa {tmp_path}` to find all such files")


def test_a_misnamed_file_is_told_what_its_name_must_be(tmp_path: Path) -> None:
    path = write_year(tmp_path).rename(tmp_path / "1979.h5")
    with pytest.raises(DataError, match=r"rename it to climo_YYYY\.h5, like climo_1979\.h5"):
        open_year(path)


@given(at=st.integers(0, 4000), flip=st.integers(1, 255))
def test_damaged_metadata_is_an_error_or_harmless(tmp_path_factory: pytest.TempPathFactory, at: int, flip: int) -> None:
    path = write_year(tmp_path_factory.mktemp("flipped"), images=GOOD_IMAGES[:2], **CONTIGUOUS)
    content = bytearray(path.read_bytes())
    content[at] ^= flip
    path.write_bytes(content)
    try:
        year = open_year(path)
        read_images(year, 0, min(year.images, 2))
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most flips raise nothing


FILTERS = [
    (h5py.h5z.FILTER_SHUFFLE, (4,)),
    (h5py.h5z.FILTER_DEFLATE, (4,)),
    (h5py.h5z.FILTER_LZF, ()),
    (h5py.h5z.FILTER_FLETCHER32, ()),
]
SIDES = st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 30), st.integers(1, 40))


@given(
    chunk=st.none() | SIDES,
    filters=st.lists(st.sampled_from(FILTERS), unique_by=lambda one: one[0]),
    options=st.sampled_from([0, 2]),
    versions=st.sampled_from([("earliest", "latest"), ("v110", "latest"), ("latest", "latest")]),
    written=st.integers(0, 3),
)
def test_whatever_hdf5_can_write_is_read_as_hdf5_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    chunk: tuple[int, ...] | None,
    filters: Any,
    options: int,
    versions: tuple[str, str],
    written: int,
) -> None:
    path = tmp_path_factory.mktemp("created") / "climo_1979.h5"
    how: dict[str, Any] = {"filters": filters, "options": options} if chunk else {}
    create(path, chunk, versions=versions, written=written, **how)
    with h5py.File(path) as file:
        by_hdf5 = file["images"][()]
    year = open_year(path)
    assert read_images(year, 0, 3).tobytes() == by_hdf5.tobytes()
    assert all(not part.faults for part in scan_years([year], 1))
    path.unlink()


@pytest.mark.parametrize(("option", "count"), [(0, 0), (2, 2)], ids=["known", "unknown"])
def test_a_chunk_that_the_core_reads_otherwise_than_hdf5_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: int, count: int
) -> None:
    """As if this option were not known yet: chunks at the lower edge are stored without shuffling."""
    path = tmp_path / "climo_1979.h5"
    create(path, (1, 16, 13, 36), FILTERS[:1], options=option)
    monkeypatch.setattr("hpcai500.data.climate.years._chunk_options", lambda dataset: 0)
    (part,) = scan_years([open_year(path)], 1)
    assert [fault.chunk for fault in part.faults] == [(0, 0, 1, 0)] * (count // 2)
    assert all("other values than HDF5" in fault.reason for fault in part.faults)
    assert list(values.unlike_hdf5(open_year(path))) == list(part.faults)


def test_boxes_behind_a_filter_that_is_not_installed_name_it(tmp_path: Path) -> None:
    path = write_year(tmp_path)
    with h5py.File(path, "r+") as file:
        del file["boxes"]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(GOOD_BOXES.shape)
        properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
        space = h5py.h5s.create_simple(GOOD_BOXES.shape)
        made = h5py.h5d.create(file.id, b"boxes", h5py.h5t.STD_I32LE, space, properties)
        made.write_direct_chunk((0, 0, 0), GOOD_BOXES.tobytes(), 0)
    with pytest.raises(DataError, match="dataset boxes: written with the HDF5 filter 32015, which is not installed"):
        open_year(path)


CHECKSUMMED = {"chunks": (4, 2, 12, 36), "shuffle": True, "fletcher32": True}


@pytest.mark.parametrize(
    ("layout", "chunk", "at", "length", "message"),
    [
        (SHIPPED, 64 * 1 + 16 * 2 + 4, 20, 8, "does not inflate: "),
        (LAYOUTS["shuffled"], 5, 0, 8, "does not inflate: incorrect header check"),
        (CHECKSUMMED, 5, 900, 8, r"its checksum \(fletcher32\) does not match"),
    ],
    ids=["shipped", "shuffled", "checksummed"],
)
def test_a_corrupt_chunk_is_named_with_its_images_and_channels(
    tmp_path: Path, layout: Any, chunk: int, at: int, length: int, message: str
) -> None:
    path = write_year(tmp_path, **layout)
    damage_chunk(path, chunk, at, length)
    year = open_year(path)
    with pytest.raises(UnreadableImagesError, match=message) as error:
        read_images(year, 0, year.images)
    (fault,) = error.value.faults
    cell = np.unravel_index(chunk, [-(-a // b) for a, b in zip(year.storage.shape, layout["chunks"], strict=True)])
    assert fault.chunk == tuple(int(place) for place in cell)
    first = fault.chunk[0] * layout["chunks"][0]
    assert fault.images == range(first, min(first + layout["chunks"][0], 12))
    assert fault.channels.start == fault.chunk[1] * layout["chunks"][1]
    assert f"{path}: dataset images, images {first} to " in str(error.value)


# --- boxes


def test_rows_are_told_apart_by_what_can_be_done_with_them() -> None:
    rows = {
        (-1, -1, -1, -1, -1): RowKind.UNUSED,
        (0, 0, 24, 36, 0): RowKind.GOOD,
        (-2, 0, 5, 5, 3): RowKind.CLIPPED,
        (20, 30, 25, 36, 1): RowKind.CLIPPED,
        (24, 3, 30, 9, 1): RowKind.OUTSIDE,
        (1, 40, 5, 50, 1): RowKind.OUTSIDE,
        (5, 5, 5, 9, 2): RowKind.EMPTY,
        (9, 5, 5, 9, 2): RowKind.EMPTY,
        (1, 1, 5, 5, 4): RowKind.UNKNOWN_CLASS,
        (1, 1, 5, 5, -1): RowKind.PARTLY_UNUSED,
    }
    boxes = np.array([list(rows)], np.int32)
    kinds = row_kinds(boxes, 24, 36)
    assert [RowKind(kind) for kind in kinds[0]] == list(rows.values())
    assert usable(boxes, 24, 36)[0].tolist() == [kind in (RowKind.GOOD, RowKind.CLIPPED) for kind in rows.values()]
    assert class_counts(boxes, kinds) == (1, 3, 2, 1)
    odd = {found.kind: (found.rows, found.first_row) for found in odd_rows(boxes, kinds)}
    assert odd == {
        RowKind.CLIPPED: (2, 2),
        RowKind.OUTSIDE: (2, 4),
        RowKind.EMPTY: (2, 6),
        RowKind.UNKNOWN_CLASS: (1, 8),
        RowKind.PARTLY_UNUSED: (1, 9),
    }


def test_box_sizes_are_quantiles_of_each_class() -> None:
    rows = np.array([(0, 0, 2 * n, n, 1) for n in range(1, 22)], np.int32)
    depression, cyclone, *_ = box_sizes(rows)
    assert depression.height is None
    assert cyclone.height == (4.0, 22.0, 40.0)
    assert cyclone.width == (2.0, 11.0, 20.0)


@given(seed=st.integers(0, 2**32 - 1), images=st.integers(1, 8))
def test_swapped_boxes_are_recognised_and_converted_back(seed: int, images: int) -> None:
    boxes = boxes_of(images, seed=seed)
    other = swapped(boxes)
    assert variant_of(boxes, HEIGHT, WIDTH).name == "shipped"
    found = variant_of(other, HEIGHT, WIDTH)
    assert found.name == "swapped"
    assert "first or third column" in found.evidence
    assert "count from 1" in found.evidence
    assert np.array_equal(as_shipped(other), boxes)


@pytest.mark.parametrize(
    ("rows", "height", "expected"),
    [
        ([], 24, "shipped"),
        ([(1, 2, 3, 4, 2)], 24, "shipped"),  # tells nothing
        ([(1, 30, 3, 34, 2)], 24, "shipped"),  # x in its place, classes tell nothing
        ([(30, 1, 34, 3, 0)], 24, "ambiguous"),  # x and y swapped, but a class 0
        ([(30, 1, 34, 3, 2)], 24, "ambiguous"),  # x and y swapped, classes tell nothing
        ([(1, 2, 3, 4, 4), (1, 2, 3, 4, 1)], 24, "ambiguous"),  # classes from 1, coordinates tell nothing
        ([(1, 30, 3, 34, 4)], 24, "ambiguous"),  # classes from 1, x and y in their places
        ([(1, 2, 3, 4, 4), (1, 2, 3, 4, 0)], 24, "shipped"),  # 0 and 4: a wrong class
        ([(30, 1, 34, 3, 4)], 36, "ambiguous"),  # no coordinate tells on a square
    ],
)
def test_evidence_that_contradicts_itself_is_ambiguous(rows: list[tuple[int, ...]], height: int, expected: str) -> None:
    table = np.full((1, 15, 5), -1, np.int32)
    table[0, : len(rows)] = np.array(rows).reshape(-1, 5)
    assert variant_of(table, height, 36).name == expected


def test_a_few_boxes_beyond_the_edge_do_not_make_a_variant() -> None:
    boxes = boxes_of(60, seed=3)
    boxes[5, 0] = (20, 3, 27, 9, 1)
    assert variant_of(boxes, HEIGHT, WIDTH).name == "shipped"


# --- where a dataset lies


def described(path: Path) -> Storage:
    with h5py.File(path) as file:
        return storage_of(file["images"])


@pytest.mark.parametrize("userblock", [0, 512, 4096])
def test_addresses_count_from_the_beginning_of_the_file(tmp_path: Path, userblock: int) -> None:
    images = fields()
    whole = write_file(tmp_path / "whole.h5", images, userblock=userblock)
    storage = described(whole)
    data = whole.read_bytes()
    assert storage.offset is not None
    assert data[storage.offset : storage.offset + images.nbytes] == images.tobytes()
    assert (storage.kind, storage.stored_bytes, storage.addresses.size) == ("contiguous", images.nbytes, 0)

    chunked = write_file(tmp_path / "chunked.h5", images, userblock=userblock, chunks=(1, 1, 24, 36))
    storage = described(chunked)
    data = chunked.read_bytes()
    for plane, address, size in zip(images.reshape(-1, 24, 36), storage.addresses, storage.sizes, strict=True):
        assert data[int(address) : int(address + size)] == plane.tobytes()
    assert (storage.kind, storage.offset, storage.stored_bytes) == ("chunked", None, images.nbytes)


def test_filters_windows_and_pieces_are_told(tmp_path: Path) -> None:
    told = {}
    for name in ("contiguous", "image-chunks", "shipped", "partial", "shuffle-lzf-fletcher"):
        storage = described(write_file(tmp_path / f"{name}.h5", fields(), **STORED[name]))
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
    storage = described(write_file(tmp_path / "year.h5", images, keep_absent=True, chunks=(2, 5, 24, 36)))
    assert (storage.addresses == ABSENT).tolist() == [False, True, False, False]
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_dataset("images", SHAPE, "<f4")
    assert described(tmp_path / "empty.h5").offset is None


@pytest.mark.parametrize("layout", ["contiguous", "shipped"])
def test_another_fill_value_than_zero_matters_only_where_it_is_seen(tmp_path: Path, layout: str) -> None:
    with h5py.File(tmp_path / "year.h5", "w") as file:
        dataset = file.create_dataset("images", SHAPE, "<f4", fillvalue=-999.0, **STORED[layout])
        # HDF5 may write the fill value itself; chunks wait until they are needed.
        if layout == "shipped":
            told = r"year\.h5: dataset images: unwritten parts have the fill value -999"
            with pytest.raises(DataError, match=told):
                storage_of(dataset)
        dataset[:] = fields()
        assert storage_of(dataset).filters == (("deflate",) if layout == "shipped" else ())


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
    ids=["compact", "external", "unknown filter"],
)
def test_what_has_no_addresses_or_an_unknown_filter_is_refused(tmp_path: Path, create: Any, message: str) -> None:
    with h5py.File(tmp_path / "year.h5", "w") as file:
        create(file)
        with pytest.raises(DataError, match=message) as caught:
            storage_of(file["images"])
    assert str(caught.value).startswith(f"{tmp_path / 'year.h5'}: dataset images: ")
    assert "h5repack" in str(caught.value)


# --- truth, as boxes follow an image around the globe

AROUND = 100


def truth(*boxes: tuple[float, float, float, float]) -> Truth:
    return Truth(np.array(boxes, np.float32).reshape(-1, 4), np.arange(1, len(boxes) + 1))


@pytest.mark.parametrize(
    ("rows", "boxes", "labels"),
    [
        ([[10, 20, 30, 60, 0], [1, 2, 3, 4, 3], [-1] * 5], [[20, 10, 60, 30], [2, 1, 4, 3]], [1, 4]),
        # Inverted, outside, and over the edges.
        ([[30, 20, 10, 60, 0], [10, 120, 30, 140, 1], [-5, 90, 20, 110, 2]], [[90, 0, 100, 20]], [3]),
    ],
    ids=["rows become corners and labels from one", "no boxes are left out and edges cut"],
)
def test_rows_become_truth(rows: list[list[int]], boxes: list[list[float]], labels: list[int]) -> None:
    (found,) = truths_of(np.array([rows], np.int32), 100, 100)
    assert (found.boxes.tolist(), found.labels.tolist()) == (boxes, labels)


@pytest.mark.parametrize(
    ("boxes", "roll", "width", "expected", "labels"),
    [
        ([(10, 5, 20, 9)], 30, AROUND, [[40, 5, 50, 9]], [1]),
        ([(80, 0, 100, 9)], 10, AROUND, [[90, 0, 100, 9], [0, 0, 10, 9]], [1, 1]),
        ([(80, 0, 100, 9)], 4, AROUND, [[84, 0, 100, 9]], [1]),
        ([(10, 0, 30, 9), (60, 0, 90, 9), (45, 0, 65, 9)], 0, 50, [[10, 0, 30, 9], [45, 0, 50, 9]], [1, 3]),
        ([(10, 5, 20, 9), (70, 0, 99, 4)], AROUND, AROUND, [[10, 5, 20, 9], [70, 0, 99, 4]], [1, 2]),
    ],
    ids=["a roll moves east", "over the edge two", "a sliver is none", "a crop cuts", "a whole turn changes nothing"],
)
def test_boxes_move_with_their_image(boxes: Any, roll: int, width: int, expected: Any, labels: list[int]) -> None:
    found = moved(truth(*boxes), roll, AROUND, width)
    assert (found.boxes.tolist(), found.labels.tolist()) == (expected, labels)


@given(
    st.integers(0, AROUND - 1),
    st.lists(st.tuples(st.integers(0, 79), st.integers(1, 20)), min_size=1, max_size=10),
)
def test_boxes_mark_the_pixels_that_moved_with_them(roll: int, spans: list[tuple[int, int]]) -> None:
    """Each box marks its columns of a row; rolling the row and rolling the box mark the same, but for dropped parts."""
    for start, length in spans:
        row = np.zeros(AROUND)
        row[start : start + length] = 1
        marked = np.zeros(AROUND)
        for x1, _, x2, _ in moved(truth((start, 0, start + length, 1)), roll, AROUND, AROUND).boxes.astype(int):
            marked[x1:x2] = 1
        missing = np.roll(row, roll) - marked
        assert missing.min() >= 0
        assert missing.sum() < max(0.25 * length, 1)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 79), st.integers(1, 20)), max_size=6), max_size=3),
    st.booleans(),
)
def test_no_roll_leaves_more_boxes_than_is_said(images: list[list[tuple[int, int]]], rolled: bool) -> None:
    truths = [truth(*((start, 0, start + length, 9) for start, length in spans)) for spans in images]
    rolls = range(AROUND) if rolled else range(1)
    found = [len(moved(one, roll, AROUND, AROUND).labels) for one in truths for roll in rolls]
    said = most_boxes(truths, rolled=rolled)
    assert max(found, default=0) <= said <= 2 * max(map(len, images), default=0)
    if not rolled:
        assert said == max(found, default=0)


def test_as_many_boxes_are_said_as_a_roll_that_cuts_them_leaves() -> None:
    one = truth((10, 0, 30, 9), (20, 0, 40, 9), (30, 0, 50, 9), (60, 0, 70, 9))
    assert most_boxes([one], rolled=True) == len(moved(one, AROUND - 25, AROUND, AROUND).labels) == 6
    assert most_boxes([one], rolled=False) == 4


# --- anchors


def clusters(*centres: tuple[float, float], count: int = 200, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.concatenate([np.array(centre) * random.uniform(0.9, 1.1, (count, 2)) for centre in centres])


def test_shapes_that_occur_are_found_and_dealt_by_size() -> None:
    fit = fit_anchors(clusters((100, 40), (10, 12), (30, 30), (200, 300)), levels=2, per_level=2)
    assert fit.boxes == 800
    assert fit.mean_iou > 0.88
    flat = [shape for level in fit.anchors for shape in level]
    for (height, width), wanted in zip(flat, [(10, 12), (30, 30), (100, 40), (200, 300)], strict=True):
        assert (height, width) == pytest.approx(wanted, rel=0.06)


def test_a_fit_is_the_same_every_time_and_better_with_more_anchors() -> None:
    shapes = np.random.default_rng(1).uniform(8, 200, (500, 2))
    assert fit_anchors(shapes, 2, 3) == fit_anchors(shapes, 2, 3)
    fits = [fit_anchors(shapes, levels, 2).mean_iou for levels in (1, 2, 4, 8)]
    assert fits == sorted(fits)


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    shapes, labels = np.repeat([[10.0, 10], [90, 40]], [90, 30], axis=0), np.repeat([1, 4], [90, 30])
    assert np.unique(balanced(shapes, labels), axis=0, return_counts=True)[1].tolist() == [90, 90]


def test_too_few_shapes_are_refused() -> None:
    with pytest.raises(DataError, match="cannot fit 6 anchors to 2 different box shapes: take more years"):
        fit_anchors(np.array([[10.0, 10], [20, 20], [10, 10]]), 2, 3)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=6, max_size=40, unique=True))
def test_anchors_are_whole_pixels_inside_the_range_of_the_boxes(shapes: list[tuple[int, int]]) -> None:
    fit = fit_anchors(np.array(shapes, float), 2, 2)
    flat = np.array([shape for level in fit.anchors for shape in level])
    assert (flat == flat.round()).all()
    assert (flat >= np.array(shapes).min(axis=0)).all()
    assert (flat <= np.array(shapes).max(axis=0)).all()
    areas = flat.prod(axis=1)
    assert (np.diff(areas) >= 0).all()


def test_a_set_without_boxes_is_one_line(tmp_path: Path, mistake: Any) -> None:
    write_year(tmp_path, boxes=np.full((12, 15, 5), -1, np.int32))
    told = "cannot fit 15 anchors to 0 different box shapes: take more years, or fewer anchors"
    assert mistake("anchors", "ewa", tmp_path) == f"hpcai500: error: {told}\n"


def test_the_line_is_one_of_a_recipe(weather: Path, tmp_path: Path, call: Any) -> None:
    line, _ = call("anchors", "ewa", weather, "--levels", "4", "--per-level", "2")
    anchors = tomllib.loads(line)["anchors"]
    assert [len(level) for level in anchors] == [2, 2, 2, 2]
    recipe = tmp_path / "mine.toml"
    recipe.write_text('benchmark = "ewa"\nedition = "v2.0"\n[workload]\ndepths = [1, 1, 1]\n' + line)
    assert load_recipe(recipe).workload.model_dump()["anchors"] == tuple(
        tuple(tuple(map(float, shape)) for shape in level) for level in anchors
    )


def test_only_the_years_asked_for_are_fitted_to(weather: Path, call: Any) -> None:
    one, other, both = (
        json.loads(call("anchors", "ewa", weather, "--years", years, "--levels", "2", "--json")[0])["boxes"]
        for years in ("1979", "1980", "1979-1980")
    )
    assert max(one, other) < both
