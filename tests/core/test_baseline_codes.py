"""Huffman codes of every shape: what they say, how far they reach, and how long a decoder remembers them."""

from __future__ import annotations

import numpy as np
import pytest
from baseline_outcomes import assert_own_or_libjpegs, expected, outcome
from huffman_code import LONGEST_CODE, HuffmanCode, equal_lengths
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_blocks import PLAIN_CODES, Block, Codes, Frame, Symbol, write_blocks
from jpeg_writer import write_jpeg
from pictures import photograph
from PIL import Image
from reference import Box

WHOLE = Box(0, 0, 24, 24, flip=False)
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
    assert assert_own_or_libjpegs(data, WHOLE, 24) is not None
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
    assert assert_own_or_libjpegs(data, WHOLE, 24) is not None
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
    assert assert_own_or_libjpegs(data, WHOLE, 24) is not None
    assert assert_own_or_libjpegs(data, LAST_CORNER, 3) is not None


YCC = np.asarray(Image.fromarray(photograph(24, 24)).convert("YCbCr"))


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
    data = write_jpeg(YCC, [(1, 1)] * 3, codes=codes)
    found = outcome(data, WHOLE, 24)
    assert found.failure is None
    np.testing.assert_allclose(found.pixels, expected(data, WHOLE, 24).levels, rtol=0, atol=1e-3)


def test_tables_of_a_file_are_not_replaced_by_its_own_next_ones() -> None:
    """A decoder keeps the tables of a few codes: that of luma is the oldest one when chroma's is new."""
    for luma, chroma in [(0, 1), (2, 3), (0, 4)]:
        assert_decoded(luma, chroma)


def test_so_it_is_for_any_files_one_after_the_other() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        luma, chroma = (int(number) for number in rng.integers(0, len(AC_CODES), 2))
        assert_decoded(luma, chroma)
