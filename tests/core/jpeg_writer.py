"""A small baseline JPEG writer, for the kinds of file that Pillow cannot write: any sampling factors, any Huffman code,
several scans, YCCK, no Adobe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jpeg_blocks import PLAIN_CODES, Block, Codes, Frame, Symbol, entropy_coded, scan_header, write_blocks
from numpy.typing import NDArray

_ZIGZAG = sorted(
    ((row, column) for row in range(8) for column in range(8)),
    key=lambda at: (at[0] + at[1], at[0] if (at[0] + at[1]) % 2 else at[1]),
)
_COSINES = np.array(
    [[(np.sqrt(1 / 8) if u == 0 else 0.5) * np.cos((2 * x + 1) * u * np.pi / 16) for x in range(8)] for u in range(8)]
)


def _symbols(coefficients: NDArray[np.int64], previous_dc: int) -> Iterable[Symbol]:
    difference = int(coefficients[0, 0]) - previous_dc
    yield abs(difference).bit_length(), difference
    run = 0
    for row, column in _ZIGZAG[1:]:
        value = int(coefficients[row, column])
        if value == 0:
            run += 1
            continue
        for _ in range(run // 16):
            yield 0xF0, 0
        yield (run % 16 << 4) | abs(value).bit_length(), value
        run = 0
    if run:
        yield 0x00, 0


def _block_grids(frame: Frame, planes: NDArray[np.uint8]) -> list[NDArray[np.int64]]:
    """Quantised coefficients (block rows, block columns, 8, 8) of each component."""
    most_h, most_v = max(h for h, _ in frame.sampling), max(v for _, v in frame.sampling)
    mcu_rows, mcu_columns = frame.mcus
    padded = np.pad(
        planes.astype(float),
        ((0, mcu_rows * 8 * most_v - frame.height), (0, mcu_columns * 8 * most_h - frame.width), (0, 0)),
        "edge",
    )
    factors = np.full((8, 8), 4.0)
    for place, at in enumerate(_ZIGZAG):
        factors[at] = frame.quantiser if isinstance(frame.quantiser, int) else frame.quantiser[place]
    grids = []
    for component, (h, v) in enumerate(frame.sampling):
        step_x, step_y = most_h // h, most_v // v
        plane = padded[:, :, component]
        plane = (
            plane.reshape(plane.shape[0] // step_y, step_y, plane.shape[1] // step_x, step_x).mean(axis=(1, 3)) - 128
        )
        blocks = plane.reshape(plane.shape[0] // 8, 8, plane.shape[1] // 8, 8).swapaxes(1, 2)
        grids.append(np.rint(_COSINES @ blocks @ _COSINES.T / factors).astype(np.int64))
    return grids


class _Coder:
    """Makes blocks of one component after the other, and starts anew at each restart marker."""

    def __init__(self, grids: Sequence[NDArray[np.int64]]) -> None:
        self._grids = grids
        self.restart()

    def restart(self) -> None:
        self._previous = [0] * len(self._grids)

    def block(self, component: int, row: int, column: int) -> Block:
        coefficients = self._grids[component][row, column]
        block = Block(component, list(_symbols(coefficients, self._previous[component])))
        self._previous[component] = int(coefficients[0, 0])
        return block


def write_jpeg(
    planes: NDArray[np.uint8],
    sampling: Sequence[tuple[int, int]],
    *,
    quantiser: int | Sequence[int] = 4,
    restart_interval: int = 0,
    adobe_transform: int | None = None,
    wide_factors: bool = False,
    codes: Sequence[Codes] | None = None,
    interleaved: bool = True,
) -> bytes:
    """A baseline JPEG of `planes` (height, width, components), levels as they are to be stored.

    The arguments are those of Frame; a component with smaller factors is averaged. `codes` has to know the symbols that
    occur. Without `interleaved` each component has a scan of its own.
    """
    height, width, components = planes.shape
    codes = codes or [PLAIN_CODES] * components
    frame = Frame(width, height, sampling, codes, quantiser, restart_interval, adobe_transform, wide_factors)
    grids = _block_grids(frame, planes)
    coder = _Coder(grids)
    if not interleaved:
        return frame.header() + b"".join(_own_scans(frame, coder)) + b"\xff\xd9"
    mcu_rows, mcu_columns = frame.mcus
    mcus = []
    for mcu in range(mcu_rows * mcu_columns):
        if restart_interval and mcu % restart_interval == 0:
            coder.restart()
        mcu_row, mcu_column = divmod(mcu, mcu_columns)
        mcus.append(
            [
                coder.block(component, mcu_row * v + block // h, mcu_column * h + block % h)
                for component, (h, v) in enumerate(sampling)
                for block in range(h * v)
            ]
        )
    return write_blocks(frame, mcus)


def _own_scans(frame: Frame, coder: _Coder) -> Iterable[bytes]:
    most_h, most_v = max(h for h, _ in frame.sampling), max(v for _, v in frame.sampling)
    for component, (h, v) in enumerate(frame.sampling):
        # Such a scan has no more blocks than the component needs (T.81, A.2.2).
        rows, columns = -(-frame.height * v // (8 * most_v)), -(-frame.width * h // (8 * most_h))
        mcus = []
        for block in range(rows * columns):
            if frame.restart_interval and block % frame.restart_interval == 0:
                coder.restart()
            mcus.append([coder.block(component, *divmod(block, columns))])
        yield scan_header([component], frame.codes) + entropy_coded(mcus, frame.codes, frame.restart_interval)
