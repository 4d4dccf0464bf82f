"""Entropy-coded data of baseline JPEG files to coefficients: readable, slow, from ITU-T T.81, annex F."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from baseline_header import SIDE, ZIGZAG, Component, Header, NotOursError
from huffman_code import LONGEST_CODE, HuffmanCode
from numpy.typing import NDArray

MOST_COEFFICIENT = 32767


class BitReader:
    """The bits from byte `start` of a file to its next marker, most significant first."""

    def __init__(self, data: bytes, start: int) -> None:
        # A zero stands behind each 0xFF that is data (T.81, F.1.2.3).
        self._ends: list[int] = []
        values, at = bytearray(), start
        while at < len(data):
            stuffed = data[at] == 0xFF
            if stuffed and data[at + 1 : at + 2] != b"\0":
                break
            values.append(data[at])
            at += 2 if stuffed else 1
            self._ends.append(at)
        self.marker_at = at
        self._start = start
        self._bits = np.unpackbits(np.frombuffer(bytes(values), np.uint8)).tolist()
        self._next = 0

    @property
    def unread_bytes(self) -> int:
        """Whole bytes before the marker of which no bit was taken."""
        return (len(self._bits) - self._next) // 8

    @property
    def read_until(self) -> int:
        """The byte of the file behind the last one of which a bit was taken."""
        return self._ends[(self._next - 1) // 8] if self._next else self._start

    def bit(self) -> int:
        """The next bit."""
        if self._next == len(self._bits):
            raise NotOursError("the data ends")
        self._next += 1
        return self._bits[self._next - 1]

    def symbol(self, code: HuffmanCode) -> int:
        """The symbol of the next code (T.81, F.2.2.3)."""
        value = 0
        for bits in range(1, LONGEST_CODE + 1):
            value = value << 1 | self.bit()
            if (bits, value) in code.codes:
                return code.codes[bits, value]
        raise NotOursError("no code begins so")

    def value(self, bits: int) -> int:
        """The value of the next bits: one whose first bit is 0 is negative (T.81, table F.1)."""
        value = 0
        for _ in range(bits):
            value = value << 1 | self.bit()
        return value if bits == 0 or value >= 1 << (bits - 1) else value + 1 - (1 << bits)


def decode_block(reader: BitReader, component: Component, predictor: int) -> NDArray[np.int64]:
    """The coefficients of the next block as rows, not dequantised (T.81, F.2.2)."""
    block = np.zeros((SIDE, SIDE), np.int64)
    block[0, 0] = predictor + reader.value(reader.symbol(component.dc))
    if abs(block[0, 0]) > MOST_COEFFICIENT:
        raise NotOursError("a DC coefficient that no image has")
    place = 1
    while place < len(ZIGZAG):
        run, bits = divmod(reader.symbol(component.ac), 16)
        if bits == 0 and run != 15:
            return block
        place += run
        value = reader.value(bits)
        if place >= len(ZIGZAG):
            raise NotOursError("a run out of the block")
        block[ZIGZAG[place]] = value
        place += 1
    return block


@dataclass(frozen=True)
class Decoded:
    """Coefficients of each component, (block rows, block columns, 8, 8), and the byte of the file behind the last."""

    coefficients: list[NDArray[np.int64]]
    read_until: int


def decode_scan(data: bytes, header: Header, rows: int, columns: int) -> Decoded:
    """All MCUs of the first rows, of the last of them only the first columns."""
    shapes = [(header.mcus_down * c.down, header.mcus_across * c.across, SIDE, SIDE) for c in header.components]
    coefficients = [np.zeros(shape, np.int64) for shape in shapes]
    reader, predictors = BitReader(data, header.data_start), [0] * len(shapes)
    for mcu in range((rows - 1) * header.mcus_across + columns):
        if header.restart_interval and mcu and mcu % header.restart_interval == 0:
            marker = bytes([0xFF, 0xD0 + (mcu // header.restart_interval - 1) % 8])
            if reader.unread_bytes or data[reader.marker_at : reader.marker_at + 2] != marker:
                raise NotOursError("not the restart marker that is due")
            reader, predictors = BitReader(data, reader.marker_at + 2), [0] * len(shapes)
        row, column = divmod(mcu, header.mcus_across)
        for index, component in enumerate(header.components):
            for y in range(row * component.down, (row + 1) * component.down):
                for x in range(column * component.across, (column + 1) * component.across):
                    block = decode_block(reader, component, predictors[index])
                    predictors[index] = int(block[0, 0])
                    coefficients[index][y, x] = block
    return Decoded(coefficients, reader.read_until)
