"""NumPy's Philox, again, in Python's own integers."""

from __future__ import annotations


def philox(key: tuple[int, int], count: int, highest: int = 0) -> list[int]:
    """Philox4x64-10 (Salmon et al., 2011); NumPy begins with counter 1. `highest` is the counter's last word."""
    word, values = 2**64, []
    for counter in range(1, count // 4 + 2):
        x, (k0, k1) = [counter, 0, 0, highest], key
        for _ in range(10):
            low, high = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
            x = [(high // word) ^ x[1] ^ k0, high % word, (low // word) ^ x[3] ^ k1, low % word]
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) % word, (k1 + 0xBB67AE8584CAA73B) % word
        values += x
    return values[:count]
