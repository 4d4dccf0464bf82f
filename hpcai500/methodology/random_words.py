"""Random words that are the same on every machine and NumPy version: what orders, rolls and draws are made of."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

# Words of one block of Philox4x64.
_BLOCK = 4


class Draw(IntEnum):
    """What random words are for. Each has its own: shared ones would tie a sample's roll to its place in the epoch."""

    ORDER = 0
    ROLLS = 1
    WINDOWS = 2
    MEMBER = 3
    PROBE = 4


def random_words(count: int, seed: int, epoch: int, draw: Draw, first: int = 0) -> npt.NDArray[np.uint64]:
    """Return `count` random 64-bit words of one epoch, the same on every machine and NumPy version.

    They are those from number `first` on: each word can be had without the ones before it.

    NumPy guarantees a BitGenerator's raw stream for ever, but not what Generator's methods make of it. Raises
    ValueError for a seed or an epoch outside 0 ... 2**64 - 1, and for a negative count or first.
    """
    if count < 0 or first < 0 or not 0 <= seed < 2**64 or not 0 <= epoch < 2**64:
        raise ValueError(f"samples, seed and epoch must be non-negative 64-bit integers: {count}, {seed}, {epoch}")
    block, skipped = divmod(first, _BLOCK)
    key, counter = np.array([seed, epoch], dtype=np.uint64), np.array([block, 0, 0, draw], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(skipped + count)
    return np.asarray(words, np.uint64)[skipped:]
