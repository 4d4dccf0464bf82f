"""The grid of the globe, and random fields on it with the red spectrum of the atmosphere: large patterns are strong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Plane = npt.NDArray[np.float32]

# Storms are described in pixels of the shipped grid.
SHIPPED_HEIGHT, SHIPPED_WIDTH = 768, 1152


@dataclass(frozen=True)
class Grid:
    """A regular grid of the globe: `height` rows from the South Pole to the North Pole, `width` columns eastwards."""

    height: int
    width: int

    @property
    def latitudes(self) -> Plane:
        """Degrees north of the middle of each row; shape (height, 1)."""
        degrees = (np.arange(self.height) + 0.5) * (180.0 / self.height) - 90.0
        return degrees.astype(np.float32)[:, None]

    def row_of(self, latitude: float) -> float:
        """The place of a `latitude` in degrees north, in rows: row j reaches from j to j + 1."""
        return (latitude + 90.0) / 180.0 * self.height


def red_noise(random: np.random.Generator, grid: Grid, knee: float, steepness: float) -> Plane:
    """Return a Gaussian field of mean 0 and expected variance 1, periodic in both directions; shape (height, width).

    Its amplitude spectrum is flat below `knee` waves around 180 degrees and falls as wavenumber^-steepness above, at
    any size of the grid.
    """
    amplitude = _amplitude(grid, knee, steepness)
    parts = random.standard_normal((*amplitude.shape, 2), dtype=np.float32)
    spectrum = parts.view(np.complex64)[..., 0]
    spectrum *= amplitude
    field: Plane = np.fft.irfft2(spectrum, s=(grid.height, grid.width)).astype(np.float32, copy=False)
    return field


@lru_cache(maxsize=16)
def _amplitude(grid: Grid, knee: float, steepness: float) -> Plane:
    """Half-plane of spectral amplitudes that gives a field of variance 1 from standard normal parts."""
    rows = np.fft.fftfreq(grid.height, 1.0 / grid.height)[:, None]
    # A wave around the globe is twice as long as one from pole to pole; the shipped pixels are 1.5 times wider than
    # 2:1, and storms are round in pixels, so fields are as well.
    columns = np.fft.rfftfreq(grid.width, 1.0 / grid.width)[None, :] * (SHIPPED_HEIGHT / SHIPPED_WIDTH)
    amplitude = (rows**2 + columns**2 + knee**2) ** (-steepness / 2)
    amplitude[0, 0] = 0.0
    # Columns in between stand for two waves each, with a real and an imaginary part; of the first and, for an even
    # width, the last column, only the real half of what is drawn enters.
    weight = np.full(amplitude.shape[1], 4.0)
    weight[0] = 1.0
    if grid.width % 2 == 0:
        weight[-1] = 1.0
    variance = float((weight * amplitude**2).sum()) / (grid.height * grid.width) ** 2
    scaled: Plane = (amplitude / np.sqrt(variance)).astype(np.float32)
    return scaled
