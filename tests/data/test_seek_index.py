"""The file of a seek index: whole, or noticed; never another image, whatever is in it."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from image_tree import encoded, pixels
from numpy.typing import NDArray

from hpcai500 import _core

# Large enough for points to jump to, small enough to be damaged at every byte.
FILES = [encoded(pixels(seed, 64, 100), quality=quality) for seed, quality in ((1, 97), (2, 97), (3, 92))]
PROGRESSIVE = encoded(pixels(4, 64, 100), progressive=True)
SPEC = _core.DecodeSpec(size=24, dtype="uint8")
HEADER = 32


def write_index(path: Path, files: list[bytes]) -> Path:
    writer = _core.SeekIndexWriter(os.fsencode(path))
    for data in files:
        writer.add(*_core.seek_key(data), _core.seek_points(data))
    assert writer.finish() == path.stat().st_size
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_index(tmp_path / "index", [*FILES, PROGRESSIVE])


def image(data: bytes, epoch: int, index: _core.SeekIndex | None = None) -> NDArray[np.uint8]:
    out = np.zeros(SPEC.shape, np.uint8)
    _core.decode_crop(data, SPEC, out, seed=1, epoch=epoch, sample=3, index=index)
    return out


EXPECTED = [[image(data, epoch) for epoch in range(4)] for data in [*FILES, PROGRESSIVE]]


def seeks(index: _core.SeekIndex) -> list[str]:
    """What became of the index for each file; the images must be right."""
    said = []
    for data, expected in zip([*FILES, PROGRESSIVE], EXPECTED, strict=True):
        for epoch, whole in enumerate(expected):
            np.testing.assert_array_equal(image(data, epoch, index), whole)
        said.append(_core.last_seek())
    return said


def write_header(content: bytearray, **fields: int) -> bytearray:
    """`content` with other numbers in its header, and the checksum that they have."""
    places = {"version": ("<I", 8), "table_crc": ("<I", 12), "table": ("<Q", 16), "files": ("<I", 24)}
    for name, value in fields.items():
        struct.pack_into(places[name][0], content, places[name][1], value)
    struct.pack_into("<I", content, 28, zlib.crc32(content[:28]))
    return content


def test_an_index_gives_what_was_written(path: Path) -> None:
    index = _core.SeekIndex(str(path))
    assert len(index) == 4
    for data in FILES:
        assert index.find(data) == _core.seek_points(data)
    assert index.find(PROGRESSIVE) == b""
    assert seeks(index) == ["used", "used", "used", "without"]


def test_a_changed_file_and_one_of_another_set_are_unknown(path: Path) -> None:
    index = _core.SeekIndex(str(path))
    changed = bytearray(FILES[0])
    changed[len(changed) // 2] ^= 1
    other = encoded(pixels(9, 64, 100))
    for data in (bytes(changed), other, FILES[0] + b"\0"):
        assert index.find(data) is None
        np.testing.assert_array_equal(image(data, 0, index), image(data, 0))
        image(data, 0, index)
        assert _core.last_seek() == "unknown"


def test_an_index_that_is_cut_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="is truncated"):
            _core.SeekIndex(str(path))


def test_a_flipped_bit_anywhere_is_found(path: Path) -> None:
    content = path.read_bytes()
    table = struct.unpack_from("<Q", content, 16)[0]
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        if place < HEADER or place >= table:
            with pytest.raises(ValueError, match=r"is damaged|is truncated|is no seek index|of another version"):
                _core.SeekIndex(str(path))
        else:
            assert sorted(seeks(_core.SeekIndex(str(path)))) == ["false", "used", "used", "without"], place


def test_bytes_behind_an_index_change_nothing(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x" * 100)
    assert seeks(_core.SeekIndex(str(path))) == ["used", "used", "used", "without"]


def test_a_newer_version_is_named(path: Path) -> None:
    path.write_bytes(write_header(bytearray(path.read_bytes()), version=2))
    with pytest.raises(ValueError, match=r"is of another version of hpcai500 \(format 2, not 1\)"):
        _core.SeekIndex(str(path))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"files": 2**32 - 1}, "is damaged"),
        ({"files": 2**24}, "is truncated"),
        ({"table": 0}, "is damaged"),
        ({"table": 2**64 - 1}, "is truncated"),
        ({"table": 2**63}, "is truncated"),
    ],
)
def test_a_header_that_claims_too_much_takes_no_memory(path: Path, fields: dict[str, int], reason: str) -> None:
    path.write_bytes(write_header(bytearray(path.read_bytes()), **fields))
    with pytest.raises(ValueError, match=reason):
        _core.SeekIndex(str(path))


@pytest.mark.parametrize("offset", [0, 31, 10**6, 2**63, 2**64 - 1])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 2**20, 2**32 - 1])
def test_an_entry_that_leads_anywhere_is_false(path: Path, offset: int, length: int) -> None:
    content = bytearray(path.read_bytes())
    table = struct.unpack_from("<Q", content, 16)[0]
    for number in range(4):
        struct.pack_into("<QI", content, table + 20 * number + 8, offset, length)
    path.write_bytes(write_header(content, table_crc=zlib.crc32(content[table:])))
    assert seeks(_core.SeekIndex(str(path))) == ["false", "false", "false", "without"]


def test_entries_without_order_are_unknown_at_worst(path: Path) -> None:
    content = bytearray(path.read_bytes())
    table = struct.unpack_from("<Q", content, 16)[0]
    entries = [content[at : at + 20] for at in range(table, len(content), 20)]
    content[table:] = b"".join(reversed(entries))
    path.write_bytes(write_header(content, table_crc=zlib.crc32(content[table:])))
    assert "false" not in seeks(_core.SeekIndex(str(path)))


def test_an_index_that_shrinks_while_it_is_used_is_false_and_no_crash(path: Path) -> None:
    index = _core.SeekIndex(str(path))
    os.truncate(path, HEADER)
    assert seeks(index) == ["false", "false", "false", "without"]


def test_one_that_is_put_in_its_place_is_read_by_who_opens_it_then(path: Path, tmp_path: Path) -> None:
    before = _core.SeekIndex(str(path))
    write_index(tmp_path / "other", FILES[:1]).replace(path)
    after = _core.SeekIndex(str(path))
    assert (len(before), len(after)) == (4, 1)
    assert seeks(before) == ["used", "used", "used", "without"]
    assert seeks(after)[:3] == ["used", "unknown", "unknown"]


def test_copies_of_a_file_have_one_entry(tmp_path: Path) -> None:
    index = _core.SeekIndex(str(write_index(tmp_path / "index", [*FILES, *FILES])))
    assert len(index) == 3
    assert seeks(index)[:3] == ["used"] * 3


def test_two_files_that_an_index_cannot_tell_apart_have_no_points(tmp_path: Path) -> None:
    writer = _core.SeekIndexWriter(str(tmp_path / "index"))
    for points in (_core.seek_points(FILES[0]), _core.seek_points(FILES[1])):
        writer.add(*_core.seek_key(FILES[0]), points)
    writer.finish()
    index = _core.SeekIndex(str(tmp_path / "index"))
    assert index.find(FILES[0]) == b""
    assert seeks(index)[0] == "without"


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_index(tmp_path / name, FILES).read_bytes() for name in "ab")
    assert first == second


def test_an_empty_index_knows_nothing(tmp_path: Path) -> None:
    assert seeks(_core.SeekIndex(str(write_index(tmp_path / "index", []))))[:3] == ["unknown"] * 3


def test_what_is_no_file_and_no_index_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot open"):
        _core.SeekIndex(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="is not a file"):
        _core.SeekIndex(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a file"):
        _core.SeekIndex(str(tmp_path / "pipe"))
    (tmp_path / "text").write_text("not an index, but long enough to be one\n")
    with pytest.raises(ValueError, match="is no seek index"):
        _core.SeekIndex(str(tmp_path / "text"))


def test_an_index_is_never_written_over_a_file(path: Path) -> None:
    with pytest.raises(FileExistsError):
        _core.SeekIndexWriter(str(path))
