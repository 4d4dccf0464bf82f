"""A small baseline JPEG writer, for the kinds of file that Pillow cannot write: any sampling factors, YCCK, no Adobe.

Every Huffman code has the same length (4 bits for DC, 8 for AC), which the format allows and which keeps this short.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ZIGZAG = sorted(
    ((row, column) for row in range(8) for column in range(8)),
    key=lambda at: (at[0] + at[1], at[0] if (at[0] + at[1]) % 2 else at[1]),
)
_AC_SYMBOLS = [(run << 4) | size for run in range(16) for size in range(1, 11)] + [0x00, 0xF0]
_COSINES = np.array(
    [[(np.sqrt(1 / 8) if u == 0 else 0.5) * np.cos((2 * x + 1) * u * np.pi / 16) for x in range(8)] for u in range(8)]
)


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

    def pad(self) -> None:
        if self._count:
            self.put(0xFF, 8 - self._count)


def _put_number(bits: _Bits, value: int, size: int) -> None:
    bits.put(value if value >= 0 else value + (1 << size) - 1, size)


def _put_block(bits: _Bits, coefficients: NDArray[np.int64], previous_dc: int) -> int:
    difference = int(coefficients[0, 0]) - previous_dc
    size = abs(difference).bit_length()
    bits.put(size, 4)
    _put_number(bits, difference, size)
    run = 0
    for row, column in _ZIGZAG[1:]:
        value = int(coefficients[row, column])
        if value == 0:
            run += 1
            continue
        while run > 15:
            bits.put(_AC_SYMBOLS.index(0xF0), 8)
            run -= 16
        size = abs(value).bit_length()
        bits.put(_AC_SYMBOLS.index((run << 4) | size), 8)
        _put_number(bits, value, size)
        run = 0
    if run:
        bits.put(_AC_SYMBOLS.index(0x00), 8)
    return int(coefficients[0, 0])


def _segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def write_jpeg(
    planes: NDArray[np.uint8],
    sampling: Sequence[tuple[int, int]],
    *,
    quantiser: int = 4,
    restart_interval: int = 0,
    adobe_transform: int | None = None,
) -> bytes:
    """A baseline JPEG of `planes` (height, width, components), levels as they are to be stored.

    `sampling` holds (horizontal, vertical) factors per component; a component with smaller factors is averaged.
    `restart_interval` counts MCUs. `adobe_transform` writes an Adobe marker: 0 is RGB or CMYK, 1 YCbCr, 2 YCCK.
    """
    height, width, components = planes.shape
    most_h, most_v = max(h for h, _ in sampling), max(v for _, v in sampling)
    mcu_columns, mcu_rows = -(-width // (8 * most_h)), -(-height // (8 * most_v))
    padded = np.pad(
        planes.astype(float),
        ((0, mcu_rows * 8 * most_v - height), (0, mcu_columns * 8 * most_h - width), (0, 0)),
        "edge",
    )
    grids = []
    for component, (h, v) in enumerate(sampling):
        step_x, step_y = most_h // h, most_v // v
        plane = padded[:, :, component]
        plane = (
            plane.reshape(plane.shape[0] // step_y, step_y, plane.shape[1] // step_x, step_x).mean(axis=(1, 3)) - 128
        )
        blocks = plane.reshape(plane.shape[0] // 8, 8, plane.shape[1] // 8, 8).swapaxes(1, 2)
        grids.append(np.rint(_COSINES @ blocks @ _COSINES.T / quantiser).astype(np.int64))

    bits = _Bits()
    previous = [0] * components
    for mcu in range(mcu_rows * mcu_columns):
        if restart_interval and mcu and mcu % restart_interval == 0:
            bits.pad()
            bits.data += bytes([0xFF, 0xD0 + (mcu // restart_interval - 1) % 8])
            previous = [0] * components
        mcu_row, mcu_column = divmod(mcu, mcu_columns)
        for component, (h, v) in enumerate(sampling):
            for block in range(h * v):
                row, column = mcu_row * v + block // h, mcu_column * h + block % h
                previous[component] = _put_block(bits, grids[component][row, column], previous[component])
    bits.pad()

    frame = struct.pack(">BHHB", 8, height, width, components)
    scan = bytes([components])
    for component, (h, v) in enumerate(sampling):
        frame += bytes([component + 1, h << 4 | v, 0])
        scan += bytes([component + 1, 0])
    dc_table = bytes([0x00, *[0] * 3, 12, *[0] * 12, *range(12)])
    ac_table = bytes([0x10, *[0] * 7, len(_AC_SYMBOLS), *[0] * 8, *_AC_SYMBOLS])
    out = b"\xff\xd8"
    if adobe_transform is not None:
        out += _segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, adobe_transform))
    out += _segment(0xDB, bytes([0, *[quantiser] * 64])) + _segment(0xC0, frame)
    out += _segment(0xC4, dc_table) + _segment(0xC4, ac_table)
    if restart_interval:
        out += _segment(0xDD, struct.pack(">H", restart_interval))
    return out + _segment(0xDA, scan + bytes([0, 63, 0])) + bytes(bits.data) + b"\xff\xd9"
