"""What csrc/core/jpeg computes, again: readable, slow, from the definitions. The tests hold the two equal.

The crop of a sample and its resize; and our own decoder, from ITU-T T.81 (JPEG) and T.871 (JFIF). Samples have the
bits of libjpeg's "islow" transform; chroma is interpolated as libjpeg does ("fancy upsampling"), but nothing is rounded
behind the samples, and levels are cut to 0 to 255 once, at the output's size.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from jpeg_files import LONGEST_CODE, ZIGZAG, HuffmanCode
from numpy.typing import NDArray
from PIL import Image

from hpcai500 import _core

_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al. (SC 2011): four words for a counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _MASK, (first >> 32) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def draw(seed: int, epoch: int, sample: int, block: int) -> tuple[int, int, int, int]:
    """The four words of one draw of a sample: key = seed, counter = sample, epoch, block (low words first)."""
    return philox4x32((sample & _MASK, sample >> 32, epoch, block), (seed & _MASK, seed >> 32))


@dataclass(frozen=True)
class Box:
    """x, y, width, height in source pixels, and the flip."""

    x: float
    y: float
    width: float
    height: float
    flip: bool


def random_box(
    width: int,
    height: int,
    *,
    seed: int,
    epoch: int,
    sample: int,
    area: tuple[float, float] = (0.05, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip_probability: float = 0.5,
) -> Box:
    """torchvision's RandomResizedCrop on the draws of one sample.

    Try t uses block t: words 0-3 are area, ratio, column and row. The flip is word 0 of block 10.
    """
    flip = draw(seed, epoch, sample, 10)[0] / 2**32 < flip_probability
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(10):
        words = draw(seed, epoch, sample, attempt)
        target = float(width * height) * (area[0] + (area[1] - area[0]) * (words[0] / 2**32))
        aspect = math.exp(low + (high - low) * (words[1] / 2**32))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Box(words[2] * (width - w + 1) >> 32, words[3] * (height - h + 1) >> 32, w, h, flip)
    w, h = width, height
    if width / height < ratio[0]:
        h = min(max(round(width / ratio[0]), 1), height)
    elif width / height > ratio[1]:
        w = min(max(round(height * ratio[1]), 1), width)
    return Box((width - w) // 2, (height - h) // 2, w, h, flip)


def centre_box(width: int, height: int, *, size: int, resize_shorter: int) -> Box:
    """The middle size x size of the image whose shorter side was resized to `resize_shorter`."""
    side = min(width, height) * size / resize_shorter
    return Box((width - side) / 2, (height - side) / 2, side, side, flip=False)


def weights(begin: float, end: float, length: int, outputs: int) -> NDArray[np.float64]:
    """(outputs, length) weights of Pillow's antialiased bilinear resize of [begin, end) to `outputs` pixels."""
    scale = (end - begin) / outputs
    support = max(scale, 1.0)
    table = np.zeros((outputs, length))
    for output in range(outputs):
        centre = begin + (output + 0.5) * scale
        first = max(int(centre - support + 0.5), 0)
        last = min(int(centre + support + 0.5), length)
        positions = np.arange(first, last)
        values = np.maximum(0, 1 - np.abs((positions - centre + 0.5) / support))
        table[output, first:last] = values / values.sum()
    return table


def resize(pixels: NDArray[np.uint8], box: Box, size: int, *, crop_first: bool) -> NDArray[np.float64]:
    """(size, size, 3) levels, not rounded. `crop_first` cuts the box (whole pixels) before it filters."""
    if crop_first:
        x, y, w, h = (int(value) for value in (box.x, box.y, box.width, box.height))
        pixels, box = pixels[y : y + h, x : x + w], Box(0, 0, w, h, box.flip)
    rows = weights(box.y, box.y + box.height, pixels.shape[0], size)
    columns = weights(box.x, box.x + box.width, pixels.shape[1], size)
    result = np.einsum("yh,hwc,xw->yxc", rows, pixels.astype(np.float64), columns, optimize=True)
    return result[:, ::-1] if box.flip else result


def normalise(levels: NDArray[np.float64], mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float64]:
    """(level - mean) / std per channel, channels last."""
    return (levels - np.array(mean)) / np.array(std)


def pillow_resize(image: Image.Image, box: Box, size: int, *, crop_first: bool) -> NDArray[np.uint8]:
    """The same by Pillow itself: crop().resize(), or resize(box=...)."""
    edges = (box.x, box.y, box.x + box.width, box.y + box.height)
    if crop_first:
        resized = image.crop(tuple(int(edge) for edge in edges)).resize((size, size), Image.Resampling.BILINEAR)
    else:
        resized = image.resize((size, size), Image.Resampling.BILINEAR, box=edges)
    pixels = np.asarray(resized)
    return pixels[:, ::-1] if box.flip else pixels


# JFIF's (ITU-T T.871) conversion: each row is the share of Y, Cb - 128 and Cr - 128 in red, green and blue.
JFIF = np.array([[1, 0, 1.402], [1, -0.344136286, -0.714136286], [1, 1.772, 0]])


def late_clamp_bounds() -> NDArray[np.float64]:
    """By how much red, green and blue may differ where colours are cut to 0 to 255 after a resize instead of before.

    A resize is a mean with weights of 0 or more. Of unlimited values v from -a to 255 + b, the cut mean and the mean of
    the cut values differ most where some are 255 + b and all others 0, and just as many that the mean is 255: then by
    255 b / (255 + b). With -a and 255 it is 255 a / (255 + a).
    """
    chroma = np.array([-128.0, 127.0])
    reach = JFIF[:, 1:, None] * chroma
    above, below = reach.max(axis=2).sum(axis=1), -reach.min(axis=2).sum(axis=1)
    beyond = np.maximum(above, below)
    return 255 * beyond / (255 + beyond)


SIDE = 8
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


def _wrap(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """What a register of `bits` bits keeps."""
    half = 1 << (bits - 1)
    return (values + half) % (1 << bits) - half


def _fixed(factor: float) -> int:
    return round(factor * (1 << 13))


def _transform(values: NDArray[np.int64], shift: int) -> NDArray[np.int64]:
    """The inverse transform of Loeffler, Ligtenberg and Moschytz along the last axis but one, as libjpeg's islow.

    Sums wrap and results are cut as in 16-bit vector units: that matters for damaged blocks only.
    """
    c = [values[..., place, :] for place in range(SIDE)]
    shared = (c[2] + c[6]) * _fixed(0.541196100)
    two = shared + c[2] * _fixed(0.765366865)
    six = shared - c[6] * _fixed(1.847759065)
    zero, four = _wrap(c[0] + c[4], 16) << 13, _wrap(c[0] - c[4], 16) << 13
    even = [zero + two, four + six, four - six, zero - two]

    three_seven, one_five = _wrap(c[3] + c[7], 16), _wrap(c[1] + c[5], 16)
    shared = (three_seven + one_five) * _fixed(1.175875602)
    three_seven = shared - three_seven * _fixed(1.961570560)
    one_five = shared - one_five * _fixed(0.390180644)
    one_seven, three_five = (c[1] + c[7]) * _fixed(0.899976223), (c[3] + c[5]) * _fixed(2.562915447)
    odd = [
        c[1] * _fixed(1.501321110) - one_seven + one_five,
        c[3] * _fixed(3.072711026) - three_five + three_seven,
        c[5] * _fixed(2.053119869) - three_five + one_five,
        c[7] * _fixed(0.298631336) - one_seven + three_seven,
    ]
    sums = [e + o for e, o in zip(even, odd, strict=True)]
    differences = [e - o for e, o in zip(even, odd, strict=True)]
    rounded = _wrap(np.stack(sums + differences[::-1], axis=-2) + (1 << (shift - 1)), 32) >> shift
    return rounded.clip(-(1 << 15), (1 << 15) - 1)


def inverse_dct(coefficients: NDArray[np.int64], factors: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Levels of blocks, (..., 8, 8): columns first, with 2 bits more than the second pass keeps."""
    columns = _transform(_wrap(coefficients * factors, 16), 13 - 2)
    samples = _transform(columns.swapaxes(-1, -2), 13 + 2 + 3).swapaxes(-1, -2)
    return (samples + 128).clip(0, 255).astype(np.uint8)


def largest_coefficient(header: Header, decoded: Decoded) -> int:
    """The largest that is left when its sign is taken, dequantised."""
    pairs = zip(header.components, decoded.coefficients, strict=True)
    return max(int(np.abs(coefficients * component.factors).max()) for component, coefficients in pairs)


def planes_of(header: Header, decoded: Decoded) -> list[NDArray[np.uint8]]:
    """The samples of each component that the image has: those that fill the last MCUs are cut."""
    planes = []
    for component, coefficients in zip(header.components, decoded.coefficients, strict=True):
        blocks = inverse_dct(coefficients, component.factors)
        rows, columns = blocks.shape[0] * SIDE, blocks.shape[1] * SIDE
        height = -(-header.height * component.down // header.components[0].down)
        width = -(-header.width * component.across // header.components[0].across)
        planes.append(blocks.swapaxes(1, 2).reshape(rows, columns)[:height, :width])
    return planes


def upsample(plane: NDArray[np.float64], pixels: int, axis: int) -> NDArray[np.float64]:
    """Each pixel is 3/4 of the sample that it lies in and 1/4 of the next one on its side; edges repeat."""
    pixel = np.arange(pixels)
    beside = np.clip(pixel // 2 + np.where(pixel % 2, 1, -1), 0, plane.shape[axis] - 1)
    return 0.75 * plane.take(pixel // 2, axis) + 0.25 * plane.take(beside, axis)


def colour_planes(header: Header, decoded: Decoded) -> NDArray[np.float64]:
    """(height, width, 1 or 3): Y, Cb and Cr of each pixel, neither rounded nor cut behind the samples."""
    full = []
    for plane in planes_of(header, decoded):
        levels = plane.astype(np.float64)
        for axis, length in enumerate((header.height, header.width)):
            if levels.shape[axis] != length:
                levels = upsample(levels, length, axis)
        full.append(levels)
    return np.stack(full, axis=-1)


def rgb(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """JFIF's conversion (T.871, section 7), cut to 0 to 255."""
    y, cb, cr = np.moveaxis(levels, -1, 0) if levels.shape[-1] == 3 else (levels[..., 0], 128.0, 128.0)
    red, blue = y + 1.402 * (cr - 128), y + 1.772 * (cb - 128)
    green = (y - 0.299 * red - 0.114 * blue) / 0.587
    return np.stack([red, green, blue], axis=-1).clip(0, 255)


def _last_tap(begin: float, length: float, limit: int, outputs: int) -> int:
    """The last pixel that a resize reads, be it with weight 0 (as `weights` of reference.py has them)."""
    scale = length / outputs
    centre = begin + (outputs - 0.5) * scale
    return min(int(centre + max(scale, 1.0) + 0.5), limit) - 1


def _chroma_reach(pixel: int, limit: int, step: int) -> int:
    """The last luma pixel of the last chroma sample that `pixel` takes from."""
    if step == 1:
        return pixel
    return min((pixel + pixel % 2) // 2, -(-limit // 2) - 1) * 2


def needed_mcus(header: Header, box: Box, size: int, *, crop_first: bool) -> tuple[int, int]:
    """MCU rows that a crop reads, and MCUs of the last of them."""
    luma = header.components[0]
    ends = []
    for begin, length, limit, step, mcu in (
        (box.y, box.height, header.height, luma.down, header.mcu_height),
        (box.x, box.width, header.width, luma.across, header.mcu_width),
    ):
        last = _last_tap(begin, length, int(begin + length) if crop_first else limit, size)
        ends.append(max(last, _chroma_reach(last, limit, step)) // mcu + 1)
    return ends[0], ends[1]


@dataclass(frozen=True)
class Reference:
    """(size, size, 3) levels, not rounded, the byte of the file behind what they need, and the largest coefficient."""

    levels: NDArray[np.float64]
    read_until: int
    largest: int


def decode(data: bytes, box: Box, size: int, *, crop_first: bool) -> Reference:
    """What our own decoder makes of a file; raises NotOursError where it leaves the file to libjpeg-turbo."""
    header = read_header(data)
    decoded = decode_scan(data, header, *needed_mcus(header, box, size, crop_first=crop_first))
    resized = resize(colour_planes(header, decoded), box, size, crop_first=crop_first)
    return Reference(rgb(resized), decoded.read_until, largest_coefficient(header, decoded))


# Levels, not normalised: float32 holds 255 with 16 bits behind the point, and a pixel is the sum of some 50 products
# whose weights are float32, too. Each of these roundings is 1e-5 at most.
FLOAT32_LEVELS = 1e-3


def level_spec(size: int, **settings: Any) -> _core.DecodeSpec:
    """Levels as float32, channels last."""
    return _core.DecodeSpec(**{"size": size, "layout": "nhwc", "mean": (0, 0, 0), "std": (1, 1, 1), **settings})


# What fits libjpeg-turbo's 16-bit registers with the two bits that its transform adds. Coefficients of 8-bit images are
# an eighth of it; of larger ones, which damage makes, its vector code keeps the lower bits where a block has one row of
# them, and its plain code more. There the two decoders may differ, and so may libjpeg-turbo from itself.
LARGEST_COEFFICIENT = 8191


@dataclass(frozen=True)
class Outcome:
    """Pixels and libjpeg's warnings, or a failure as it is told."""

    pixels: NDArray[Any] | None
    warnings: int
    failure: str | None

    def equals(self, other: Outcome) -> bool:
        """Whether both are the same to the bit and the word."""
        if self.pixels is None or other.pixels is None:
            return self.failure == other.failure
        return self.warnings == other.warnings and np.array_equal(self.pixels, other.pixels)


def outcome(data: bytes, box: Box, size: int, decoder: str = "own", **settings: Any) -> Outcome:
    """Levels of a box, or of the whole picture."""
    spec = level_spec(size, decoder=decoder, **settings)
    out = np.empty(spec.shape, np.uint8 if spec.dtype == "uint8" else np.float32)
    place = {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "flip": box.flip}
    try:
        return Outcome(out, _core.decode_box(data, spec, out, **place), None)
    except _core.JpegError as error:
        return Outcome(None, 0, str(error))


def expected(data: bytes, box: Box, size: int, mode: str = "random") -> Reference | None:
    """The twin's image, or nothing where it leaves the file to libjpeg-turbo."""
    try:
        return decode(data, box, size, crop_first=mode == "random")
    except NotOursError:
        return None


def assert_own_or_libjpegs(
    data: bytes, box: Box, size: int, *, mode: str = "random", note: str = ""
) -> Reference | None:
    """Our own decoder makes the twin's image without a warning; where the twin refuses, all is libjpeg-turbo's.

    Returns what the twin said. `data` needs a sound header. Either will do where coefficients are beyond all reason.
    """
    # A centre crop's filter reaches around its box; decode_box() itself never asks for resize_shorter.
    settings = {"mode": mode, "resize_shorter": size}
    found, twin = outcome(data, box, size, **settings), expected(data, box, size, mode)
    unreasonable = twin is not None and twin.largest > LARGEST_COEFFICIENT
    if unreasonable and found.equals(outcome(data, box, size, "libjpeg-turbo", **settings)):
        return twin
    if twin is None:
        assert found.equals(outcome(data, box, size, "libjpeg-turbo", **settings)), note
    else:
        assert (found.failure, found.warnings) == (None, 0), note
        np.testing.assert_allclose(found.pixels, twin.levels, rtol=0, atol=FLOAT32_LEVELS, err_msg=note)
    return twin
