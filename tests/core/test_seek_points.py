"""Seek points: where they are the image is made faster, and it is the same image, whatever they say."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.instruction_sets import on_each
from jpeg_files import jpeg, photograph, write_jpeg
from numpy.typing import NDArray

from hpcai500 import _core

PICTURE = photograph(330, 210)
NOISE = np.random.default_rng(5).integers(0, 256, (210, 330, 3), dtype=np.uint8)
FILES: dict[str, bytes] = {
    "420": jpeg(PICTURE, subsampling="4:2:0", quality=95),
    "422": jpeg(PICTURE, subsampling="4:2:2", quality=95),
    "444": jpeg(PICTURE, subsampling="4:4:4", quality=95),
    "grey": jpeg(PICTURE, mode="L", quality=95),
    "optimised": jpeg(PICTURE, quality=90, optimize=True),
    # Every 128th byte is one that is stuffed.
    "noise": jpeg(NOISE, quality=98),
    "sparse": jpeg(PICTURE, quality=5),
    "restarts after each": jpeg(PICTURE, quality=95, restart_marker_blocks=1),
    "restarts after 4": jpeg(PICTURE, quality=95, restart_marker_blocks=4),
    "restarts after 7": jpeg(PICTURE, quality=95, restart_marker_blocks=7),
    "restarts after a row": jpeg(PICTURE, quality=95, restart_marker_rows=1),
    "codes of one length": write_jpeg(PICTURE[:70, :120], [(2, 2), (1, 1), (1, 1)], restart_interval=5),
}
SPEC = _core.DecodeSpec(size=32, dtype="uint8", layout="nhwc")
OTHERS: dict[str, bytes] = {
    "progressive": jpeg(PICTURE, progressive=True),
    "cmyk": jpeg(PICTURE, mode="CMYK"),
    "4:1:1": write_jpeg(PICTURE[:32, :64], [(4, 1), (1, 1), (1, 1)]),
    "truncated": FILES["420"][:-400],
    "no JPEG": b"GIF89a and so on",
    "empty": b"",
}
HEADER, POINT = 4, 10

Points = list[tuple[int, ...]]


def boxes(data: bytes, count: int) -> Iterator[dict[str, Any]]:
    """Wide ones, narrow ones, single pixels, all of it."""
    width, height, *_ = _core.probe_jpeg(data)
    rng = np.random.default_rng(len(data))
    yield {"x": 0, "y": 0, "width": width, "height": height, "flip": False}
    yield {"x": width - 1, "y": height - 1, "width": 1, "height": 1, "flip": False}
    for _ in range(count):
        left, right = np.sort(rng.choice(width + 1, 2, replace=False)).tolist()
        top, bottom = np.sort(rng.choice(height + 1, 2, replace=False)).tolist()
        yield {"x": left, "y": top, "width": right - left, "height": bottom - top, "flip": bool(rng.integers(2))}


def decode(data: bytes, box: dict[str, Any], index: _core.SeekIndex | None = None) -> NDArray[np.uint8]:
    out = np.zeros(SPEC.shape, np.uint8)
    assert _core.decode_box(data, SPEC, out, **box, index=index) == 0
    return out


def seek(data: bytes, box: dict[str, Any], index: _core.SeekIndex) -> str:
    """What became of the index's points, which never change the image."""
    found, said = decode(data, box, index), _core.last_seek()
    np.testing.assert_array_equal(found, decode(data, box), err_msg=str(box))
    assert _core.last_seek() == "without"
    return said


def make_index(path: Path, points: dict[bytes, bytes | None]) -> _core.SeekIndex:
    """An index with these points, true or not, with right checksums."""
    writer = _core.SeekIndexWriter(str(path))
    for data, packed in points.items():
        writer.add(*_core.seek_key(data), packed)
    writer.finish()
    return _core.SeekIndex(str(path))


def points_of(data: bytes) -> bytes:
    packed = _core.seek_points(data)
    assert packed is not None
    return packed


def unpack(packed: bytes) -> tuple[int, Points]:
    """Interval, and (bit, three predictors) of each point."""
    return struct.unpack("<I", packed[:HEADER])[0], list(struct.iter_unpack("<I3h", packed[HEADER:]))


def pack(interval: int, points: Points) -> bytes:
    return struct.pack("<I", interval) + b"".join(struct.pack("<I3h", *point) for point in points)


@pytest.mark.parametrize("kind", FILES)
def test_an_image_is_the_same_with_points(kind: str, tmp_path: Path) -> None:
    data = FILES[kind]
    index = make_index(tmp_path / "index", {data: points_of(data)})
    assert {seek(data, box, index) for box in boxes(data, 60)} == {"used"}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("mode", ["random", "centre"])
def test_a_sample_is_the_same_with_points(kind: str, mode: Any, tmp_path: Path) -> None:
    data = FILES[kind]
    index = make_index(tmp_path / "index", {data: points_of(data)})
    spec = _core.DecodeSpec(size=40, mode=mode, resize_shorter=46)
    for epoch in range(10):
        made = [np.zeros(spec.shape, np.float32) for _ in range(2)]
        for out, used in zip(made, (None, index), strict=True):
            _core.decode_crop(data, spec, out, seed=1, epoch=epoch, sample=2, index=used)
        np.testing.assert_array_equal(*made)


SCRIPT = """
import hashlib, sys
from pathlib import Path
from test_seek_points import FILES, boxes, make_index, points_of, seek

digest = hashlib.sha256()
(folder := Path(sys.argv[1])).mkdir()
for number, data in enumerate(FILES.values()):
    index = make_index(folder / str(number), {data: points_of(data)})
    digest.update(points_of(data))
    assert {seek(data, box, index) for box in boxes(data, 10)} == {"used"}
print(digest.hexdigest())
"""


def test_every_instruction_set_finds_and_uses_the_same_points(tmp_path: Path) -> None:
    assert len(set(on_each(SCRIPT, tmp_path / "{isa}").values())) == 1


@pytest.mark.parametrize("kind", FILES)
def test_points_take_a_25th_of_the_file_at_most_and_are_4_mcus_apart_at_least(kind: str) -> None:
    data = FILES[kind]
    interval, points = unpack(points_of(data))
    assert interval >= 4
    # With the checksum and the table's entry.
    assert len(points_of(data)) + 4 + 20 <= len(data) * 0.04
    assert len(points) > 1
    assert points == sorted(points)


WITHOUT_A_POINT_WORTH_KEEPING: dict[str, bytes] = {
    "tiny": jpeg(PICTURE[:16, :16], quality=10),
    "of four MCUs": jpeg(NOISE[:32, :32], quality=98),
    "of 300 bytes": write_jpeg(np.full((80, 80, 1), 128, np.uint8), [(1, 1)]),
    # 330 x 210 pixels are 21 x 14 MCUs.
    "with one restart interval": jpeg(PICTURE, quality=95, restart_marker_blocks=21 * 14),
}


@pytest.mark.parametrize("kind", WITHOUT_A_POINT_WORTH_KEEPING)
def test_a_file_whose_only_point_would_be_its_end_is_known_to_have_none(kind: str, tmp_path: Path) -> None:
    data = WITHOUT_A_POINT_WORTH_KEEPING[kind]
    assert points_of(data) == b""
    index = make_index(tmp_path / "index", {data: b""})
    assert index.find(data) == b""
    assert {seek(data, box, index) for box in boxes(data, 5)} == {"without"}


@pytest.mark.parametrize("kind", WITHOUT_A_POINT_WORTH_KEEPING)
def test_and_where_it_is_damaged_it_is_libjpegs(kind: str) -> None:
    assert _core.seek_points(WITHOUT_A_POINT_WORTH_KEEPING[kind][:-4]) is None


def test_an_index_that_keeps_such_a_point_serves_as_well(tmp_path: Path) -> None:
    """As indexes were once written."""
    data = FILES["444"]
    interval, points = unpack(points_of(data))
    mcus = -(-330 // 8) * -(-210 // 8)
    last = pack(mcus + interval, points[-1:])
    index = make_index(tmp_path / "index", {data: last})
    assert {seek(data, box, index) for box in boxes(data, 20)} == {"used"}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_file_that_our_own_decoder_does_not_take_whole_has_none(kind: str) -> None:
    assert _core.seek_points(OTHERS[kind]) is None


def test_points_are_of_the_bytes_alone() -> None:
    assert points_of(FILES["420"]) == points_of(FILES["420"])
    assert _core.seek_key(FILES["420"]) == (zlib.crc32(FILES["420"]), len(FILES["420"]))


def shifted(by: int) -> Callable[[Points, int], None]:
    def change(points: Points, number: int) -> None:
        points[number] = (max(0, points[number][0] + by), *points[number][1:])

    return change


def other_predictor(component: int) -> Callable[[Points, int], None]:
    def change(points: Points, number: int) -> None:
        point = list(points[number])
        point[1 + component] ^= 1
        points[number] = tuple(point)

    return change


FALSE_POINTS: dict[str, Callable[[Points, int], None]] = {
    "a bit late": shifted(1),
    "a bit early": shifted(-1),
    "a byte late": shifted(8),
    "far behind the file": lambda points, number: points.__setitem__(number, (2**32 - 1, 0, 0, 0)),
    "at the beginning": lambda points, number: points.__setitem__(number, (0, 0, 0, 0)),
    "other luma": other_predictor(0),
    "other chroma": other_predictor(2),
    "least predictors": lambda points, number: points.__setitem__(number, (points[number][0], *[-32768] * 3)),
    "another point": lambda points, number: points.__setitem__(number, points[number - 1]),
}


@pytest.mark.parametrize("kind", ["420", "444", "restarts after 4", "restarts after 7", "codes of one length"])
@pytest.mark.parametrize("change", FALSE_POINTS.values(), ids=FALSE_POINTS)
def test_a_false_point_never_shows_another_image(
    kind: str, change: Callable[[Points, int], None], tmp_path: Path
) -> None:
    data = FILES[kind]
    interval, points = unpack(points_of(data))
    forged = list(points)
    number = len(points) // 2
    change(forged, number)
    assert forged != points
    index = make_index(tmp_path / "index", {data: pack(interval, forged)})
    # Most crops do not meet this one point, and some do.
    assert {seek(data, box, index) for box in boxes(data, 120)} == {"used", "false"}


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\1",
        b"\0" * 4,
        struct.pack("<I", 4),
        struct.pack("<I", 2**32 - 1) + b"\0" * POINT,
        struct.pack("<I", 2**31 - 1) + b"\0" * POINT,
        points_of(FILES["420"])[:-1],
        points_of(FILES["420"])[:-POINT],
        points_of(FILES["420"]) + b"\0" * POINT,
        points_of(FILES["422"]),
    ],
    ids=lambda packed: f"{len(packed)} bytes",
)
def test_points_that_are_not_of_this_scan_are_left_alone(packed: bytes, tmp_path: Path) -> None:
    data = FILES["420"]
    index = make_index(tmp_path / "index", {data: packed})
    assert {seek(data, box, index) for box in boxes(data, 5)} == {"false" if packed else "without"}


@pytest.mark.parametrize("kind", ["420", "grey", "restarts after 7"])
def test_points_at_random_never_lead_out_of_the_file_nor_to_another_image(kind: str, tmp_path: Path) -> None:
    data = FILES[kind]
    interval, points = unpack(points_of(data))
    rng = np.random.default_rng(3)
    for number in range(60):
        bits = np.sort(rng.integers(0, 8 * len(data), len(points)))
        forged = [(int(bit), *rng.integers(-900, 900, 3).tolist()) for bit in bits]
        index = make_index(tmp_path / str(number), {data: pack(interval, forged)})
        for box in boxes(data, 3):
            seek(data, box, index)


def test_points_of_a_kind_that_has_none_are_not_asked_for(tmp_path: Path) -> None:
    data = OTHERS["progressive"]
    index = make_index(tmp_path / "index", {data: points_of(FILES["420"])})
    assert {seek(data, box, index) for box in boxes(data, 3)} == {"without"}


def test_what_is_no_index_is_refused() -> None:
    with pytest.raises(TypeError, match="SeekIndex or None"):
        decode(FILES["420"], next(boxes(FILES["420"], 0)), index="index")  # type: ignore[arg-type]
