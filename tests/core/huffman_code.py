"""A Huffman code as a JPEG file gives it (ITU-T T.81, annex C)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

LONGEST_CODE = 16


@dataclass(frozen=True)
class HuffmanCode:
    """How many codes have 1 to 16 bits, and the symbols in the order of their codes."""

    counts: tuple[int, ...]
    symbols: tuple[int, ...]

    @cached_property
    def codes(self) -> dict[tuple[int, int], int]:
        """The symbol of each (bits of the code, code)."""
        symbols, codes, code = iter(self.symbols), {}, 0
        for bits, count in enumerate(self.counts, start=1):
            for _ in range(count):
                codes[bits, code] = next(symbols)
                code += 1
            code <<= 1
        return codes

    @cached_property
    def words(self) -> dict[int, tuple[int, int]]:
        """(code, bits of the code) of each symbol; of one that has several, the longest."""
        return {symbol: (code, bits) for (bits, code), symbol in self.codes.items()}

    @property
    def has_code_of_ones(self) -> bool:
        """Whether some code is all ones, or more codes were given than there are: T.81 forbids both."""
        return any(code >= (1 << bits) - 1 for bits, code in self.codes)


def equal_lengths(bits: int, symbols: tuple[int, ...]) -> HuffmanCode:
    """Codes of one length: the simplest code."""
    return HuffmanCode(tuple(len(symbols) if length == bits else 0 for length in range(1, 17)), symbols)
