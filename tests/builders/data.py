"""Small image sets, scanned digits, and small climate years in every layout that is read."""

from __future__ import annotations

import io
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from hpcai500.data.climate.years import Storage, storage_of


def picture(seed: int, rows: int = 24, columns: int = 32) -> Image.Image:
    """A smooth picture that differs from seed to seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC)


def encoded_picture(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    """The image as a file's bytes."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def write_tree(root: Path, classes: tuple[str, ...] = ("cat", "dog"), train: int = 3, val: int = 2) -> Path:
    """Write a set of small JPEG files, old enough to be cached."""
    for split, count in (("train", train), ("val", val)):
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                seed = 1000 * label + 2 * number + (split == "val")
                (folder / f"{name}_{number}.JPEG").write_bytes(encoded_picture(picture(seed)))
    settle(root)
    return root


def settle(root: Path) -> None:
    """Make all folders look as if they were last changed ten seconds ago: a fresh set is not cached."""
    then = time.time() - 10
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        os.utime(folder, (then, then))


# ----------------------------------------------------------------------------------------------------
def write_digits(root: Path, *, side: int = 64) -> tuple[int, int]:
    """Write scikit-learn's 1,797 scans (8x8, 17 grey levels) as `side` x `side` JPEG files; return (train, val) counts.

    A fifth of them, drawn at random, is for evaluation.

    The scans are enlarged with Pillow's bicubic filter and saved as colour JPEG files
    of quality 92, one class folder a digit.
    """
    scans = load_digits()
    order = np.random.default_rng(0).permutation(len(scans.target))
    in_val = np.zeros(len(order), dtype=bool)
    in_val[order[: round(0.2 * len(order))]] = True
    for number, (scan, digit) in enumerate(zip(scans.images, scans.target, strict=True)):
        folder = root / ("val" if in_val[number] else "train") / f"digit-{digit}"
        folder.mkdir(parents=True, exist_ok=True)
        grey = Image.fromarray((scan * (255 / 16)).round().astype(np.uint8))
        enlarged = grey.resize((side, side), Image.Resampling.BICUBIC).convert("RGB")
        enlarged.save(folder / f"{number:04d}.JPEG", "JPEG", quality=92)
    return int((~in_val).sum()), int(in_val.sum())


# ----------------------------------------------------------------------------------------------------
HEIGHT, WIDTH = 24, 36

# As the layouts of a 768 x 1152 year, scaled: h5py's default chunks, and those of a repacked year.
SHIPPED = {"chunks": (5, 1, 6, 9), "compression": "gzip"}
SHUFFLED = {"chunks": (4, 2, 12, 36), "compression": "gzip", "shuffle": True, "fletcher32": True}
LZF = {"chunks": (1, 16, HEIGHT, WIDTH), "compression": "lzf", "shuffle": True}
IMAGE_CHUNKS = {"chunks": (1, 16, HEIGHT, WIDTH)}
CONTIGUOUS: dict[str, Any] = {}
LAYOUTS = {
    "shipped": SHIPPED,
    "shuffled": SHUFFLED,
    "lzf": LZF,
    "image chunks": IMAGE_CHUNKS,
    "contiguous": CONTIGUOUS,
}


def images_of(count: int, height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> npt.NDArray[np.float32]:
    """Draw (count, 16, height, width) values whose channels differ in mean and scale."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(count, 16, height, width))
    scale = 10.0 ** np.arange(-7, 9)[:, None, None]
    return ((values + np.arange(16)[:, None, None]) * scale).astype(np.float32)


def boxes_of(count: int, height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> npt.NDArray[np.int32]:
    """Draw (count, 15, 5) rows: one to five boxes inside each image, some beyond `height` in x, all four classes."""
    generator = np.random.default_rng(seed)
    rows = np.full((count, 15, 5), -1, np.int32)
    for image in range(count):
        for row in range(generator.integers(1, 6)):
            y, x = generator.integers(0, height - 6), generator.integers(0, width - 6)
            label = (image + row) % 4
            rows[image, row] = (y, x, y + generator.integers(2, 7), x + generator.integers(2, 7), label)
    # However few images there are, x tells itself from y, and class 0 occurs.
    rows[0, :2] = ((2, width - 8, 9, width - 1, 0), (3, width - 6, 8, width, 3))
    return rows


def swapped(boxes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The same boxes as the swapped variant writes them: xmin ymin xmax ymax, classes from 1."""
    rows = boxes[..., [1, 0, 3, 2, 4]] + np.array([0, 0, 0, 0, 1], np.int32)
    rows[boxes[..., 4] == -1] = -1
    return rows


def write_year(
    folder: Path,
    year: int = 1979,
    images: npt.NDArray[Any] | None = None,
    boxes: npt.NDArray[Any] | None = None,
    **layout: Any,
) -> Path:
    """Write climo_<year>.h5 into `folder`; 12 images on 24 x 36 by default."""
    values = images_of(12, seed=year) if images is None else images
    rows = boxes_of(len(values), *values.shape[2:], seed=year) if boxes is None else boxes
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"climo_{year}.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=values, **layout)
        file.create_dataset("boxes", data=rows)
    return path


def damage_chunk(path: Path, chunk: int, at: int = 20, length: int = 8) -> None:
    """Overwrite some bytes of the stored chunk number `chunk` (in C order of the grid of chunks)."""
    from hpcai500.data.climate.years import storage_of

    with h5py.File(path) as file:
        storage = storage_of(file["images"])
    with path.open("r+b") as stream:
        stream.seek(int(storage.addresses[chunk]) + at)
        stream.write(b"\xa5" * length)


# ----------------------------------------------------------------------------------------------------
SHAPE = (7, 5, 24, 36)

# Name of a layout, and what h5py is told to get it.
LAYOUTS_OF_IMAGES: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "image-chunks": {"chunks": (1, 5, 24, 36)},
    "channel-chunks": {"chunks": (1, 1, 24, 36)},
    "shipped": {"chunks": (4, 1, 6, 9), "compression": "gzip", "compression_opts": 4},
    "shipped-raw": {"chunks": (4, 1, 6, 9)},
    "partial": {"chunks": (3, 2, 7, 11), "compression": "gzip"},
    "partial-raw": {"chunks": (3, 2, 7, 11)},
    "larger-than-data": {"chunks": (16, 8, 32, 64), "maxshape": (None,) * 4, "compression": "gzip"},
    "shuffle": {"chunks": (2, 2, 24, 36), "shuffle": True},
    "shuffle-gzip": {"chunks": (1, 5, 24, 36), "shuffle": True, "compression": "gzip"},
    "shuffle-gzip-fletcher": {"chunks": (2, 3, 8, 36), "shuffle": True, "compression": "gzip", "fletcher32": True},
    "fletcher": {"chunks": (2, 3, 8, 35), "fletcher32": True},
    "lzf": {"chunks": (1, 1, 24, 36), "compression": "lzf"},
    "shuffle-lzf": {"chunks": (3, 1, 24, 20), "shuffle": True, "compression": "lzf"},
    "shuffle-lzf-fletcher": {"chunks": (3, 1, 5, 36), "shuffle": True, "compression": "lzf", "fletcher32": True},
}


@dataclass(frozen=True)
class StoredYear:
    """A Storage and its path, as the reader wants them."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int | None
    chunk: tuple[int, ...] | None
    filters: tuple[str, ...]
    addresses: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    masks: NDArray[np.uint32]


def fields(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> NDArray[np.float32]:
    """Smooth fields with a little noise: they compress, and no two values are alike. Channels differ in scale."""
    random = np.random.default_rng(seed)
    images, channels, rows, columns = shape
    y, x = np.mgrid[0:rows, 0:columns]
    result = np.empty(shape, np.float32)
    for image in range(images):
        for channel in range(channels):
            wave = np.sin(2 * np.pi * (x / columns + image / 7)) * np.cos(y / rows + channel)
            result[image, channel] = 10.0 ** (channel % 6 - 3) * (
                wave + 3 + 1e-3 * random.standard_normal((rows, columns))
            )
    return result


def write_images(
    path: Path, images: NDArray[np.float32], *, userblock: int = 0, keep_absent: bool = False, **layout: Any
) -> Path:
    """Write `images` as h5py does; with keep_absent, chunks of zeros alone are never written."""
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.attrs["shifts the data"] = np.arange(37)
        dataset = file.create_dataset("images", images.shape, "<f4", **layout)
        if not keep_absent:
            dataset[:] = images
        else:
            for corner in dataset.iter_chunks():
                if images[corner].any():
                    dataset[corner] = images[corner]
    return path


def stored_year(path: Path, storage: Storage | None = None) -> StoredYear:
    """What the reader needs to know of a file."""
    if storage is None:
        with h5py.File(path) as file:
            storage = storage_of(file["images"])
    known = {name: getattr(storage, name) for name in StoredYear.__dataclass_fields__ if name != "path"}
    return StoredYear(path=str(path), **known)


def write_chunks(path: Path, images: NDArray[np.float32], chunk: tuple[int, ...], filters: Any, encode: Any) -> Path:
    """Write chunks that HDF5 does not encode itself: `encode(raw bytes, cell)` gives the stored bytes and the mask.

    `filters` adds filters to an h5py property list.
    """
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(chunk)
        filters(properties)
        space = h5py.h5s.create_simple(images.shape)
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"images", h5py.h5t.IEEE_F32LE, space, properties))
        padded = np.zeros([-(-n // side) * side for n, side in zip(images.shape, chunk, strict=True)], "<f4")
        padded[tuple(slice(n) for n in images.shape)] = images
        for cell in np.ndindex(*(n // side for n, side in zip(padded.shape, chunk, strict=True))):
            corner = tuple(i * side for i, side in zip(cell, chunk, strict=True))
            raw = padded[tuple(slice(at, at + side) for at, side in zip(corner, chunk, strict=True))].tobytes()
            data, mask = encode(raw, cell)
            dataset.id.write_direct_chunk(corner, data, mask)
    return path
