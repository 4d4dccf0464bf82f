"""The image sets of the decode benchmarks: seeded, made once, kept below .cache/.

Each picture is 1/f noise in three correlated channels (the spectrum of photographs), written by Pillow with 4:2:0
chroma; `heavy` and `large` also have discs with hard edges and sensor noise. A decoder's time depends on the size and
on the bytes per pixel: `plain` has about 55 KB, what the two photographs that scikit-learn ships take at that size and
quality (37 and 74 KB); `heavy` about 100 KB, as the files of ImageNet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class ImageSet:
    """`noise` is the standard deviation of the sensor noise in levels, `edges` the number of discs, `sharpness` the
    frequency (cycles per pixel) where the lens has lost 63 % of the contrast; `quality` is Pillow's.
    """

    name: str
    width: int
    height: int
    noise: float
    edges: int
    sharpness: float
    quality: int
    count: int


SETS = (
    ImageSet("plain", 500, 375, noise=0, edges=0, sharpness=0.25, quality=92, count=128),
    ImageSet("heavy", 500, 375, noise=7, edges=30, sharpness=np.inf, quality=94, count=128),
    ImageSet("large", 1600, 1200, noise=3, edges=30, sharpness=np.inf, quality=90, count=64),
)
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "benchmark-images"


def paths_of(image_set: ImageSet) -> list[Path]:
    """The set's files, written first where they are missing."""
    folder = CACHE / f"{image_set.name}-{image_set.width}x{image_set.height}-q{image_set.quality}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:04d}.jpg" for index in range(image_set.count)]
    for index, path in enumerate(paths):
        if not path.exists():
            picture = Image.fromarray(_picture(image_set, np.random.default_rng([index, image_set.width])))
            unfinished = path.with_suffix(f".{os.getpid()}")
            picture.save(unfinished, "JPEG", quality=image_set.quality, subsampling="4:2:0")
            unfinished.rename(path)
    return paths


def copies_of(image_set: ImageSet, copies: int) -> list[Path]:
    """`copies` copies of the set, each in its own folder, so that an epoch does not read a file twice."""
    paths = paths_of(image_set)
    root = paths[0].parent.with_name(f"{paths[0].parent.name}-copies")
    made = []
    for number in range(copies):
        folder = root / f"{number:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            copy = folder / path.name
            if not copy.exists():
                unfinished = copy.with_suffix(f".{os.getpid()}")
                unfinished.write_bytes(path.read_bytes())
                unfinished.rename(copy)
            made.append(copy)
    return made


def _picture(image_set: ImageSet, rng: np.random.Generator) -> np.ndarray:
    """(height, width, 3) levels, uint8."""
    width, height = image_set.width, image_set.height
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    lens = np.exp(-((frequency / image_set.sharpness) ** 2))
    frequency[0, 0] = np.inf
    fields = []
    for _ in range(3):
        white = np.fft.rfft2(rng.standard_normal((height, width)))
        field = np.fft.irfft2(white / frequency**1.2 * lens, s=(height, width))
        fields.append(35 * field / field.std())
    # Mostly brightness, less colour.
    mixing = np.array([[1, 1, 1], [0.5, -0.3, -0.2], [0.1, 0.3, -0.5]])
    levels = np.stack(fields, axis=-1) @ mixing + 120
    rows, columns = np.mgrid[0:height, 0:width]
    for _ in range(image_set.edges):
        x, y, radius = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.02, 0.2) * width
        inside = np.hypot(columns - x, rows - y) < radius
        levels[inside] = 0.6 * levels[inside] + rng.uniform(-60, 120, 3)
    levels += image_set.noise * rng.standard_normal((height, width, 1))
    return np.clip(levels, 0, 255).astype(np.uint8)
