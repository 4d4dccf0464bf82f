"""A year is opened when it follows the format; whatever else it is, one line says what is wrong and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_years import (
    CONTIGUOUS,
    HEIGHT,
    LAYOUTS,
    SHIPPED,
    WIDTH,
    boxes_of,
    damage_chunk,
    images_of,
    swapped,
    write_year,
)

from hpcai500.data.climate.values import UnreadableImagesError, channel_blocks, ranges, read_images
from hpcai500.data.climate.years import (
    RowKind,
    as_shipped,
    box_sizes,
    class_counts,
    odd_rows,
    open_year,
    row_kinds,
    usable,
    variant_of,
)
from hpcai500.errors import DataError


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


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def rewritten(path: Path, **datasets: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file[name] = data


GOOD_IMAGES, GOOD_BOXES = images_of(3), boxes_of(3)
WRONG = {
    "text": (lambda path: path.write_bytes(b"year 1979"), r": not an HDF5 file"),
    "empty": (lambda path: path.write_bytes(b""), r": empty file; copy it again"),
    "truncated": (lambda path: cut(path, 5000), r": truncated: 5000 bytes of the \d+ that its HDF5 header states"),
    "absent": (lambda path: path.unlink(), r": unreadable: No such file"),
    "no images": (lambda path: rewritten(path, boxes=GOOD_BOXES), r": dataset images: missing; the file holds boxes"),
    "no boxes": (lambda path: rewritten(path, images=GOOD_IMAGES), r": dataset boxes: missing; the file holds images"),
    "float64": (
        lambda path: rewritten(path, images=GOOD_IMAGES.astype("f8"), boxes=GOOD_BOXES),
        r": dataset images: type float64 \(<f8\), expected float32 \(<f4\)",
    ),
    "big-endian": (
        lambda path: rewritten(path, images=GOOD_IMAGES.astype(">f4"), boxes=GOOD_BOXES),
        r": dataset images: type >f4 \(>f4\), expected float32",
    ),
    "long boxes": (
        lambda path: rewritten(path, images=GOOD_IMAGES, boxes=GOOD_BOXES.astype("i8")),
        r": dataset boxes: type int64 \(<i8\), expected int32 \(<i4\)",
    ),
    "15 channels": (
        lambda path: rewritten(path, images=GOOD_IMAGES[:, :15], boxes=GOOD_BOXES),
        r": dataset images: shape \(3, 15, 24, 36\), expected \(images, 16, height, width\)",
    ),
    "flat images": (
        lambda path: rewritten(path, images=GOOD_IMAGES[0], boxes=GOOD_BOXES),
        r": dataset images: shape \(16, 24, 36\), expected",
    ),
    "boxes of 4": (
        lambda path: rewritten(path, images=GOOD_IMAGES, boxes=GOOD_BOXES[..., :4]),
        r": dataset boxes: shape \(3, 15, 4\), expected \(images, 15, 5\)",
    ),
    "fewer boxes": (
        lambda path: rewritten(path, images=GOOD_IMAGES, boxes=GOOD_BOXES[:2]),
        r": dataset boxes: for 2 images, but there are 3",
    ),
    "no image": (
        lambda path: rewritten(path, images=GOOD_IMAGES[:0], boxes=GOOD_BOXES[:0]),
        r": dataset images: empty, of shape \(0, 16, 24, 36\)",
    ),
    "a group": (lambda path: rewritten(path, **{"images/a": 1, "boxes": GOOD_BOXES}), r": images is a group"),
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


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    path = write_year(tmp_path)
    with h5py.File(path, "r+") as file:
        del file["boxes"]
        file["boxes"] = h5py.ExternalLink("gone.h5", "/boxes")
    with pytest.raises(DataError, match=f"^{path}: dataset boxes: a link that leads nowhere; put the dataset itself"):
        open_year(path)


def test_a_link_within_the_file_is_followed(tmp_path: Path) -> None:
    path = write_year(tmp_path)
    with h5py.File(path, "r+") as file:
        file.move("images", "values")
        file["images"] = h5py.SoftLink("/values")
    assert np.array_equal(read_images(open_year(path), 0, 12), images_of(12, seed=1979))


def test_storage_that_contradicts_the_file_is_ignored(tmp_path: Path) -> None:
    path = write_year(tmp_path, **SHIPPED)
    true = open_year(path).storage
    other = {
        "shape": (11, 16, 24, 36),
        "dtype": ">f4",
        "chunk": (5, 1, 6, 12),
        "filters": ("shuffle", "deflate"),
        "addresses": true.addresses[:-1],
        "masks": true.masks[:0],
    }
    for name, value in other.items():
        assert vars(open_year(path, replace(true, **{name: value})).storage)[name] is not value
    assert open_year(path, true).storage is true


def test_what_only_the_cores_reader_cannot_read_is_told_by_its_place(tmp_path: Path) -> None:
    year = open_year(write_year(tmp_path))
    beyond = replace(year, storage=replace(year.storage, offset=10**9))
    with pytest.raises(DataError) as caught:
        read_images(beyond, 2, 3, channels=slice(1, 2))
    assert str(caught.value).startswith(f"{year.path}: dataset images, image 2, channel PS: truncated: the file ends")
    assert str(caught.value).endswith(f"`hpcai500 data check ewa {tmp_path}` to find all such files")


def test_a_misnamed_file_is_told_what_its_name_must_be(tmp_path: Path) -> None:
    path = write_year(tmp_path).rename(tmp_path / "1979.h5")
    with pytest.raises(DataError, match=r"named climo_1979\.h5"):
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


@pytest.mark.parametrize(
    ("layout", "chunk", "at", "length", "message"),
    [
        (SHIPPED, 64 * 1 + 16 * 2 + 4, 20, 8, "does not inflate: "),
        ("shuffled", 5, 0, 8, "does not inflate: incorrect header check"),
        ("checksummed", 5, 900, 8, r"its checksum \(fletcher32\) does not match"),
    ],
)
def test_a_corrupt_chunk_is_named_with_its_images_and_channels(
    tmp_path: Path, layout: Any, chunk: int, at: int, length: int, message: str
) -> None:
    checksummed = {"chunks": (4, 2, 12, 36), "shuffle": True, "fletcher32": True}
    options = {"checksummed": checksummed}.get(layout, LAYOUTS.get(layout)) if isinstance(layout, str) else layout
    path = write_year(tmp_path, **options)
    damage_chunk(path, chunk, at, length)
    year = open_year(path)
    with pytest.raises(UnreadableImagesError, match=message) as error:
        read_images(year, 0, year.images)
    fault = error.value.faults[0]
    cell = np.unravel_index(chunk, [-(-a // b) for a, b in zip(year.storage.shape, options["chunks"], strict=True)])
    assert len(error.value.faults) == 1
    assert fault.chunk == tuple(int(place) for place in cell)
    first = fault.chunk[0] * options["chunks"][0]
    assert fault.images == range(first, min(first + options["chunks"][0], 12))
    assert fault.channels.start == fault.chunk[1] * options["chunks"][1]
    assert f"{path}: dataset images, images {first} to " in str(error.value)


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


def as_rows(*rows: tuple[int, ...]) -> np.ndarray[Any, Any]:
    table = np.full((1, 15, 5), -1, np.int32)
    for number, row in enumerate(rows):
        table[0, number] = row
    return table


@pytest.mark.parametrize(
    ("rows", "grid", "expected"),
    [
        ((), (24, 36), "shipped"),
        (((1, 2, 3, 4, 2),), (24, 36), "shipped"),  # tells nothing
        (((1, 30, 3, 34, 2),), (24, 36), "shipped"),  # x in its place, classes tell nothing
        (((30, 1, 34, 3, 0),), (24, 36), "ambiguous"),  # x and y swapped, but a class 0
        (((30, 1, 34, 3, 2),), (24, 36), "ambiguous"),  # x and y swapped, classes tell nothing
        (((1, 2, 3, 4, 4), (1, 2, 3, 4, 1)), (24, 36), "ambiguous"),  # classes from 1, coordinates tell nothing
        (((1, 30, 3, 34, 4),), (24, 36), "ambiguous"),  # classes from 1, x and y in their places
        (((1, 2, 3, 4, 4), (1, 2, 3, 4, 0)), (24, 36), "shipped"),  # 0 and 4: a wrong class
        (((30, 1, 34, 3, 4),), (36, 36), "ambiguous"),  # no coordinate tells on a square
    ],
)
def test_evidence_that_contradicts_itself_is_ambiguous(
    rows: tuple[tuple[int, ...], ...], grid: tuple[int, int], expected: str
) -> None:
    assert variant_of(as_rows(*rows), *grid).name == expected


def test_a_few_boxes_beyond_the_edge_do_not_make_a_variant() -> None:
    boxes = boxes_of(60, seed=3)
    boxes[5, 0] = (20, 3, 27, 9, 1)
    assert variant_of(boxes, HEIGHT, WIDTH).name == "shipped"
