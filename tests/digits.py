"""Scanned handwritten digits as an image set: pictures that no one here made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def write_digits(root: Path, *, side: int = 64, val_share: float = 0.2, seed: int = 0) -> tuple[int, int]:
    """Write scikit-learn's 1,797 scans (8x8, 17 grey levels) as `side` x `side` JPEG files; return (train, val) counts.

    The split is drawn from `seed`. The scans are enlarged with Pillow's bicubic filter and saved as colour JPEG files
    of quality 92, one class folder a digit.
    """
    scans = load_digits()
    order = np.random.default_rng(seed).permutation(len(scans.target))
    in_val = np.zeros(len(order), dtype=bool)
    in_val[order[: round(val_share * len(order))]] = True
    for number, (scan, digit) in enumerate(zip(scans.images, scans.target, strict=True)):
        folder = root / ("val" if in_val[number] else "train") / f"digit-{digit}"
        folder.mkdir(parents=True, exist_ok=True)
        grey = Image.fromarray((scan * (255 / 16)).round().astype(np.uint8))
        enlarged = grey.resize((side, side), Image.Resampling.BICUBIC).convert("RGB")
        enlarged.save(folder / f"{number:04d}.JPEG", "JPEG", quality=92)
    return int((~in_val).sum()), int(in_val.sum())
