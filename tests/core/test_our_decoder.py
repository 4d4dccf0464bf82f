"""Which files our own decoder takes, with codes of any shape. Others are libjpeg-turbo's, to the bit and the word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import (
    DHT,
    DQT,
    LONGEST_CODE,
    PLAIN_CODES,
    Block,
    Codes,
    Frame,
    HuffmanCode,
    Symbol,
    equal_lengths,
    jpeg,
    photograph,
    with_frame,
    without,
    write_blocks,
    write_jpeg,
)
from jpeg_twin import Box, assert_own_or_libjpegs, expected, outcome
from PIL import Image

from hpcai500 import _core
from hpcai500.data.imagenet.seek_index import why_not_ours

# ----------------------------------------------------------------------------------------------------
# Huffman codes of every shape: what they say, how far they reach, and how long a decoder remembers them.


SQUARE = Box(0, 0, 24, 24, flip=False)
LAST_CORNER = Box(20, 19, 3, 4, flip=False)


def code_of(symbols: list[int], splits: list[int]) -> HuffmanCode:
    """A code whose tree has a leaf for each symbol, and one or more that nobody has: the last is all ones.

    Each number of `splits` names the leaf that becomes two; zeros make the longest codes that there are.
    """
    lengths = [0]
    for split in splits:
        at = split % len(lengths)
        if lengths[at] == LONGEST_CODE:
            at = lengths.index(min(lengths))
        lengths[at : at + 1] = [lengths[at] + 1] * 2
    used = sorted(lengths)[: len(symbols)]
    return HuffmanCode(tuple(used.count(length) for length in range(1, LONGEST_CODE + 1)), tuple(symbols))


@st.composite
def codes_of_any_shape(draw: st.DrawFn, symbols: st.SearchStrategy[list[int]]) -> HuffmanCode:
    """Any valid code of some symbols."""
    chosen = draw(symbols)
    unused = draw(st.integers(0, 20))
    count = len(chosen) + unused
    return code_of(chosen, draw(st.lists(st.integers(0, 255), min_size=count, max_size=count)))


DIFFERENCES = st.lists(st.integers(0, 11), min_size=1, max_size=12, unique=True)
# 0x00 ends a block, and so does any other symbol of no bits but 0xF0.
COEFFICIENTS = st.lists(st.integers(1, 255), max_size=60, unique=True).flatmap(
    lambda symbols: st.permutations([0x00, *symbols])
)


def random_value(bits: int, rng: np.random.Generator) -> int:
    magnitude = int(rng.integers(1 << bits >> 1, 1 << bits))
    return magnitude if rng.random() < 0.5 else -magnitude


def random_block(component: int, codes: Codes, rng: np.random.Generator) -> Block:
    """Symbols of the codes in any order that does not leave the block."""
    difference = int(rng.choice(codes.dc.symbols))
    symbols: list[Symbol] = [(difference, random_value(difference, rng))]
    place = 1
    while place < 64:
        symbol = int(rng.choice(codes.ac.symbols))
        run, bits = divmod(symbol, 16)
        if place + run > 63:
            continue
        symbols.append((symbol, random_value(bits, rng)))
        if bits == 0 and run != 15:
            break
        place += run + 1
    return Block(component, symbols)


@settings(max_examples=100)
@given(
    codes=st.lists(
        st.builds(Codes, codes_of_any_shape(DIFFERENCES), codes_of_any_shape(COEFFICIENTS)), min_size=1, max_size=3
    ),
    luma=st.sampled_from([(1, 1), (2, 1), (2, 2)]),
    restart_interval=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_code_says_what_the_twin_reads(
    codes: list[Codes], luma: tuple[int, int], restart_interval: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sampling = [(1, 1)] if len(codes) == 1 else [luma, (1, 1), (1, 1)]
    of_components = codes * 3 if len(codes) == 1 else [codes[0], codes[1], codes[-1]]
    frame = Frame(24, 24, sampling, of_components[: len(sampling)], 1, restart_interval)
    rows, columns = frame.mcus
    mcus = [
        [random_block(index, frame.codes[index], rng) for index, (h, v) in enumerate(sampling) for _ in range(h * v)]
        for _ in range(rows * columns)
    ]
    data = write_blocks(frame, mcus)
    # Decoded, and passed over for the sake of the last block.
    assert assert_own_or_libjpegs(data, SQUARE, 24) is not None
    assert assert_own_or_libjpegs(data, LAST_CORNER, 3) is not None


def test_the_longest_codes_with_the_longest_values_are_read() -> None:
    """63 coefficients of 31 bits: the most that a block can take."""
    longest = code_of([1, 0x00, *range(0x10, 0x1D), 0x0F], [0] * 16)
    assert longest.counts[-1] == 1
    codes = Codes(code_of([*range(12), 11, 11, 11, 11], [0] * 16), longest)
    rng = np.random.default_rng(0)
    frame = Frame(24, 24, [(1, 1)], [codes], quantiser=1)
    mcus = [
        [Block(0, [(11, random_value(11, rng)), *[(0x0F, random_value(15, rng)) for _ in range(63)]])] for _ in range(9)
    ]
    data = write_blocks(frame, mcus)
    assert len(data) > 9 * 63 * 31 // 8
    assert assert_own_or_libjpegs(data, SQUARE, 24) is not None
    assert assert_own_or_libjpegs(data, LAST_CORNER, 3) is not None


@pytest.mark.parametrize("looks_like", [0x01, 0x00], ids=["a coefficient", "the end of a block"])
@pytest.mark.parametrize("skipped", range(3))
def test_what_follows_a_full_block_is_not_read_as_a_part_of_it(looks_like: int, skipped: int) -> None:
    """Codes so short that one lookup sees the last coefficient and, behind it, the next block's difference."""
    ac = equal_lengths(2, (0x01, 0x00, 0x11))
    dc = equal_lengths(2, (0, 1) if looks_like == 0x01 else (1, 0))
    assert dc.words[0] == ac.words[looks_like]
    rng = np.random.default_rng(skipped)
    symbols = [0x11] * skipped + [0x01] * (63 - 2 * skipped)
    mcus = [[Block(0, [(0, 0), *[(symbol, random_value(1, rng)) for symbol in symbols]])] for _ in range(9)]
    data = write_blocks(Frame(24, 24, [(1, 1)], [Codes(dc, ac)], quantiser=1), mcus)
    assert assert_own_or_libjpegs(data, SQUARE, 24) is not None
    assert assert_own_or_libjpegs(data, LAST_CORNER, 3) is not None


SQUARE_YCC = np.asarray(Image.fromarray(photograph(24, 24)).convert("YCbCr"))


def with_exchanged(code: HuffmanCode, first: int, second: int) -> HuffmanCode:
    """Codes of two symbols, exchanged: what was written with one code can be read with the other."""
    exchanged = {first: second, second: first}
    return HuffmanCode(code.counts, tuple(exchanged.get(symbol, symbol) for symbol in code.symbols))


# One value of 1 to 3 bits, behind no zero or behind one.
AC_CODES = [PLAIN_CODES.ac] + [with_exchanged(PLAIN_CODES.ac, bits, 0x10 | bits) for bits in range(1, 7)]
DC_CODES = [equal_lengths(4, tuple(np.roll(np.arange(12), shift).tolist())) for shift in range(7)]


def assert_decoded(luma: int, chroma: int) -> None:
    """A file whose components have these codes, of both kinds."""
    codes = [Codes(DC_CODES[number], AC_CODES[number]) for number in (luma, chroma, chroma)]
    data = write_jpeg(SQUARE_YCC, [(1, 1)] * 3, codes=codes)
    found = outcome(data, SQUARE, 24)
    assert found.failure is None
    np.testing.assert_allclose(found.pixels, expected(data, SQUARE, 24).levels, rtol=0, atol=1e-3)


def test_tables_of_a_file_are_not_replaced_by_its_own_next_ones() -> None:
    """A decoder keeps the tables of a few codes: that of luma is the oldest one when chroma's is new."""
    for luma, chroma in [(0, 1), (2, 3), (0, 4)]:
        assert_decoded(luma, chroma)


def test_so_it_is_for_any_files_one_after_the_other() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        luma, chroma = (int(number) for number in rng.integers(0, len(AC_CODES), 2))
        assert_decoded(luma, chroma)


# ----------------------------------------------------------------------------------------------------
# Files that are not ours are libjpeg-turbo's; failures are told in its words.


PICTURE = photograph(40, 40)
YCC = np.asarray(Image.fromarray(PICTURE).convert("YCbCr"))
GREY = YCC[..., :1]
PLAIN = [(1, 1)] * 3
HALF = [(2, 2), (1, 1), (1, 1)]
WHOLE = Box(0, 0, 40, 40, flip=False)
PARTS = [WHOLE, Box(0, 0, 40, 9, flip=True), Box(0, 17, 11, 20, flip=False), Box(23, 30, 17, 10, flip=True)]


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

# What `hpcai500 data index` says of each, and how it is made.
ACCEPTED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "progressive": ("progressive", lambda: jpeg(PICTURE, progressive=True)),
    "progressive grey": ("progressive", lambda: jpeg(PICTURE, mode="L", progressive=True)),
    "arithmetic": ("arithmetic coding", lambda: with_frame(jpeg(PICTURE), marker=0xC9)),
    "4:1:1": ("sampling 4x1,1x1,1x1", lambda: write_jpeg(YCC, [(4, 1), (1, 1), (1, 1)])),
    "4:4:0": ("sampling 1x2,1x1,1x1", lambda: write_jpeg(YCC, [(1, 2), (1, 1), (1, 1)])),
    "4:1:0": ("sampling 4x2,1x1,1x1", lambda: write_jpeg(YCC, [(4, 2), (1, 1), (1, 1)])),
    "4:2:2 in other words": ("sampling 2x2,1x2,1x2", lambda: write_jpeg(YCC, [(2, 2), (1, 2), (1, 2)])),
    "4:4:4 in other words": ("sampling 2x1,2x1,2x1", lambda: write_jpeg(YCC, [(2, 1)] * 3)),
    "unequal chroma": ("sampling 2x2,2x1,1x2", lambda: write_jpeg(YCC, [(2, 2), (2, 1), (1, 2)])),
    "grey of factors 2 x 2": ("sampling 2x2", lambda: write_jpeg(GREY, [(2, 2)], interleaved=False)),
    "RGB by Adobe's marker": ("RGB", lambda: write_jpeg(PICTURE, PLAIN, adobe_transform=0)),
    "RGB by its components' names": ("RGB", lambda: with_components_named(write_jpeg(PICTURE, PLAIN), b"RGB")),
    "CMYK": ("CMYK", lambda: jpeg(PICTURE, mode="CMYK")),
    "YCCK": ("YCCK", lambda: write_jpeg(np.concatenate([YCC, GREY], axis=2), [(1, 1)] * 4, adobe_transform=2)),
    "factors above 255": (
        "left to libjpeg-turbo",
        lambda: write_jpeg(YCC, HALF, quantiser=STEEP, wide_factors=True),
    ),
    "scans of one component": ("several scans", lambda: write_jpeg(YCC, PLAIN, interleaved=False)),
    "scans of one component, 4:2:0": (
        "several scans",
        lambda: write_jpeg(YCC, HALF, interleaved=False, restart_interval=2),
    ),
    "a DC code for differences of 12 bits": (
        "left to libjpeg-turbo",
        lambda: write_jpeg(YCC, HALF, codes=[LONG_DIFFERENCES] * 3),
    ),
}
REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "12 bits": ("unsupported", lambda: with_frame(jpeg(PICTURE), precision=12)),
    "lossless": ("unsupported", lambda: with_frame(jpeg(PICTURE), marker=0xC3)),
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
    reason, make = ACCEPTED[kind]
    data = make()
    for box in PARTS:
        for size in (7, 20, 40):
            own, other = outcome(data, box, size), outcome(data, box, size, "libjpeg-turbo")
            assert own.failure is None
            assert own.equals(other), (box, size)
    # libjpeg rounds pixels, our own decoder would not: so nobody has to believe that it was not asked.
    pixels = outcome(data, WHOLE, 40).pixels
    np.testing.assert_array_equal(pixels, np.rint(pixels))
    # A sound file is named by its kind and never damaged. Huffman's bytes do not end where an arithmetic decoder does.
    assert _core.check_jpeg(data) == (40, 40, kind == "arithmetic")
    assert _core.seek_points(data) is None
    assert why_not_ours(data) == reason


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
    assert (_core.seek_points(data) is None) == (width < 5)
    assert width >= 5 or why_not_ours(data) == "left to libjpeg-turbo"


OWN: dict[str, Callable[[], bytes]] = {
    "extended sequential": lambda: with_frame(jpeg(PICTURE), marker=0xC1),
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


def decoded(data: bytes, decoder: str) -> np.ndarray:
    spec = _core.DecodeSpec(size=32, dtype="uint8", decoder=decoder)
    out = np.empty(spec.shape, np.uint8)
    _core.decode_crop(data, spec, out, seed=1, epoch=0, sample=0)
    return out


@pytest.mark.parametrize("decoder", ["own", "libjpeg-turbo"])
def test_a_frame_of_a_film_has_the_standard_codes_whatever_came_before(decoder: str) -> None:
    """Its files leave out the codes that Annex K of T.81 gives, which Pillow writes where it does not optimise."""
    picture = photograph(80, 60)
    frame = without(jpeg(picture, quality=80), DHT)
    decoded(jpeg(picture[::-1], quality=30, optimize=True), decoder)
    np.testing.assert_array_equal(decoded(frame, decoder), decoded(jpeg(picture, quality=80), "libjpeg-turbo"))
    assert _core.seek_points(frame) is None


@pytest.mark.parametrize("decoder", ["own", "libjpeg-turbo"])
def test_a_file_without_quantisation_tables_is_refused_whatever_came_before(decoder: str) -> None:
    data = jpeg(photograph(80, 60), quality=80)
    decoded(data, decoder)
    with pytest.raises(_core.JpegError, match="corrupt: Quantization table 0x00 was not defined"):
        decoded(without(data, DQT), decoder)


SOUND_FILE = jpeg(photograph(90, 67))


@pytest.mark.parametrize(
    ("marker", "bits", "reason"),
    [
        (0xC0, 12, "12 bits"),
        (0xC1, 12, "12 bits"),
        (0xC3, 8, "lossless"),
        (0xC5, 8, "hierarchical"),
        (0xC9, 8, "arithmetic coding"),
        (0xCA, 8, "arithmetic coding"),
    ],
)
def test_what_only_the_header_of_a_frame_tells_is_told(marker: int, bits: int, reason: str) -> None:
    data = with_frame(SOUND_FILE, marker=marker, precision=bits)
    assert _core.seek_points(data) is None
    assert why_not_ours(data) == reason
    # Bytes that fill, and a segment that looks like another frame, stand before it.
    comment = b"\xff\xff\xff\xfe\x00\x09\xff\xc2\x00\x0b\x08ab"
    assert why_not_ours(data[:2] + comment + data[2:]) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "damaged"),
        (b"\xff\xd8", "damaged"),
        (SOUND_FILE[:300], "damaged"),
        (SOUND_FILE[: len(SOUND_FILE) // 2], "damaged"),
        (SOUND_FILE[: len(SOUND_FILE) // 2] + b"\xff\xd3" + SOUND_FILE[len(SOUND_FILE) // 2 :], "damaged"),
        (b"GIF89a and more", "no JPEG"),
    ],
    ids=["empty", "a first marker", "half a header", "half the data", "a marker out of place", "another format"],
)
def test_only_what_libjpeg_cannot_read_or_warns_of_is_damaged(data: bytes, reason: str) -> None:
    assert _core.seek_points(data) is None
    assert why_not_ours(data) == reason


def test_a_header_that_ends_anywhere_has_a_kind() -> None:
    header = jpeg(PICTURE, progressive=True)[:700]
    assert {why_not_ours(header[:length]) for length in range(len(header))} == {"damaged", "progressive"}


def test_a_header_of_more_than_a_mebibyte_is_not_looked_through() -> None:
    """Fill bytes before a marker, as many as there are, are legal, and a file may be 1 GiB of them."""
    progressive = jpeg(PICTURE, progressive=True)
    assert why_not_ours(progressive[:2] + b"\xff" * 2**10 + progressive[2:]) == "progressive"
    assert why_not_ours(progressive[:2] + b"\xff" * 2**20 + progressive[2:]) == "left to libjpeg-turbo"
