"""From the fields of the weather to the 16 channels of an image, in their physical units."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import CHANNELS
from hpcai500.data.climate.weather.atmosphere import Atmosphere
from hpcai500.data.climate.weather.fields import Grid, Plane, red_noise

# Mean and standard deviation of each channel in its unit: m/s (PRECT and winds), Pa, kg/kg, K, kg/m^2 and m. They are
# those of 16 snapshots of the same climate model, rounded.
SCALES: dict[str, tuple[float, float]] = {
    "PRECT": (3.0e-8, 1.6e-7),
    "PS": (96565.0, 9764.0),
    "PSL": (100798.0, 1469.0),
    "QREFHT": (8.1e-3, 6.2e-3),
    "T200": (213.0, 8.7),
    "T500": (254.0, 12.7),
    "TMQ": (20.3, 15.7),
    "TREFHT": (280.0, 22.4),
    "TS": (280.0, 23.6),
    "U850": (1.6, 8.1),
    "UBOT": (0.2, 6.5),
    "V850": (0.3, 6.3),
    "VBOT": (0.4, 5.9),
    "Z1000": (475.0, 832.0),
    "Z200": (11769.0, 646.0),
    "ZBOT": (61.6, 4.9),
}
NEVER_NEGATIVE = ("PRECT", "QREFHT", "TMQ")
# What the fields do not explain of a channel, in its standard deviations.
_UNEXPLAINED = 0.15


@lru_cache(maxsize=4)
def terrain(seed: int, grid: Grid) -> Plane:
    """Mountains and plains, the same in every image of the set `seed`: by how much they lower PS, about its mean."""
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    heights = np.maximum(red_noise(random, grid, knee=3.0, steepness=2.0) - np.float32(0.4), 0)
    about_mean: Plane = heights - heights.mean()
    return about_mean


def channels_of(weather: Atmosphere, ground: Plane, grid: Grid, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return the image (16, height, width) of `weather` over the terrain `ground`, in the units of `SCALES`.

    Friction turns the wind near the ground towards low pressure. The shares of pressure in PS and Z1000 are those of
    the units: 1 hPa of PSL is about 1 hPa of PS and 8 m of Z1000.
    """
    w = weather
    no_rain = np.float32(SCALES["PRECT"][0] / SCALES["PRECT"][1])
    towards_low = 0.3 * np.tanh(grid.latitudes / np.float32(10.0))
    anomalies = {
        "PRECT": w.rain - no_rain,
        "PS": 0.15 * w.pressure - 2.0 * ground,
        "PSL": w.pressure,
        "QREFHT": 0.75 * w.moisture + 0.25 * w.surface - 0.1 * ground,
        "T200": w.upper,
        "T500": w.middle,
        "TMQ": w.moisture - 0.15 * ground,
        "TREFHT": w.surface - 0.3 * ground,
        "TS": w.surface - 0.25 * ground,
        "U850": w.east,
        "UBOT": 0.85 * w.east - towards_low * w.north,
        "V850": w.north,
        "VBOT": 0.85 * w.north + towards_low * w.east,
        "Z1000": 0.14 * w.pressure + 1.8 * ground,
        "Z200": w.height,
        "ZBOT": w.surface - 0.2 * ground,
    }
    image = np.empty((len(CHANNELS), *ground.shape), np.float32)
    noise = np.float32(_UNEXPLAINED) * red_noise(random, grid, knee=8.0, steepness=1.0)
    shifts = random.integers((grid.height, grid.width), size=(len(CHANNELS), 2))
    for channel, (name, shift) in enumerate(zip(CHANNELS, shifts, strict=True)):
        mean, deviation = SCALES[name]
        # One field shifted anew for each channel is as good as another field, and cheaper.
        anomaly = anomalies[name] + np.roll(noise, shift, axis=(0, 1))
        np.multiply(anomaly, np.float32(deviation), out=image[channel])
        image[channel] += np.float32(mean)
        if name in NEVER_NEGATIVE:
            np.maximum(image[channel], 0, out=image[channel])
    return image
