"""JPEG files: seeded pictures as Pillow writes them, a baseline writer for what Pillow cannot write, and a corpus.

The writer takes any sampling factors, any Huffman code, any symbols, several scans, YCCK, no Adobe (ITU-T T.81).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def photograph(width: int, height: int, seed: int = 0, noise: float = 3) -> NDArray[np.uint8]:
    """(height, width, 3): smooth colours, edges and a little noise (its standard deviation in levels)."""
    rng = np.random.default_rng([seed, width, height])
    coarse = rng.integers(20, 236, (height // 24 + 2, width // 24 + 2, 3), dtype=np.uint8)
    levels = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    rows, columns = np.mgrid[0:height, 0:width]
    for _ in range(6):
        x, y, radius = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.05, 0.25) * max(width, height)
        levels[np.hypot(columns - x, rows - y) < radius] += rng.uniform(-60, 60, 3)
    return np.clip(levels + rng.normal(0, noise, levels.shape), 0, 255).astype(np.uint8)


def jpeg(pixels: NDArray[np.uint8], *, mode: str | None = None, **options: Any) -> bytes:
    """`pixels` as Pillow writes them; `mode` converts first, `options` are Pillow's."""
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, "JPEG", **{"quality": 90, **options})
    return buffer.getvalue()


def decoded(data: bytes) -> Image.Image:
    """What Pillow makes of a file."""
    return Image.open(io.BytesIO(data)).convert("RGB")


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


ZIGZAG = sorted(
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
    for row, column in ZIGZAG[1:]:
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
    for place, at in enumerate(ZIGZAG):
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


_SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
DHT, DQT = 0xC4, 0xDB


def noise(width: int, height: int, amplitude: int = 128) -> NDArray[np.uint8]:
    """(height, width, 3): levels without any order, so that blocks have no end before their last coefficient."""
    levels = np.random.default_rng([width, height]).integers(128 - amplitude, 128 + amplitude, (height, width, 3))
    return levels.clip(0, 255).astype(np.uint8)


def stripes(width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 3): one high frequency alone, so that long runs of zeros stand before it."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.repeat((((rows + columns) % 2) * 200 + 20)[..., None], 3, axis=2).astype(np.uint8)


def without(data: bytes, marker: int) -> bytes:
    """The file without its segments of this marker."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return kept + data[at:]


def with_frame(
    data: bytes,
    *,
    marker: int | None = None,
    precision: int = 8,
    size: tuple[int, int] | None = None,
    components: int | None = None,
) -> bytes:
    """The file whose frame header says something else; `size` is (width, height)."""
    changed = bytearray(data)
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    changed[at + 1] = marker or data[at + 1]
    changed[at + 4] = precision
    if size:
        changed[at + 5 : at + 9] = struct.pack(">HH", size[1], size[0])
    changed[at + 9] = components or data[at + 9]
    return bytes(changed)


def our_files() -> dict[str, bytes]:
    """Files that our decoder takes, by name."""
    files = {}
    for sampling in _SAMPLINGS:
        name = sampling.replace(":", "")
        for width, height in ((8, 8), (17, 9), (33, 40), (64, 20)):
            files[f"{name}-{width}x{height}"] = jpeg(
                photograph(width, height), subsampling=sampling, quality=70, optimize=width == 33
            )
        for interval in (1, 2, 5):
            files[f"{name}-restart-{interval}"] = jpeg(
                photograph(40, 33), subsampling=sampling, quality=60, restart_marker_blocks=interval
            )
        files[f"{name}-noise"] = jpeg(noise(24, 24), subsampling=sampling, quality=100, optimize=True)
        files[f"{name}-coarse"] = jpeg(noise(32, 16), subsampling=sampling, quality=1)
        files[f"{name}-stripes"] = jpeg(stripes(32, 16), subsampling=sampling, quality=50)
    for luma in ((1, 1), (2, 1), (2, 2)):
        name = f"flat-codes-{luma[0]}{luma[1]}"
        files[name] = write_jpeg(photograph(40, 24), [luma, (1, 1), (1, 1)], quantiser=12)
        files[f"{name}-restart"] = write_jpeg(noise(40, 24), [luma, (1, 1), (1, 1)], quantiser=30, restart_interval=3)
    for width, height in ((1, 1), (8, 64), (37, 45)):
        files[f"grey-{width}x{height}"] = jpeg(photograph(width, height), mode="L", quality=80)
    files["grey-restart"] = jpeg(photograph(40, 24), mode="L", quality=40, restart_marker_blocks=2)
    files["grey-noise"] = jpeg(noise(24, 24), mode="L", quality=100)
    files["grey-even"] = jpeg(np.full((30, 30, 3), 77, np.uint8), mode="L")
    return files


def foreign_files() -> dict[str, bytes]:
    """Files that libjpeg-turbo is left with, and what is no image, by name."""
    picture = photograph(45, 37)
    return {
        "cmyk": jpeg(picture, mode="CMYK", quality=60),
        "progressive": jpeg(picture, progressive=True, quality=60),
        "progressive-grey": jpeg(picture, mode="L", progressive=True, quality=60),
        "narrow": jpeg(picture[:, :3]),
        "411": write_jpeg(picture, [(4, 1), (1, 1), (1, 1)], quantiser=20),
        "440": write_jpeg(picture, [(1, 2), (1, 1), (1, 1)], quantiser=20, restart_interval=2),
        "uneven": write_jpeg(picture, [(2, 2), (2, 1), (1, 2)], quantiser=20),
        "rgb": write_jpeg(picture, [(1, 1)] * 3, quantiser=20, adobe_transform=0),
        "without-codes": without(jpeg(picture), DHT),
        "without-factors": without(jpeg(picture), DQT),
        "text": b"no image at all",
        "empty": b"",
    }


def all_files() -> dict[str, bytes]:
    """Both, and a file with bytes behind its end."""
    return {**our_files(), **foreign_files(), "garbage-behind": jpeg(photograph(45, 37)) + bytes(range(256)) * 4}
