"""Random turns of the globe: longitude is periodic, so a rolled image is as good as the one that was recorded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcai500.data.samplers import Draw, random_words


def epoch_rolls(samples: int, columns: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return by how many columns (0 ... columns - 1) each sample is rolled in this epoch, as by `numpy.roll`.

    A function of (seed, epoch, sample) alone, the same on every machine, NumPy version and number of ranks. `seed` and
    `epoch` are non-negative and below 2**64, `columns` below 2**32.
    """
    words = random_words(samples, seed, epoch, Draw.ROLLS)
    return ((words >> np.uint64(32)) * np.uint64(columns) >> np.uint64(32)).astype(np.int64)
