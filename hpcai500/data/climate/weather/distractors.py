"""Weather that looks like a storm in one channel and is none: it has no box."""

from __future__ import annotations

import numpy as np

from hpcai500.data.climate.weather.atmosphere import Atmosphere
from hpcai500.data.climate.weather.fields import Grid
from hpcai500.data.climate.weather.patch import Extent, Patch, pixel_size


def _patch(
    random: np.random.Generator,
    grid: Grid,
    latitudes: tuple[float, float],
    half_heights: tuple[float, float],
    elongation: tuple[float, float],
) -> Patch:
    """A place anywhere around the globe, also across the seam; sizes in pixels of the shipped grid."""
    rows, columns = pixel_size(grid)
    half_height = random.uniform(*half_heights)
    latitude = random.uniform(*latitudes) * random.choice([-1.0, 1.0])
    half_width = min(half_height * random.uniform(*elongation) * columns, grid.width / 2 - 1)
    return Patch(Extent(grid.row_of(latitude), random.uniform(0, grid.width), half_height * rows, half_width), grid)


def add_thermal_low(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A low over hot, dry ground, where the air rises and does not circle."""
    patch = _patch(random, grid, (12, 40), (30, 80), (0.9, 1.6))
    core = patch.fade() ** 2 * np.float32(random.uniform(0.7, 1.8))
    patch.add(weather.pressure, -core)
    patch.add(weather.surface, 0.25 * core)
    patch.add(weather.moisture, -0.3 * core)


def add_showers(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A cluster of thunderstorms: as wet as a depression, without a low and without a wind."""
    patch = _patch(random, grid, (0, 30), (25, 50), (0.8, 1.8))
    core = patch.fade() ** 2 * np.float32(random.uniform(0.6, 1.2))
    patch.add(weather.moisture, 1.2 * core)
    patch.add(weather.rain, 4.0 * core)


def add_jet_streak(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A long band of strong westerly wind, dry."""
    patch = _patch(random, grid, (28, 60), (15, 35), (4.0, 8.0))
    core = patch.fade() * np.float32(random.uniform(1.2, 2.4))
    patch.add(weather.east, core)


def add_cold_pool(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """Cold air cut off aloft: a cold core without a low at sea level."""
    patch = _patch(random, grid, (30, 65), (50, 100), (0.9, 1.5))
    core = patch.fade() * np.float32(random.uniform(0.3, 0.8))
    patch.add(weather.middle, -core)
    patch.add(weather.upper, 0.8 * core)
    patch.add(weather.height, -core)


def add_moist_band(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A straight band of moist air along a parallel, at rest: no river."""
    patch = _patch(random, grid, (10, 45), (15, 30), (4.0, 7.0))
    core = patch.fade() * np.float32(random.uniform(0.8, 1.6))
    patch.add(weather.moisture, core)


def add_high(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A high that the wind circles the other way round."""
    patch = _patch(random, grid, (15, 60), (40, 100), (0.9, 1.6))
    fade = patch.fade()
    high = np.float32(random.uniform(0.5, 1.5))
    patch.add(weather.pressure, high * fade**2)
    patch.add(weather.east, 2 * high * patch.hemisphere * patch.north * fade)
    patch.add(weather.north, -2 * high * patch.hemisphere * patch.east * fade)


def add_wave(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A wave in the wind, to and fro across the parallels, which does not close to a circle."""
    patch = _patch(random, grid, (6, 60), (30, 70), (1.5, 3.0))
    across = (
        np.float32(random.uniform(0.6, 1.5) * random.choice([-1.0, 1.0]))
        * patch.fade()
        * np.sin(np.float32(np.pi) * patch.east)
    )
    patch.add(weather.north, across)
    patch.add(weather.rain, np.abs(across))


DISTRACTORS = (add_high, add_wave, add_thermal_low, add_showers, add_jet_streak, add_cold_pool, add_moist_band)
