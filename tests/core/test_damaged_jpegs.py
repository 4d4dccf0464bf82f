"""Odd, cut, damaged and hostile files: what Pillow shows, or an error with its reason; never other pixels or a crash.

Our own decoder takes what is whole up to a crop's end, libjpeg-turbo judges the rest: each outcome is either the twin's
image, without a warning, or libjpeg-turbo's to the bit and the word; and a file is refused by libjpeg-turbo but not by
us only where the damage lies behind all that the crop needs.
"""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jpeg_files import (
    PLAIN_CODES,
    Block,
    Codes,
    Frame,
    HuffmanCode,
    decoded,
    jpeg,
    photograph,
    with_frame,
    write_blocks,
    write_jpeg,
)
from jpeg_twin import LARGEST_COEFFICIENT, Box, assert_own_or_libjpegs, expected, outcome, read_header
from numpy.typing import NDArray
from PIL import Image

from hpcai500 import _core

# ----------------------------------------------------------------------------------------------------
# Odd files, as real image sets hold them: each decodes as Pillow decodes it, or fails with its reason.


KEY = {"seed": 3, "epoch": 1}
ODD_PICTURE = photograph(90, 67)


def ycc(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(pixels).convert("YCbCr"))


def cmyk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """With real black, which Pillow's own conversion never makes."""
    black = (255 - pixels.max(axis=2)) // 2
    inks = np.clip(255 - pixels.astype(int) - black[..., None], 0, 255).astype(np.uint8)
    return np.concatenate([inks, black[..., None]], axis=2)


def inverted_cmyk_jpeg(pixels: NDArray[np.uint8], *, ycck: bool) -> bytes:
    """As Adobe's programs write it: inverted, and for YCCK the inverted inks as YCbCr."""
    stored = 255 - cmyk(pixels)
    if ycck:
        # libjpeg makes C, M, Y from YCC as 255 - R, G, B.
        stored = np.concatenate([ycc(255 - stored[..., :3]), stored[..., 3:]], axis=2)
        return write_jpeg(stored, [(2, 2), (1, 1), (1, 1), (2, 2)], adobe_transform=2)
    return write_jpeg(stored, [(1, 1)] * 4, adobe_transform=0)


def with_exif_orientation(data: bytes, orientation: int) -> bytes:
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 0)
    return data[:2] + struct.pack(">BBH", 0xFF, 0xE1, len(exif) + 2) + exif + data[2:]


SAMPLINGS = {
    "4:1:1": [(4, 1), (1, 1), (1, 1)],
    "4:4:0": [(1, 2), (1, 1), (1, 1)],
    "4:1:0": [(4, 2), (1, 1), (1, 1)],
    "4:2:2": [(2, 1), (1, 1), (1, 1)],
    "4:2:0": [(2, 2), (1, 1), (1, 1)],
    "4:4:1": [(1, 4), (1, 1), (1, 1)],
    "chroma of unequal factors": [(2, 2), (2, 1), (1, 2)],
}
KINDS: dict[str, Callable[[], bytes]] = {
    "grey": lambda: jpeg(ODD_PICTURE, mode="L"),
    "RGB without conversion": lambda: write_jpeg(ODD_PICTURE, [(1, 1)] * 3, adobe_transform=0),
    "CMYK": lambda: jpeg(ODD_PICTURE, mode="CMYK"),
    "CMYK with black": lambda: inverted_cmyk_jpeg(ODD_PICTURE, ycck=False),
    "YCCK": lambda: inverted_cmyk_jpeg(ODD_PICTURE, ycck=True),
    "CMYK without an Adobe marker": lambda: write_jpeg(255 - cmyk(ODD_PICTURE), [(1, 1)] * 4),
    "progressive": lambda: jpeg(ODD_PICTURE, progressive=True),
    "progressive grey": lambda: jpeg(ODD_PICTURE, mode="L", progressive=True),
    "optimised": lambda: jpeg(ODD_PICTURE, optimize=True, quality=30),
    "restart markers by row": lambda: jpeg(ODD_PICTURE, restart_marker_rows=1),
    "restart markers by block": lambda: jpeg(ODD_PICTURE, restart_marker_blocks=1),
    "trailing garbage": lambda: jpeg(ODD_PICTURE) + b"\xff\xd8 garbage" * 50,
    "a comment and a profile": lambda: jpeg(ODD_PICTURE, comment=b"x" * 60_000, icc_profile=b"y" * 130_000),
    "1 pixel wide": lambda: jpeg(ODD_PICTURE[:, :1]),
    "1 pixel high": lambda: jpeg(ODD_PICTURE[:1]),
    "1 pixel": lambda: jpeg(ODD_PICTURE[:1, :1]),
    "1 pixel wide, progressive": lambda: jpeg(ODD_PICTURE[:, :1], progressive=True),
    **{name: lambda s=sampling: write_jpeg(ycc(ODD_PICTURE), s) for name, sampling in SAMPLINGS.items()},
    "4:1:1 with restarts": lambda: write_jpeg(ycc(ODD_PICTURE), SAMPLINGS["4:1:1"], restart_interval=2),
}


# Of normalised levels: libjpeg's pixels are Pillow's; our own decoder's differ by rounding, and where levels are cut.
WORST = {"own": 5 / 57, "libjpeg-turbo": 1e-5}


@pytest.mark.parametrize("decoder", WORST)
@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_file_shows_what_pillow_shows(kind: str, decoder: str) -> None:
    data = KINDS[kind]()
    whole = np.asarray(decoded(data))
    height, width = whole.shape[:2]
    assert _core.check_jpeg(data) == (width, height, 0)
    for settings in ({"mode": "random"}, {"mode": "centre", "resize_shorter": 28}):
        spec = _core.DecodeSpec(size=24, dtype="float32", decoder=decoder, **settings)
        ours, expected = np.empty((2, *spec.shape), np.float32)
        for sample in range(12):
            assert _core.decode_crop(data, spec, ours, sample=sample, **KEY) == 0
            # The crop and the resize are held to Pillow elsewhere: here the same ones on Pillow's pixels.
            _core.crop_pixels(whole, spec, expected, sample=sample, **KEY)
            np.testing.assert_allclose(ours, expected, rtol=0, atol=WORST[decoder], err_msg=f"{settings} {sample}")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("decoder", WORST)
def test_a_part_of_an_oddly_sampled_file_equals_the_part_of_the_whole(sampling: str, seed: int, decoder: str) -> None:
    data = write_jpeg(ycc(photograph(131, 77, seed)), SAMPLINGS[sampling])
    spec = _core.DecodeSpec(size=9, dtype="uint8", layout="nhwc", decoder=decoder)
    whole = np.asarray(decoded(data)).astype(int)
    # Two of them are our own decoder's, which does not round where Pillow does.
    levels = 2 if decoder == "own" and sampling in ("4:2:2", "4:2:0") else 0
    out = np.empty(spec.shape, np.uint8)
    for x in range(0, 131 - 9, 3):
        for y in range(0, 77 - 9, 2):
            _core.decode_box(data, spec, out, x=x, y=y, width=9, height=9, flip=False)
            assert np.abs(out - whole[y : y + 9, x : x + 9]).max() <= levels, (x, y)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_orientation_is_ignored_as_imagenet_training_does(orientation: int) -> None:
    plain = jpeg(ODD_PICTURE)
    turned = with_exif_orientation(plain, orientation)
    assert Image.open(io.BytesIO(turned)).getexif()[0x0112] == orientation
    spec = _core.DecodeSpec(size=24)
    first, second = np.empty((2, *spec.shape), np.float32)
    _core.decode_crop(plain, spec, first, sample=0, **KEY)
    _core.decode_crop(turned, spec, second, sample=0, **KEY)
    np.testing.assert_array_equal(first, second)


def test_a_header_is_told() -> None:
    assert _core.probe_jpeg(jpeg(ODD_PICTURE, subsampling="4:2:2")) == (90, 67, 3, "YCbCr", False, "2x1,1x1,1x1")
    assert _core.probe_jpeg(jpeg(ODD_PICTURE, mode="L", progressive=True)) == (90, 67, 1, "grey", True, "1x1")
    assert _core.probe_jpeg(inverted_cmyk_jpeg(ODD_PICTURE, ycck=True)).colour_space == "YCCK"


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(ODD_PICTURE).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (_png(), "unsupported", "Not a JPEG"),
        (b"<html>not found</html>", "unsupported", "Not a JPEG"),
        (with_frame(jpeg(ODD_PICTURE), precision=12), "unsupported", "precision"),
        (with_frame(jpeg(ODD_PICTURE), marker=0xC3), "unsupported", "SOF"),
        (b"", "truncated", "empty"),
        (b"\xff", "truncated", "ends"),
        (b"\xff\xd8", "truncated", "ends"),
        (b"\xff\xd8\xff\xd9", "corrupt", "no image"),
        (with_frame(jpeg(ODD_PICTURE), components=9), "corrupt", "Bogus marker length"),
    ],
)
def test_what_is_no_readable_jpeg_says_so(data: bytes, kind: str, reason: str) -> None:
    out = np.empty((3, 8, 8), np.float32)
    for call in (
        lambda: _core.check_jpeg(data),
        lambda: _core.decode_crop(data, _core.DecodeSpec(size=8), out, sample=0, **KEY),
    ):
        with pytest.raises(_core.JpegError, match=reason) as caught:
            call()
        assert caught.value.kind == kind
        assert str(caught.value).startswith(f"{kind}: ")
        assert isinstance(caught.value, ValueError)


PROGRESSIVE_OF_16000 = with_frame(jpeg(ODD_PICTURE, progressive=True), size=(16000, 16000))


def test_a_header_that_claims_an_absurd_size_is_refused_before_memory_is() -> None:
    with pytest.raises(_core.JpegError, match="the header claims 65000 x 65000 pixels; the limit is 268435456"):
        _core.check_jpeg(with_frame(jpeg(ODD_PICTURE), size=(65000, 65000)))
    with pytest.raises(_core.JpegError, match="the header claims 65500 x 65500 pixels; the limit is 268435456"):
        _core.probe_jpeg(with_frame(jpeg(ODD_PICTURE), size=(65_500, 65_500)))
    with pytest.raises(_core.JpegError, match="needs more memory than one image is allowed"):
        _core.check_jpeg(PROGRESSIVE_OF_16000)
    with pytest.raises(_core.JpegError, match="corrupt"):
        _core.check_jpeg(with_frame(jpeg(ODD_PICTURE), size=(0, 50)))


def test_a_progressive_bomb_is_refused() -> None:
    data = jpeg(ODD_PICTURE, progressive=True)
    last_scan = data.rindex(b"\xff\xda")
    bomb = data[:last_scan] + data[last_scan:-2] * 600 + b"\xff\xd9"
    with pytest.raises(_core.JpegError, match="more scans than any real file"):
        _core.check_jpeg(bomb)


def test_damage_that_pillow_tolerates_is_tolerated_and_counted() -> None:
    data = bytearray(jpeg(ODD_PICTURE, quality=95))
    middle = len(data) // 2
    data[middle : middle + 2] = b"\xff\xd9"
    damaged = bytes(data)
    width, height, warnings = _core.check_jpeg(damaged)
    assert (width, height) == (90, 67)
    assert warnings > 0
    spec = _core.DecodeSpec(size=67, mode="centre", resize_shorter=67, dtype="uint8", layout="nhwc")
    out = np.empty(spec.shape, np.uint8)
    assert _core.decode_crop(damaged, spec, out, sample=0, **KEY) > 0
    expected = np.empty_like(out)
    _core.crop_pixels(np.asarray(decoded(damaged)), spec, expected, sample=0, **KEY)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(
    "tail",
    [
        lambda data: b"",
        lambda data: b"\x12\x34" * 20 + b"\xff\xd9",
        lambda data: data[2:],
        lambda data: data[data.rindex(b"\xff\xda") :],
        lambda data: b"\xff\xc4\x00\x05xxx\xff\xd9",
    ],
    ids=["no end marker", "bytes before it", "a second header", "a second scan", "a table that is none"],
)
def test_damage_behind_the_last_row_is_no_good_file(tail: Callable[[bytes], bytes], progressive: bool) -> None:
    whole = jpeg(ODD_PICTURE, progressive=progressive)
    assert _core.check_jpeg(whole) == _core.check_jpeg(whole + b"\x12\x34") == (90, 67, 0)
    try:
        width, height, warnings = _core.check_jpeg(whole[:-2] + tail(whole))
    except _core.JpegError:
        # A progressive image has its pixels only when all scans are read.
        assert progressive
    else:
        assert (width, height) == (90, 67)
        assert warnings > 0


def test_a_failed_image_leaves_nothing_behind() -> None:
    good, spec = jpeg(ODD_PICTURE), _core.DecodeSpec(size=24)
    before, after = np.empty((2, *spec.shape), np.float32)
    _core.decode_crop(good, spec, before, sample=0, **KEY)
    for bad in (good[: len(good) // 2], _png(), PROGRESSIVE_OF_16000):
        with pytest.raises(_core.JpegError):
            _core.check_jpeg(bad)
        _core.decode_crop(good, spec, after, sample=0, **KEY)
        np.testing.assert_array_equal(before, after)


# ----------------------------------------------------------------------------------------------------
# Damaged entropy-coded data.


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
    # Of the header a few prefixes will do (another test takes all): nothing is decoded before its end.
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


# ----------------------------------------------------------------------------------------------------
# A file cut at any byte: an error, or exactly the pixels of the whole file. Never a grey rest.


CUT_PICTURE = photograph(40, 33)
CUT_FILES = {
    "baseline": jpeg(CUT_PICTURE, quality=60),
    "restarts": jpeg(CUT_PICTURE, quality=60, restart_marker_blocks=1),
    "grey": jpeg(CUT_PICTURE, quality=60, mode="L"),
    "progressive": jpeg(CUT_PICTURE, quality=60, progressive=True),
    "CMYK": jpeg(CUT_PICTURE, quality=60, mode="CMYK"),
    "4:1:1": write_jpeg(CUT_PICTURE, [(4, 1), (1, 1), (1, 1)], quantiser=20),
}
CUT_WHOLE = Box(0, 0, 40, 33, flip=False)
CUT_TOP = Box(3, 0, 30, 6, flip=False)
DECODERS = ["own", "libjpeg-turbo"]


@pytest.mark.parametrize("kind", CUT_FILES)
@pytest.mark.parametrize("box", [CUT_WHOLE, CUT_TOP], ids=["whole", "top"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_prefix_is_an_error_or_the_right_pixels(kind: str, box: Box, decoder: str) -> None:
    data = CUT_FILES[kind]
    expected = outcome(data, box, 16, decoder, dtype="uint8")
    assert (expected.failure, expected.warnings) == (None, 0)
    enough = []
    for length in range(len(data)):
        found = outcome(data[:length], box, 16, decoder, dtype="uint8")
        assert found.equals(expected) if found.failure is None else found.failure.startswith("truncated: "), length
        enough.append(found.failure is None)
    # Once enough is there, more of it is enough as well.
    assert enough == sorted(enough)
    # The end marker alone may be missing from an image of one scan; of a progressive one no scan may.
    assert enough[-2] == (kind != "progressive")


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_crop_needs_no_more_of_the_file_than_its_last_row(decoder: str) -> None:
    data = jpeg(photograph(40, 300))
    enough = next(n for n in range(len(data)) if outcome(data[:n], CUT_TOP, 16, decoder).failure is None)
    assert outcome(data[:enough], CUT_WHOLE, 16, decoder).failure.startswith("truncated: ")
    assert enough < len(data) / 3


@pytest.mark.parametrize("kind", CUT_FILES)
def test_a_check_finds_every_truncation_that_costs_pixels(kind: str) -> None:
    data = CUT_FILES[kind]
    for length in range(0, len(data) - 8, 3):
        with pytest.raises(_core.JpegError) as caught:
            _core.check_jpeg(data[:length])
        assert caught.value.kind == "truncated"


# ----------------------------------------------------------------------------------------------------
# Memory is taken for pixels that a file can have, not for those that its header claims (docs/fuzzing.md).


# All rows of the image are in the sixteen rows of the output: our decoder would hold three planes of 32 MB and a
# quarter more, and libjpeg-turbo's path holds 50 MB of rows.
WIDTH, HEIGHT, ROOM_MB = 16_000, 2_000, 80
SCRIPT = f"""
import resource, sys
from pathlib import Path
import numpy as np
from hpcai500 import _core

data = Path(sys.argv[1]).read_bytes()
spec = _core.DecodeSpec(size=16, dtype="uint8", decoder=sys.argv[2])
out = np.zeros(spec.shape, np.uint8)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + ({ROOM_MB} << 20), resource.RLIM_INFINITY))
try:
    _core.decode_box(data, spec, out, x=0, y=0, width={WIDTH}, height={HEIGHT}, flip=False)
except (_core.JpegError, MemoryError) as error:
    print(getattr(error, "kind", "out of memory"))
"""


@pytest.mark.parametrize("decoder", ["own", "libjpeg-turbo"])
def test_a_few_bytes_get_no_memory_for_the_millions_of_pixels_that_they_claim(decoder: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    data = with_frame(jpeg(photograph(48, 48), subsampling="4:4:4"), size=(WIDTH, HEIGHT))
    # Without the end of the image, where libjpeg would fill up what is missing.
    file.write_bytes(data[:-2])
    command = [sys.executable, "-c", SCRIPT, str(file), decoder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "truncated\n"), done.stderr


def test_blocks_of_the_fewest_bits_get_all_of_their_memory(tmp_path: Path) -> None:
    """Two bits a block: the bound leaves none of them to libjpeg-turbo."""
    one = (1, *[0] * 15)
    codes = [Codes(HuffmanCode(one, (0,)), HuffmanCode(one, (0,)))]
    frame = Frame(600, 600, [(1, 1)], codes)
    data = write_blocks(frame, [[Block(0, [(0, 0), (0, 0)])]] * (75 * 75))
    path = str(tmp_path / "index")
    writer = _core.SeekIndexWriter(path)
    writer.add(*_core.seek_key(data), _core.seek_points(data))
    writer.finish()
    spec = _core.DecodeSpec(size=16, dtype="uint8")
    out = np.zeros(spec.shape, np.uint8)
    _core.decode_box(data, spec, out, x=0, y=0, width=600, height=600, flip=False, index=_core.SeekIndex(path))
    # Points are our own decoder's alone.
    assert _core.last_seek() == "used"
    assert (out == 128).all()
