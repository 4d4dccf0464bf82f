"""Small climate years in every layout that is read, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

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
