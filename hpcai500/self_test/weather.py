"""Climate images against h5py and NumPy: layouts, filters, normalising, types, rolls, crops and windows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcai500 import _core
from hpcai500.data.climate.storage import Storage, storage_of
from hpcai500.self_test.checking import require, require_equal
from hpcai500.self_test.images import bfloat16_of

_SHAPE = (6, 5, 24, 36)
_LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (1, 5, 24, 36)},
    "gzip": {"chunks": (4, 1, 7, 9), "compression": "gzip"},
    "shuffle-gzip-fletcher32": {"chunks": (2, 3, 8, 36), "shuffle": True, "compression": "gzip", "fletcher32": True},
    "lzf": {"chunks": (3, 1, 24, 20), "compression": "lzf"},
}
_ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


@dataclass(frozen=True, eq=False)
class _Year(Storage):
    """A storage and its path, as the reader wants them."""

    path: str


def check_layouts(folder: Path) -> str:
    """Every layout and filter is what h5py reads, bit for bit, also of any bits at all."""
    bits = np.random.default_rng(0).integers(0, 2**32, _SHAPE, np.uint32).view(np.float32)
    for name, options in _LAYOUTS.items():
        for images in (_fields(), bits):
            year = _write(folder / "year.h5", images, options)
            with h5py.File(year.path) as file:
                expected = file["images"][:]
            with _reader(year) as reader:
                order = np.array([3, 0, 5, 1])
                require_equal(name, _read(reader, order).view(np.uint32), expected[order].view(np.uint32))
    return f"{', '.join(_LAYOUTS)}: h5py's bits"


def check_damage(folder: Path) -> str:
    """A chunk whose checksum is wrong and a file that ends too early are errors."""
    year = _write(folder / "year.h5", _fields(), _LAYOUTS["shuffle-gzip-fletcher32"])
    path, content = Path(year.path), bytearray(Path(year.path).read_bytes())
    content[int(year.addresses[0]) + 40] ^= 0x10
    path.write_bytes(content)
    require_equal("a changed byte in a chunk", _kind_of_error(year), "corrupt")
    year = _write(folder / "year.h5", _fields(), {})
    path.write_bytes(path.read_bytes()[:-5000])
    require_equal("a file without its end", _kind_of_error(year), "truncated")
    return "a changed byte and a missing end are refused"


def check_normalising(folder: Path) -> str:
    """Normalised images have one rounding, and each type is that rounded to nearest even."""
    images = _fields()
    mean = images.mean(axis=(0, 2, 3), dtype=np.float64)
    std = images.std(axis=(0, 2, 3), dtype=np.float64)
    year = _write(folder / "year.h5", images, {})
    expected = _normalised(images, mean, std)
    casts = {"float32": expected, "float16": expected.astype(np.float16), "bfloat16": bfloat16_of(expected)}
    for dtype in _ITEMS:
        with _reader(year, mean=mean, std=std, dtype=dtype) as reader:
            require_equal(f"normalised {dtype}", _read(reader, np.arange(len(images)), dtype), casts[dtype])
    return "float32, float16, bfloat16; exactly (one rounding)"


def check_conversion() -> str:
    """Whole batches, normalised and laid out anew, have the bits that the reader's normalising has."""
    images = _fields()
    mean = images.mean(axis=(0, 2, 3), dtype=np.float64)
    std = images.std(axis=(0, 2, 3), dtype=np.float64)
    expected = _normalised(images, mean, std)
    casts = {"float32": expected, "float16": expected.astype(np.float16), "bfloat16": bfloat16_of(expected)}
    for dtype, cast in casts.items():
        for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
            # Laid out in this order, and seen as (images, channels, rows, columns).
            out = np.zeros([_SHAPE[axis] for axis in order], _ITEMS[dtype]).transpose(np.argsort(order))
            _core.convert_images(images, out, mean=mean.tolist(), std=std.tolist(), threads=2)
            require_equal(f"converted to {dtype}", out, cast)
    return "float32, float16, bfloat16; channels first and last; exactly (one rounding)"


def check_windows(folder: Path) -> str:
    """Rolls around the globe, crops, chosen channels, and images out of a window."""
    images, channels, rolls = _fields(), [4, 0, 2], np.array([0, 1, 35, 18, -7, 1000])
    left, width = 5, 20
    rolled = [np.roll(image[channels], roll, axis=-1) for image, roll in zip(images, rolls, strict=True)]
    expected = np.stack(rolled)[..., left : left + width]
    for name in ("contiguous", "gzip"):
        year = _write(folder / "year.h5", images, _LAYOUTS[name])
        with _reader(year, channels=channels, left=left, width=width) as reader:
            require_equal(f"rolled and cropped, {name}", _read(reader, np.arange(6), rolls=rolls), expected)
            window = np.full((4, 3, *_SHAPE[2:]), 77, np.float32)
            for part in range(3):
                reader.read_window(0, 2, 4, window, part=(part, part + 1, 3))
            require_equal(f"window, {name}", window, images[2:, channels])
            taken = np.full((2, *reader.image_shape), 77, np.float32)
            reader.take(window, np.array([3, 0]), taken, rolls=rolls[[5, 2]])
            require_equal(f"taken out of a window, {name}", taken, expected[[5, 2]])
    return "6 rolls, a crop, 3 of 5 channels, a window in 3 parts; exactly"


def _normalised(images: NDArray[np.float32], mean: NDArray[Any], std: NDArray[Any]) -> NDArray[np.float32]:
    scale, bias = ((1 / std).astype(np.float32), (-mean / std).astype(np.float32))
    # A float32 product is exact in longdouble, and the sum is rounded there far behind float32's last bit.
    wide = images.astype(np.longdouble) * scale[:, None, None] + bias[:, None, None].astype(np.longdouble)
    narrow: NDArray[np.float32] = wide.astype(np.float32)
    return narrow


def _fields() -> NDArray[np.float32]:
    """Smooth fields with a little noise; channels differ in scale."""
    images, channels, rows, columns = _SHAPE
    n, c, y, x = np.ogrid[0:images, 0:channels, 0:rows, 0:columns]
    waves = np.sin(2 * np.pi * (x / columns + n / 7)) * np.cos(y / rows + c) + 3
    noise = 1e-3 * np.random.default_rng(1).standard_normal(_SHAPE)
    return (10.0 ** (c % 6 - 3) * (waves + noise)).astype(np.float32)


def _write(path: Path, images: NDArray[np.float32], options: dict[str, Any]) -> _Year:
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=images, **options)
    with h5py.File(path) as file:
        return _Year(**vars(storage_of(file["images"])), path=str(path))


def _reader(year: _Year, **settings: Any) -> _core.ClimateReader:
    everything = {"channels": range(year.shape[1]), "mean": None, "std": None, "dtype": "float32", "left": 0}
    return _core.ClimateReader([year], **{**everything, "width": year.shape[3], "threads": 2, **settings})


def _read(reader: _core.ClimateReader, images: NDArray[Any], dtype: str = "float32", **arguments: Any) -> NDArray[Any]:
    out = np.full((len(images), *reader.image_shape), 77, _ITEMS[dtype])
    reader.read(np.zeros(len(images), int), images, out, **arguments)
    return out


def _kind_of_error(year: _Year) -> str:
    with _reader(year) as reader:
        try:
            _read(reader, np.arange(_SHAPE[0]))
        except _core.ClimateError as error:
            return error.kind
    require(False, "damage was read as if it were data")
    return ""
