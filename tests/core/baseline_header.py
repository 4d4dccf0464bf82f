"""The headers of baseline JPEG files (ITU-T T.81, annex B): those that our own decoder takes, and of others why not."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from huffman_code import HuffmanCode
from numpy.typing import NDArray

SIDE = 8
ZIGZAG = sorted(
    ((row, column) for row in range(SIDE) for column in range(SIDE)),
    key=lambda at: (at[0] + at[1], at[0] if (at[0] + at[1]) % 2 else at[1]),
)
LONGEST_DIFFERENCE = 11
FEWEST_CHROMA_SAMPLES = 3


class NotOursError(Exception):
    """An image of another kind, or data that an undamaged one does not have: libjpeg-turbo is asked."""


@dataclass(frozen=True)
class Component:
    """Y, Cb or Cr: blocks of an MCU across and down, factors of the 64 coefficients as rows, and its two codes."""

    across: int
    down: int
    factors: NDArray[np.int64]
    dc: HuffmanCode
    ac: HuffmanCode


@dataclass(frozen=True)
class Header:
    """What stands before the data, which begins at byte `data_start`."""

    width: int
    height: int
    restart_interval: int
    components: tuple[Component, ...]
    data_start: int

    @property
    def mcu_width(self) -> int:
        """Pixels."""
        return SIDE * self.components[0].across

    @property
    def mcu_height(self) -> int:
        """Pixels."""
        return SIDE * self.components[0].down

    @property
    def mcus_across(self) -> int:
        """MCUs of a row."""
        return -(-self.width // self.mcu_width)

    @property
    def mcus_down(self) -> int:
        """Rows of MCUs."""
        return -(-self.height // self.mcu_height)


def _quantisation_tables(payload: bytes) -> dict[int, NDArray[np.int64]]:
    tables = {}
    while payload:
        wide, name = payload[0] >> 4, payload[0] & 15
        values = np.frombuffer(payload, ">u2" if wide else "u1", 64, 1)
        table = np.zeros((SIDE, SIDE), np.int64)
        for (row, column), value in zip(ZIGZAG, values, strict=True):
            table[row, column] = value
        tables[name] = table
        payload = payload[1 + values.nbytes :]
    return tables


def _huffman_codes(payload: bytes) -> dict[int, HuffmanCode]:
    codes = {}
    while payload:
        counts = tuple(payload[1:17])
        codes[payload[0]] = HuffmanCode(counts, tuple(payload[17 : 17 + sum(counts)]))
        payload = payload[17 + sum(counts) :]
    return codes


def read_header(data: bytes) -> Header:
    """The header of a well-formed file; raises NotOursError for a kind that our own decoder leaves alone."""
    quantisation: dict[int, NDArray[np.int64]] = {}
    codes: dict[int, HuffmanCode] = {}
    frame, restart_interval, transform, at = b"", 0, 1, 2
    while True:
        marker, length = struct.unpack_from(">xBH", data, at)
        payload, at = data[at + 4 : at + 2 + length], at + 2 + length
        if marker == 0xDB:
            quantisation |= _quantisation_tables(payload)
        elif marker == 0xC4:
            codes |= _huffman_codes(payload)
        elif marker == 0xDD:
            restart_interval = struct.unpack(">H", payload)[0]
        elif marker == 0xEE and payload.startswith(b"Adobe"):
            transform = payload[11]
        elif marker in (0xC0, 0xC1):
            frame = payload
        elif 0xC2 <= marker <= 0xCF:
            raise NotOursError("progressive, lossless or arithmetic")
        elif marker == 0xDA:
            break
    precision, height, width, count = struct.unpack_from(">BHHB", frame)
    if precision != 8 or count not in (1, 3) or payload[0] != count or transform != 1:
        raise NotOursError("precision, colours or scans")
    components = []
    for index in range(count):
        name, factors, table = frame[6 + 3 * index : 9 + 3 * index]
        scanned, selected = payload[1 + 2 * index : 3 + 2 * index]
        if scanned != name:
            raise NotOursError("order of components")
        dc, ac = codes[selected >> 4], codes[0x10 | selected & 15]
        components.append(Component(factors >> 4, factors & 15, quantisation[table], dc, ac))
    header = Header(width, height, restart_interval, tuple(components), at)
    _check_kind(header)
    return header


def _check_kind(header: Header) -> None:
    luma, *chroma = header.components
    sampling = (luma.across, luma.down)
    if sampling not in ([(1, 1), (2, 1), (2, 2)] if chroma else [(1, 1)]):
        raise NotOursError("sampling")
    if any((other.across, other.down) != (1, 1) for other in chroma):
        raise NotOursError("sampling")
    # libjpeg repeats chroma of fewer samples instead of interpolating it.
    if luma.across == 2 and -(-header.width // 2) < FEWEST_CHROMA_SAMPLES:
        raise NotOursError("too narrow for interpolated chroma")
    for component in header.components:
        if component.factors.max() > 255:
            raise NotOursError("factors of 12-bit images")
        if component.dc.has_code_of_ones or component.ac.has_code_of_ones:
            raise NotOursError("not a prefix code")
        if max(component.dc.symbols, default=0) > LONGEST_DIFFERENCE:
            raise NotOursError("differences of 12-bit images")
