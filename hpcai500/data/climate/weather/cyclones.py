"""Cyclones: lows that the wind circles, with a warm or a cold core and rain of a typical form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcai500.data.climate.weather.atmosphere import Atmosphere
from hpcai500.data.climate.weather.fields import Grid, Plane
from hpcai500.data.climate.weather.patch import Extent, Patch, pixel_size


@dataclass(frozen=True)
class Kind:
    """How the cyclones of one class look. Pairs are the least and the most; latitudes are of either hemisphere.

    Attributes:
        latitudes: of the middle, in degrees.
        half_sizes: half the height of the box, in pixels of the shipped grid.
        elongation: width of the box by its height.
        depth: of the low, in standard deviations of PSL.
        wind: strongest wind for each unit of depth.
        sharpness: the low falls off as (1 - r^2)^sharpness.
        middle, upper, height: of the core at 500 and 200 hPa for each unit of depth: above 0 is warm, and high.
        front: contrast of temperature between the sector ahead and that behind, for each unit of depth.
        moisture: gained for each unit of depth.
        rain: the heaviest, whatever the depth.
        rainfall: the form of the rain.
    """

    latitudes: tuple[float, float]
    half_sizes: tuple[float, float]
    elongation: tuple[float, float]
    depth: tuple[float, float]
    wind: float
    sharpness: int
    middle: float
    upper: float
    height: float
    front: float
    moisture: float
    rain: float
    rainfall: Callable[[Patch], Plane]


def _cluster(patch: Patch) -> Plane:
    """One round area: the thunderstorms of a depression have no order yet."""
    return patch.fade() ** 2


def _spiral(patch: Patch) -> Plane:
    """A ring of rain around the eye and two arms that wind inwards with the air."""
    fade = patch.fade()
    squared = 1 - fade
    angle = np.arctan2(patch.poleward, patch.east)
    arms = 0.5 + 0.5 * np.cos(2 * angle + 2.5 * np.log(squared + np.float32(0.02)))
    ring = np.exp(-((np.sqrt(squared) - np.float32(0.25)) ** 2) / np.float32(0.015))
    spiral: Plane = ring + arms * fade**2 * np.minimum(squared / np.float32(0.1), 1)
    return spiral


def _comma(patch: Patch) -> Plane:
    """A head around the poleward side, and the tail of a cold front that trails east and equatorwards of the low."""
    fade = patch.fade()
    distance = np.sqrt(1 - fade)
    angle = np.arctan2(patch.poleward, patch.east)
    comma: Plane = np.exp(3 * (np.cos(angle - 2.1 + 3.6 * distance) - 1)) * np.sqrt(fade)
    return comma


DEPRESSION = Kind(
    latitudes=(6, 26),
    half_sizes=(28, 42),
    elongation=(0.9, 1.2),
    depth=(0.4, 0.9),
    wind=1.8,
    sharpness=2,
    middle=0.0,
    upper=0.0,
    height=0.0,
    front=0.0,
    moisture=1.3,
    rain=3.5,
    rainfall=_cluster,
)
TROPICAL = Kind(
    latitudes=(9, 32),
    half_sizes=(32, 52),
    elongation=(0.9, 1.2),
    depth=(0.9, 3.2),
    wind=1.4,
    sharpness=4,
    middle=0.25,
    upper=0.3,
    height=0.1,
    front=0.0,
    moisture=0.3,
    rain=4.0,
    rainfall=_spiral,
)
EXTRATROPICAL = Kind(
    latitudes=(36, 62),
    half_sizes=(55, 110),
    elongation=(0.8, 1.4),
    depth=(0.7, 2.6),
    wind=0.8,
    sharpness=2,
    middle=-0.2,
    upper=0.25,
    height=-0.2,
    front=0.15,
    moisture=0.1,
    rain=2.0,
    rainfall=_comma,
)


@dataclass(frozen=True)
class Cyclone:
    """One cyclone: where it is, and how deep."""

    kind: Kind
    extent: Extent
    depth: float

    def blow(self, weather: Atmosphere, grid: Grid) -> None:
        """Add it to `weather`. It ends at its extent, so that its box is where it is seen."""
        kind, patch, depth = self.kind, Patch(self.extent, grid), np.float32(self.depth)
        fade = patch.fade()
        core = depth * fade**kind.sharpness
        patch.add(weather.pressure, -core)
        east, north = _circling(patch, fade, kind)
        patch.add(weather.east, depth * east)
        patch.add(weather.north, depth * north)
        # Warm air flows polewards ahead (east) of the low, cold air behind it.
        sectors = (kind.front * 2) * patch.east * fade * depth
        patch.add(weather.surface, 0.6 * sectors)
        patch.add(weather.middle, kind.middle * core + sectors)
        patch.add(weather.upper, kind.upper * core)
        patch.add(weather.height, kind.height * core)
        patch.add(weather.moisture, kind.moisture * depth * fade * np.sqrt(fade) + sectors)
        patch.add(weather.rain, kind.rain * kind.rainfall(patch))


def _circling(patch: Patch, fade: Plane, kind: Kind) -> tuple[Plane, Plane]:
    """The wind (east, north) for a depth of 1: along the isobars, cyclonic, and a little inwards.

    As in balance with the low, it is proportional to its slope, r (1 - r^2)^(s - 1), which is steepest where
    r^2 = 1 / (2 s - 1).
    """
    s = kind.sharpness
    steepest = (1 / (2 * s - 1)) ** 0.5 * (1 - 1 / (2 * s - 1)) ** (s - 1)
    per_radius = np.float32(kind.wind / steepest) * fade ** (s - 1)
    turn, inwards = np.float32(patch.hemisphere), np.float32(0.25)
    return (
        -per_radius * (turn * patch.north + inwards * patch.east),
        per_radius * (turn * patch.east - inwards * patch.north),
    )


def form_cyclone(random: np.random.Generator, grid: Grid, kind: Kind) -> Cyclone:
    """Draw a cyclone of `kind` somewhere in its latitudes, whole, and not across the seam of the grid."""
    rows, columns = pixel_size(grid)
    half_size = random.uniform(*kind.half_sizes)
    half_height, half_width = half_size * rows, half_size * random.uniform(*kind.elongation) * columns
    latitude = random.uniform(*kind.latitudes) * random.choice([-1.0, 1.0])
    row = np.clip(grid.row_of(latitude), half_height + 1, grid.height - half_height - 1)
    column = random.uniform(half_width + 1, grid.width - half_width - 1)
    return Cyclone(kind, Extent(float(row), float(column), half_height, half_width), random.uniform(*kind.depth))
