"""The digest of staged pieces: any change that faults make shows."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.staging.block_digest import ROW_BYTES, BlockDigest


def digest(*blocks: bytes) -> bytes:
    taken = BlockDigest()
    for block in blocks:
        taken.update(block)
    return taken.digest()


def plain(content: bytes) -> bytes:
    """The same by Python's whole numbers, word by word."""
    taken, rows = hashlib.sha256(), len(content) // ROW_BYTES if len(content) >= 4 * ROW_BYTES else 0
    table = [
        [int.from_bytes(content[at : at + 8], "little") for at in range(row * ROW_BYTES, (row + 1) * ROW_BYTES, 8)]
        for row in range(rows)
    ]
    sums = [sum(column) for column in zip(*table, strict=True)] + [sum(row) for row in table]
    for number in sums:
        taken.update((number % 2**64).to_bytes(8, "little"))
    taken.update(content[rows * ROW_BYTES :])
    return taken.digest()


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 20480, 50_001])
def test_it_is_what_its_description_says(size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    assert digest(content) == plain(content)


@given(st.integers(0, 99_999), st.integers(1, 9000))
def test_a_run_of_other_bytes_anywhere_shows(start: int, length: int) -> None:
    content = bytearray(np.random.default_rng(1).bytes(100_000))
    before = digest(bytes(content))
    for at in range(start, min(start + length, len(content))):
        content[at] ^= 0x5A
    assert digest(bytes(content)) != before


def test_swapped_pages_words_and_zeroed_blocks_show() -> None:
    content = np.random.default_rng(2).bytes(100_000)
    pages = [content[at : at + 4096] for at in range(0, 98_304, 4096)]
    rest = content[98_304:]
    assert digest(b"".join([pages[1], pages[0], *pages[2:], rest])) != digest(content)
    assert digest(content[8:16] + content[:8] + content[16:]) != digest(content)
    assert digest(content[:4096] + bytes(4096) + content[8192:]) != digest(content)
    assert digest(content + b"\0") != digest(content)
    assert digest(content[:-1]) != digest(content)
