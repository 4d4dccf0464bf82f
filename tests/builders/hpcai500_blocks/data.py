"""Points around one centre for each class."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

SAMPLES, EVALUATED, FEATURES, CLASSES = 70, 21, 6, 3


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(3)
    for name, count in (("training", SAMPLES), ("evaluation", EVALUATED)):
        labels = np.arange(count) % CLASSES
        points = np.eye(CLASSES, FEATURES)[labels] + random.normal(0, 0.3, (count, FEATURES))
        np.savez(folder / f"{name}.npz", samples=points.astype(np.float32), labels=labels)


def read(folder: Path, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    with np.load(folder / f"{name}.npz") as arrays:
        return arrays["samples"], arrays["labels"]
