"""Small image sets for tests."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int, rows: int = 24, columns: int = 32) -> Image.Image:
    """A smooth picture that differs from seed to seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
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
                (folder / f"{name}_{number}.JPEG").write_bytes(encoded(pixels(seed)))
    settle(root)
    return root


def settle(root: Path) -> None:
    """Make all folders look as if they were last changed ten seconds ago: a fresh set is not cached."""
    then = time.time() - 10
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        os.utime(folder, (then, then))
