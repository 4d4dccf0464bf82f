"""The weather of one image as a few fields, from which the 16 channels follow; and the weather without storms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcai500.data.climate.weather.fields import Grid, Plane, red_noise

# So far below the first drop that noise makes no drizzle of a dry place.
_DRY = np.float32(-0.3)


@dataclass(frozen=True, eq=False)
class Atmosphere:
    """Fields of shape (height, width), in standard deviations of the channel that shows them best.

    Attributes:
        pressure: at sea level (PSL).
        east, north: wind at 850 hPa (U850, V850).
        surface, middle, upper: temperature at the surface, at 500 hPa and at 200 hPa (TS, T500, T200).
        moisture: total precipitable water (TMQ).
        rain: PRECT above none; below 0 it is dry.
        height: of the 200 hPa surface (Z200).
    """

    pressure: Plane
    east: Plane
    north: Plane
    surface: Plane
    middle: Plane
    upper: Plane
    moisture: Plane
    rain: Plane
    height: Plane


def calm_weather(random: np.random.Generator, grid: Grid) -> Atmosphere:
    """Draw the weather without storms: the mean circulation by latitude, and red noise on it.

    Highs lie at 30 degrees, lows at the equator and at 60 degrees; trade winds, westerlies and polar easterlies blow
    along them. Noise in pressure is strongest along the storm tracks, and the wind follows its slopes.
    """
    zones = _zones(grid)
    waves = zones.storm_track * red_noise(random, grid, knee=3.0, steepness=3.5)
    warmth = red_noise(random, grid, knee=2.0, steepness=2.5)
    humidity = red_noise(random, grid, knee=4.0, steepness=2.0)
    aloft = red_noise(random, grid, knee=3.0, steepness=3.0)
    showers = red_noise(random, grid, knee=12.0, steepness=2.0)
    east, north = _along_slopes(waves, zones)
    moisture = zones.moisture + 0.1 * warmth + (0.28 * zones.cosine + 0.05) * humidity
    return Atmosphere(
        pressure=zones.pressure + waves,
        east=zones.wind + east,
        north=north,
        surface=zones.warmth + 0.12 * warmth,
        middle=0.9 * zones.warmth + 0.16 * warmth + 0.12 * aloft,
        upper=-0.35 * zones.warmth + 0.3 * aloft,
        moisture=moisture,
        rain=np.maximum(1.2 * showers + 0.9 * moisture - 2.2, _DRY),
        height=0.95 * zones.warmth + 0.2 * aloft + 0.1 * waves,
    )


@dataclass(frozen=True, eq=False)
class _Zones:
    """What only depends on latitude; shape (height, 1)."""

    cosine: Plane
    warmth: Plane
    moisture: Plane
    pressure: Plane
    wind: Plane
    storm_track: Plane
    turning: Plane


@lru_cache(maxsize=4)
def _zones(grid: Grid) -> _Zones:
    angle = np.deg2rad(grid.latitudes)
    sine, cosine = np.sin(angle), np.cos(angle)
    # The means over rows of cos and cos^3 are 2/pi and 4/(3 pi).
    return _Zones(
        cosine=cosine,
        warmth=2.8 * (cosine - np.float32(2 / np.pi)),
        moisture=2.4 * (cosine**3 - np.float32(4 / (3 * np.pi))),
        pressure=-0.45 * np.cos(6 * angle),
        wind=-0.8 * cosine * np.sin(6 * np.abs(angle)),
        storm_track=0.2 + 0.7 * np.sin(2 * angle) ** 2,
        turning=(sine / (sine**2 + 0.15)).astype(np.float32),
    )


def _along_slopes(pressure: Plane, zones: _Zones) -> tuple[Plane, Plane]:
    """The wind, (east, north), that keeps low `pressure` on its left in the north, on its right in the south.

    Geostrophic, with the Coriolis parameter kept from 0 at the equator.
    """
    height, width = pressure.shape
    strength = zones.turning * np.float32(0.045)
    northwards = np.gradient(pressure, axis=0) * np.float32(height)
    eastwards = (np.roll(pressure, -1, axis=1) - np.roll(pressure, 1, axis=1)) * np.float32(width / 3)
    return -strength * northwards, strength * eastwards
