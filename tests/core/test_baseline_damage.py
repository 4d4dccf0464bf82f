"""Damaged entropy-coded data: our own decoder takes what is whole up to a crop's end, libjpeg-turbo judges the rest.

So each outcome is either the twin's image, without a warning, or libjpeg-turbo's to the bit and the word; and a file is
refused by libjpeg-turbo but not by us only where the damage lies behind all that the crop needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from baseline_header import read_header
from baseline_outcomes import LARGEST_COEFFICIENT, assert_own_or_libjpegs, expected, outcome
from jpeg_blocks import PLAIN_CODES, Block, Frame, write_blocks
from jpeg_writer import write_jpeg
from pictures import jpeg, photograph
from PIL import Image
from reference import Box

from hpcai500 import _core

SIDE = 40
PICTURE = photograph(SIDE, SIDE, noise=20)
YCC = np.asarray(Image.fromarray(PICTURE).convert("YCbCr"))
WHOLE = Box(0, 0, SIDE, SIDE, flip=False)
TOP_LEFT = Box(0, 0, 7, 7, flip=False)
RESTARTS = write_jpeg(YCC, [(2, 2), (1, 1), (1, 1)], restart_interval=2)
NOISE = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 1), dtype=np.uint8)
PLAIN = write_jpeg(NOISE, [(1, 1)], quantiser=4)


def restart_marker(number: int, data: bytes = RESTARTS) -> int:
    """Where it begins."""
    return [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", data)][number]


def replaced(at: int, length: int, by: bytes, data: bytes = RESTARTS) -> bytes:
    return data[:at] + by + data[at + length :]


def last_data_byte() -> int:
    return len(RESTARTS) - 3


def stuffed_byte() -> int:
    return PLAIN.index(b"\xff\x00", read_header(PLAIN).data_start)


WARNED, QUIET = "with a warning", "without a word"
# The damage, and how libjpeg-turbo takes it: all of it is behind the first MCU.
DAMAGE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a restart marker is missing": (WARNED, lambda: replaced(restart_marker(1), 2, b"")),
    "a restart marker has a wrong number": (WARNED, lambda: replaced(restart_marker(1), 2, b"\xff\xd4")),
    "a restart marker is there twice": (WARNED, lambda: replaced(restart_marker(1), 2, b"\xff\xd1\xff\xd1")),
    "two restart markers are exchanged": (
        WARNED,
        lambda: replaced(restart_marker(1), 2, b"\xff\xd2", replaced(restart_marker(2), 2, b"\xff\xd1")),
    ),
    "the image's end is where a restart is due": (WARNED, lambda: replaced(restart_marker(1), 2, b"\xff\xd9")),
    "bytes are left before a restart marker": (WARNED, lambda: replaced(restart_marker(1), 0, b"\x12\x34")),
    "a byte of ones is left before a restart marker": (WARNED, lambda: replaced(restart_marker(1), 0, b"\xff\x00")),
    "a restart marker is filled up": (QUIET, lambda: replaced(restart_marker(1), 0, b"\xff\xff\xff")),
    "a restart marker where none is due": (WARNED, lambda: replaced(len(PLAIN) - 40, 0, b"\xff\xd0", PLAIN)),
    "a byte of data is filled up": (QUIET, lambda: replaced(stuffed_byte(), 0, b"\xff", PLAIN)),
    "data ends before a restart marker": (WARNED, lambda: replaced(restart_marker(1) - 4, 4, b"")),
    "data ends before the image's end": (WARNED, lambda: PLAIN[:-30] + b"\xff\xd9"),
    "no code begins so": (WARNED, lambda: blocks([(0, 0), (0x00, 0)], bad=True)),
    "a run leaves the block": (QUIET, lambda: blocks([(0, 0), *[(0xF0, 0)] * 3, (0xF1, 1)])),
    "zeros leave the block": (QUIET, lambda: blocks([(0, 0), (0x01, 1), *[(0xF0, 0)] * 4])),
    "DC coefficients leave their range": (QUIET, lambda: blocks([(11, 2047), (0x00, 0)])),
}


def blocks(symbols: list[tuple[int, int]], *, bad: bool = False) -> bytes:
    """A grey picture whose first block is nothing, and whose others are these symbols; `bad` ends in ones."""
    frame = Frame(SIDE, SIDE, [(1, 1)], [PLAIN_CODES], quantiser=1)
    count = frame.mcus[0] * frame.mcus[1]
    first = [Block(0, [(0, 0), (0x00, 0)])]
    data = write_blocks(frame, [first, *[[Block(0, symbols)]] * (count - 1)])
    return data[:-8] + b"\xff\x00" * 6 + b"\xff\xd9" if bad else data


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_left_to_libjpeg(kind: str) -> None:
    how, make = DAMAGE[kind]
    data = make()
    for size in (SIDE, 13):
        assert assert_own_or_libjpegs(data, WHOLE, size) is None
        found = outcome(data, WHOLE, size)
        assert found.failure is None
        assert (found.warnings > 0) == (how == WARNED)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_behind_the_crop_is_not_seen(kind: str) -> None:
    data = DAMAGE[kind][1]()
    assert assert_own_or_libjpegs(data, TOP_LEFT, 5) is not None


@pytest.mark.parametrize("bits", range(1, 8))
def test_bits_left_in_the_last_byte_before_a_marker_may_have_any_value(bits: int) -> None:
    """Encoders fill up with ones; nobody looks."""
    frame = Frame(16, 8, [(1, 1)], [PLAIN_CODES], restart_interval=1)
    # A DC code of 4 bits and an end of block of 8, and so many bits of values that `bits` are left.
    size = next(size for size in range(12) if (4 + size + 8 + bits) % 8 == 0)
    data = write_blocks(frame, [[Block(0, [(size, (1 << size) - 1), (0x00, 0)])]] * 2)
    marker = restart_marker(0, data)
    zeros = replaced(marker - 1, 1, bytes([data[marker - 1] & (0xFF << bits) & 0xFF]), data)
    assert zeros != data
    box = Box(0, 0, 16, 8, flip=False)
    assert assert_own_or_libjpegs(zeros, box, 8) is not None
    np.testing.assert_array_equal(outcome(zeros, box, 8).pixels, outcome(data, box, 8).pixels)


FILES: dict[str, bytes] = {
    "4:2:0": jpeg(PICTURE, quality=50),
    "4:2:2": jpeg(PICTURE, quality=50, subsampling="4:2:2"),
    "4:4:4": jpeg(PICTURE, quality=30, subsampling="4:4:4"),
    "grey": jpeg(PICTURE, quality=60, mode="L"),
    "4:2:0 with restarts": jpeg(PICTURE, quality=50, restart_marker_blocks=1),
    "grey with restarts": jpeg(PICTURE, quality=60, mode="L", restart_marker_blocks=3),
    "grey with stuffed bytes": PLAIN,
}
PARTS = {
    "whole": WHOLE,
    "top": Box(3, 0, 20, 6, flip=False),
    "left": Box(0, 2, 6, 25, flip=True),
    "middle": Box(17, 17, 5, 8, flip=False),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("part", PARTS)
def test_a_file_may_end_behind_the_last_byte_that_the_crop_needs(kind: str, part: str) -> None:
    """libjpeg-turbo reads on to the end of the row of MCUs, and, for chroma's sake, into the next."""
    data, box = FILES[kind], PARTS[part]
    needed = expected(data, box, 12).read_until
    whole, start = outcome(data, box, 12), read_header(data).data_start
    only_ours = 0
    # Of the header a few prefixes will do (test_truncation.py has all): nothing is decoded before its end.
    for length in [*range(0, start, 13), *range(start, len(data))]:
        own, other = outcome(data[:length], box, 12), outcome(data[:length], box, 12, "libjpeg-turbo")
        if length < needed:
            assert own.failure is not None
            assert own.failure.startswith("truncated: ")
            assert own.equals(other), length
        else:
            assert own.equals(whole), length
            only_ours += other.failure is not None
    assert (only_ours == 0) == (part == "whole")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_bit_of_data_is_as_the_twin_and_libjpeg_say(kind: str) -> None:
    data = FILES[kind]
    start, rng = read_header(data).data_start, np.random.default_rng(len(kind))
    ours = 0
    for bit in rng.integers(start * 8, len(data) * 8, 30).tolist():
        changed = flipped(data, bit)
        for box in (WHOLE, PARTS["left"]):
            ours += assert_own_or_libjpegs(changed, box, SIDE, note=f"bit {bit}") is not None
    # Neither all nor none: both of them were asked.
    assert 0 < ours < 60


# libjpeg rounds chroma twice when it interpolates it, and then the colours.
ROUNDED = 2.0


def assert_libjpegs_outcome(data: bytes, note: str) -> None:
    """The whole picture at its own size: nothing lies behind it, and both decoders cut levels at the same place."""
    own, other = (outcome(data, WHOLE, SIDE, decoder) for decoder in ("own", "libjpeg-turbo"))
    assert (own.failure, own.warnings) == (other.failure, other.warnings), note
    if own.pixels is not None and np.abs(own.pixels - other.pixels).max() > ROUNDED:
        assert expected(data, WHOLE, SIDE).largest > LARGEST_COEFFICIENT, note


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_bit_of_data_makes_libjpegs_outcome(kind: str) -> None:
    data = FILES[kind]
    start, rng = read_header(data).data_start, np.random.default_rng(len(kind))
    for bit in rng.integers(start * 8, len(data) * 8, 400).tolist():
        assert_libjpegs_outcome(flipped(data, bit), f"bit {bit}")


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_bit_of_the_header_makes_libjpegs_outcome(kind: str) -> None:
    """Sizes, sampling, tables and their numbers, codes: libjpeg reads them for both decoders."""
    data = FILES[kind]
    rng = np.random.default_rng(len(kind))
    for bit in rng.integers(16, read_header(data).data_start * 8, 400).tolist():
        changed = flipped(data, bit)
        if size_of(changed) == (SIDE, SIDE):
            assert_libjpegs_outcome(changed, f"bit {bit}")
        else:
            assert_at_least_libjpegs_outcome(changed, f"bit {bit}")


def size_of(data: bytes) -> tuple[int, int] | None:
    try:
        return _core.probe_jpeg(data)[:2]
    except _core.JpegError:
        return SIDE, SIDE


def assert_at_least_libjpegs_outcome(data: bytes, note: str) -> None:
    """The crop is another part of another picture: our own decoder may need less of the file."""
    width, height = size_of(data)
    box = Box(0, 0, min(width, SIDE), min(height, SIDE), flip=False)
    own, other = (outcome(data, box, SIDE, decoder) for decoder in ("own", "libjpeg-turbo"))
    assert own.failure in (None, other.failure), note
