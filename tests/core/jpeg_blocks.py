"""Baseline JPEG files of blocks that the caller made: any sampling factors, any Huffman code, any symbols."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from huffman_code import HuffmanCode, equal_lengths


@dataclass(frozen=True)
class Codes:
    """The two Huffman codes of a component."""

    dc: HuffmanCode
    ac: HuffmanCode


# Codes of one length, which the format allows and which know every symbol of 8-bit images.
PLAIN_CODES = Codes(
    equal_lengths(4, tuple(range(12))),
    equal_lengths(8, (*((run << 4) | size for run in range(16) for size in range(1, 11)), 0x00, 0xF0)),
)

# A symbol and the value that follows it. Of DC the symbol is the value's bits, of AC its lower half.
Symbol = tuple[int, int]


@dataclass(frozen=True)
class Block:
    """What is coded of one block: its DC difference first."""

    component: int
    symbols: Sequence[Symbol]


class _Bits:
    def __init__(self) -> None:
        self.data = bytearray()
        self._held = 0
        self._count = 0

    def put(self, value: int, bits: int) -> None:
        self._held = (self._held << bits) | (value & ((1 << bits) - 1))
        self._count += bits
        while self._count >= 8:
            byte = (self._held >> (self._count - 8)) & 0xFF
            self.data += bytes([byte, 0]) if byte == 0xFF else bytes([byte])
            self._count -= 8

    def put_number(self, value: int, bits: int) -> None:
        self.put(value if value >= 0 else value + (1 << bits) - 1, bits)

    def pad(self) -> None:
        if self._count:
            self.put(0xFF, 8 - self._count)


def entropy_coded(mcus: Sequence[Sequence[Block]], codes: Sequence[Codes], restart_interval: int = 0) -> bytes:
    """The data of a scan."""
    bits = _Bits()
    for number, mcu in enumerate(mcus):
        if restart_interval and number and number % restart_interval == 0:
            bits.pad()
            bits.data += bytes([0xFF, 0xD0 + (number // restart_interval - 1) % 8])
        for block in mcu:
            code = codes[block.component].dc
            for symbol, value in block.symbols:
                bits.put(*code.words[symbol])
                bits.put_number(value, symbol & 15)
                code = codes[block.component].ac
    bits.pad()
    return bytes(bits.data)


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def _tables(codes: Sequence[Codes]) -> bytes:
    out = b""
    for name, pair in enumerate(dict.fromkeys(codes)):
        for kind, code in ((0x00, pair.dc), (0x10, pair.ac)):
            out += _segment(0xC4, bytes([kind | name, *code.counts, *code.symbols]))
    return out


def scan_header(components: Sequence[int], codes: Sequence[Codes]) -> bytes:
    """Of the scan of these components, with the codes that belong to them."""
    names = list(dict.fromkeys(codes))
    selected = [(component + 1, names.index(codes[component]) * 0x11) for component in components]
    return _segment(0xDA, bytes([len(components), *(byte for pair in selected for byte in pair), 0, 63, 0]))


@dataclass(frozen=True)
class Frame:
    """An image's size, and what its files say before the data.

    `sampling` holds (horizontal, vertical) factors per component, `quantiser` one factor for all coefficients or 64 in
    the order of their codes; `wide_factors` writes them with 16 bits. `restart_interval` counts MCUs. `adobe_transform`
    writes an Adobe marker: 0 is RGB or CMYK, 1 YCbCr, 2 YCCK.
    """

    width: int
    height: int
    sampling: Sequence[tuple[int, int]]
    codes: Sequence[Codes]
    quantiser: int | Sequence[int] = 4
    restart_interval: int = 0
    adobe_transform: int | None = None
    wide_factors: bool = False

    @property
    def mcus(self) -> tuple[int, int]:
        """Rows and columns of MCUs."""
        most_h, most_v = max(h for h, _ in self.sampling), max(v for _, v in self.sampling)
        return -(-self.height // (8 * most_v)), -(-self.width // (8 * most_h))

    def header(self) -> bytes:
        """All that stands before the first scan."""
        frame = struct.pack(">BHHB", 8, self.height, self.width, len(self.sampling))
        for component, (h, v) in enumerate(self.sampling):
            frame += bytes([component + 1, h << 4 | v, 0])
        out = b"\xff\xd8"
        if self.adobe_transform is not None:
            out += _segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, self.adobe_transform))
        factors = [self.quantiser] * 64 if isinstance(self.quantiser, int) else list(self.quantiser)
        table = struct.pack(">B64H", 0x10, *factors) if self.wide_factors else bytes([0, *factors])
        out += _segment(0xDB, table) + _segment(0xC0, frame) + _tables(self.codes)
        if self.restart_interval:
            out += _segment(0xDD, struct.pack(">H", self.restart_interval))
        return out


def write_blocks(frame: Frame, mcus: Sequence[Sequence[Block]]) -> bytes:
    """A file of one scan that holds these blocks."""
    data = entropy_coded(mcus, frame.codes, frame.restart_interval)
    return frame.header() + scan_header(range(len(frame.sampling)), frame.codes) + data + b"\xff\xd9"
