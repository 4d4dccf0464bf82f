"""The years that benchmarks/climate_reader.py reads: full size, in three layouts, of the same kind of values."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

CHANNELS, ROWS, COLUMNS = 16, 768, 1152
WINDOW = 46
SHIPPED_CHUNK = (WINDOW, 1, 48, 72)
IMAGE_BYTES = CHANNELS * ROWS * COLUMNS * 4
GZIP_LEVEL = 4  # h5py's default
# Typical of temperatures, winds, humidity, pressure: what a channel's values are around, and how far they spread.
MEAN = np.array([280.0, 0.0, 8e-3, 1e5] * 4)
STD = np.array([20.0, 7.0, 6e-3, 5e3] * 4)


def shrink(scale: int) -> None:
    """Make images of a `scale`-th of the rows and columns."""
    global ROWS, COLUMNS, IMAGE_BYTES  # noqa: PLW0603  # the one setting of these files
    ROWS, COLUMNS = ROWS // scale, COLUMNS // scale
    IMAGE_BYTES //= scale * scale


def channel(image: int, number: int) -> NDArray[np.float32]:
    """A smooth field that moves from image to image, with noise in its last bits, as a model's output has."""
    random = np.random.default_rng((image, number))
    y, x = np.linspace(0, 2 * np.pi, ROWS)[:, None], np.linspace(0, 2 * np.pi, COLUMNS)[None, :]
    waves = sum(
        np.sin(k * x + 0.05 * image + number) * np.cos((k + number % 3) * y + k) / k for k in (1, 2, 3, 5, 8, 13)
    )
    noise = random.standard_normal((ROWS, COLUMNS), np.float32)
    return (MEAN[number] + STD[number] * (0.6 * waves + 0.01 * noise)).astype(np.float32)


def make_plain(path: Path, images: int, chunk: tuple[int, ...] | None) -> Path:
    """`images` images without filters: in one piece, or in chunks."""
    if not path.exists():
        partial = path.with_suffix(".partial")
        with h5py.File(partial, "w") as file:
            dataset = file.create_dataset("images", (images, CHANNELS, ROWS, COLUMNS), "<f4", chunks=chunk)
            for image in range(images):
                for number in range(CHANNELS):
                    dataset[image, number] = channel(image, number)
        partial.rename(path)
    return path


def make_shipped(path: Path, threads: int) -> Path:
    """One window in the layout that ExtremeWeather ships, deflated by zlib in threads: HDF5 would take one core."""
    if path.exists():
        return path
    partial = path.with_suffix(".partial")
    with h5py.File(partial, "w") as file, ThreadPoolExecutor(threads) as pool:
        shape = (WINDOW, CHANNELS, ROWS, COLUMNS)
        dataset = file.create_dataset(
            "images", shape, "<f4", chunks=SHIPPED_CHUNK, compression="gzip", compression_opts=GZIP_LEVEL
        )
        for number in range(CHANNELS):
            fields = np.stack(list(pool.map(lambda image, number=number: channel(image, number), range(WINDOW))))
            corners = list(_corners(number))
            raw = (fields[:, y : y + 48, x : x + 72].tobytes() for _, _, y, x in corners)
            for corner, data in zip(corners, pool.map(lambda b: zlib.compress(b, GZIP_LEVEL), raw), strict=True):
                dataset.id.write_direct_chunk(corner, data)
    partial.rename(path)
    return path


def _corners(number: int) -> Iterator[tuple[int, int, int, int]]:
    for y in range(0, ROWS, SHIPPED_CHUNK[2]):
        for x in range(0, COLUMNS, SHIPPED_CHUNK[3]):
            yield 0, number, y, x
