"""Seeded pictures, and the same as JPEG files."""

from __future__ import annotations

import io
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
