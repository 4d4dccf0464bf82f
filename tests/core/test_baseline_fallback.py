"""What our own decoder does not know is libjpeg-turbo's to the bit, and failures are libjpeg-turbo's to the word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from baseline_outcomes import expected, outcome
from huffman_code import equal_lengths
from jpeg_blocks import PLAIN_CODES, Codes
from jpeg_writer import write_jpeg
from numpy.typing import NDArray
from pictures import jpeg, photograph
from PIL import Image
from reference import Box

PICTURE = photograph(40, 40)
YCC = np.asarray(Image.fromarray(PICTURE).convert("YCbCr"))
GREY = YCC[..., :1]
PLAIN = [(1, 1)] * 3
HALF = [(2, 2), (1, 1), (1, 1)]
WHOLE = Box(0, 0, 40, 40, flip=False)
PARTS = [WHOLE, Box(0, 0, 40, 9, flip=True), Box(0, 17, 11, 20, flip=False), Box(23, 30, 17, 10, flip=True)]


def with_marker(data: bytes, old: int, new: int) -> bytes:
    return data.replace(bytes([0xFF, old]), bytes([0xFF, new]), 1)


def with_precision(data: bytes, bits: int) -> bytes:
    at = data.index(b"\xff\xc0") + 4
    return data[:at] + bytes([bits]) + data[at + 1 :]


def with_components_named(data: bytes, names: bytes) -> bytes:
    changed = bytearray(data)
    frame, scan = data.index(b"\xff\xc0") + 10, data.index(b"\xff\xda") + 5
    for index, name in enumerate(names):
        changed[frame + 3 * index] = changed[scan + 2 * index] = name
    return bytes(changed)


def with_table_number(data: bytes, marker: int, offset: int, number: int) -> bytes:
    at = data.index(bytes([0xFF, marker])) + offset
    return data[:at] + bytes([number]) + data[at + 1 :]


def with_components_swapped_in_the_scan(data: bytes) -> bytes:
    changed, scan = bytearray(data), data.index(b"\xff\xda") + 5
    changed[scan], changed[scan + 2] = changed[scan + 2], changed[scan]
    return bytes(changed)


STEEP = [4] * 63 + [300]
LONG_DIFFERENCES = Codes(equal_lengths(4, (*range(12), 12)), PLAIN_CODES.ac)
# A picture of one symbol, 0, and codes that break the rules.
FLAT = np.full((40, 40, 3), 128, np.uint8)
FULL = equal_lengths(1, (0, 1))
TOO_MANY = equal_lengths(2, (0, 1, 2, 3, 4))

ACCEPTED: dict[str, Callable[[], bytes]] = {
    "progressive": lambda: jpeg(PICTURE, progressive=True),
    "progressive grey": lambda: jpeg(PICTURE, mode="L", progressive=True),
    "arithmetic": lambda: with_marker(jpeg(PICTURE), 0xC0, 0xC9),
    "4:1:1": lambda: write_jpeg(YCC, [(4, 1), (1, 1), (1, 1)]),
    "4:4:0": lambda: write_jpeg(YCC, [(1, 2), (1, 1), (1, 1)]),
    "4:1:0": lambda: write_jpeg(YCC, [(4, 2), (1, 1), (1, 1)]),
    "4:2:2 in other words": lambda: write_jpeg(YCC, [(2, 2), (1, 2), (1, 2)]),
    "4:4:4 in other words": lambda: write_jpeg(YCC, [(2, 1)] * 3),
    "unequal chroma": lambda: write_jpeg(YCC, [(2, 2), (2, 1), (1, 2)]),
    "grey of factors 2 x 2": lambda: write_jpeg(GREY, [(2, 2)], interleaved=False),
    "RGB by Adobe's marker": lambda: write_jpeg(PICTURE, PLAIN, adobe_transform=0),
    "RGB by its components' names": lambda: with_components_named(write_jpeg(PICTURE, PLAIN), b"RGB"),
    "CMYK": lambda: jpeg(PICTURE, mode="CMYK"),
    "YCCK": lambda: write_jpeg(np.concatenate([YCC, GREY], axis=2), [(1, 1)] * 4, adobe_transform=2),
    "factors above 255": lambda: write_jpeg(YCC, HALF, quantiser=STEEP, wide_factors=True),
    "scans of one component": lambda: write_jpeg(YCC, PLAIN, interleaved=False),
    "scans of one component, 4:2:0": lambda: write_jpeg(YCC, HALF, interleaved=False, restart_interval=2),
    "a DC code for differences of 12 bits": lambda: write_jpeg(YCC, HALF, codes=[LONG_DIFFERENCES] * 3),
}
REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "12 bits": ("unsupported", lambda: with_precision(jpeg(PICTURE), 12)),
    "lossless": ("unsupported", lambda: with_marker(jpeg(PICTURE), 0xC0, 0xC3)),
    "two components": ("unsupported", lambda: write_jpeg(YCC[..., :2], PLAIN[:2])),
    "components out of order": ("corrupt", lambda: with_components_swapped_in_the_scan(write_jpeg(YCC, PLAIN))),
    "a DC code of ones": ("corrupt", lambda: write_jpeg(FLAT, PLAIN, codes=[Codes(FULL, PLAIN_CODES.ac)] * 3)),
    "an AC code of ones": ("corrupt", lambda: write_jpeg(FLAT, PLAIN, codes=[Codes(PLAIN_CODES.dc, FULL)] * 3)),
    **{
        f"quantisation table {number}": ("corrupt", lambda n=number: with_table_number(jpeg(PICTURE), 0xC0, 15, n))
        for number in (2, 4, 64, 255)
    },
    **{
        f"codes {number:#x}": ("corrupt", lambda n=number: with_table_number(jpeg(PICTURE), 0xDA, 8, n))
        for number in (0x40, 0x04, 0xF0, 0x0F)
    },
    "more codes than there are": ("corrupt", lambda: write_jpeg(FLAT, PLAIN, codes=[Codes(TOO_MANY, FULL)] * 3)),
    "a DC code with a symbol of 16 bits": (
        "corrupt",
        lambda: write_jpeg(FLAT, PLAIN, codes=[Codes(equal_lengths(2, (0, 16)), PLAIN_CODES.ac)] * 3),
    ),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_another_kind_of_file_is_decoded_by_libjpeg(kind: str) -> None:
    data = ACCEPTED[kind]()
    for box in PARTS:
        for size in (7, 20, 40):
            own, other = outcome(data, box, size), outcome(data, box, size, "libjpeg-turbo")
            assert own.failure is None
            assert own.equals(other), (box, size)
    assert_whole_levels(outcome(data, WHOLE, 40).pixels)


def assert_whole_levels(pixels: NDArray[np.float32]) -> None:
    """libjpeg rounds pixels, our own decoder would not: so nobody has to believe that it was not asked."""
    np.testing.assert_array_equal(pixels, np.rint(pixels))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_libjpeg_refuses_is_refused_in_its_words(kind: str) -> None:
    failure, make = REFUSED[kind]
    data = make()
    for box in PARTS:
        own = outcome(data, box, 20)
        assert own.failure is not None
        assert own.failure.startswith(f"{failure}: ")
        assert own.equals(outcome(data, box, 20, "libjpeg-turbo"))


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("subsampling", ["4:2:2", "4:2:0"])
def test_chroma_of_two_samples_a_row_is_left_to_libjpeg(width: int, subsampling: str) -> None:
    data, box = jpeg(PICTURE[:, :width], subsampling=subsampling), Box(0, 0, width, width, flip=False)
    own, other = outcome(data, box, width), outcome(data, box, width, "libjpeg-turbo")
    assert (expected(data, box, width) is None) == (width < 5)
    assert own.equals(other) == (width < 5)


OWN: dict[str, Callable[[], bytes]] = {
    "extended sequential": lambda: with_marker(jpeg(PICTURE), 0xC0, 0xC1),
    "factors of 16 bits, none above 255": lambda: write_jpeg(YCC, HALF, quantiser=255, wide_factors=True),
    "Adobe's YCbCr": lambda: write_jpeg(YCC, HALF, adobe_transform=1),
    "optimised": lambda: jpeg(PICTURE, optimize=True, quality=30),
    "behind a comment and a profile": lambda: jpeg(PICTURE, comment=b"x" * 60_000, icc_profile=b"y" * 130_000),
    "trailing garbage": lambda: jpeg(PICTURE) + b"\xff\xd8 garbage" * 50,
    "codes of their own for each component": lambda: write_jpeg(
        YCC, HALF, codes=[Codes(equal_lengths(bits, tuple(range(12))), PLAIN_CODES.ac) for bits in (4, 9, 16)]
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_an_odd_file_may_still_be_ours(kind: str) -> None:
    data = OWN[kind]()
    for box in PARTS:
        twin, own = expected(data, box, 20), outcome(data, box, 20)
        assert twin is not None
        assert own.warnings == 0
        np.testing.assert_allclose(own.pixels, twin.levels, rtol=0, atol=1e-3)
