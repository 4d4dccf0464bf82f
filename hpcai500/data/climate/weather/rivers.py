"""Atmospheric rivers: long, narrow, bowed filaments of moist air that flow from the subtropics polewards and east."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcai500.data.climate.weather.atmosphere import Atmosphere
from hpcai500.data.climate.weather.fields import Grid, Plane
from hpcai500.data.climate.weather.patch import Extent, Patch, pixel_size

# Pixels of the shipped grid; radians.
_LENGTHS = (210.0, 440.0)
_HALF_WIDTHS = (20.0, 32.0)
_SLOPES = (0.42, 0.78)
_BOWS = (0.08, 0.2)
_LATITUDES = (30.0, 46.0)


@dataclass(frozen=True)
class Course:
    """The line of a river about its middle, in pixels of the shipped grid, x eastwards and y polewards.

    A chord of `length` at the angle `slope` to the parallels, bowed by `bow` lengths to its right: first eastwards,
    then polewards. `half_width` is the distance from the line to the edges.
    """

    length: float
    half_width: float
    slope: float
    bow: float

    def across(self, x: Plane, y: Plane) -> tuple[Plane, Plane]:
        """Of points: place along the chord (-1 to 1), and distance from the line in half-widths, left positive."""
        cosine, sine = np.float32(np.cos(self.slope)), np.float32(np.sin(self.slope))
        along = (x * cosine + y * sine) * np.float32(2 / self.length)
        aside = y * cosine - x * sine + np.float32(self.bow * self.length) * (1 - along**2)
        return along, aside / np.float32(self.half_width)

    def bounds(self) -> tuple[float, float, float, float]:
        """(least x, least y, greatest x, greatest y) of the river, ends and edges included."""
        along = np.linspace(-1, 1, 101)
        ahead = along * self.length / 2
        aside = -self.bow * self.length * (1 - along**2)
        x = ahead * np.cos(self.slope) - aside * np.sin(self.slope)
        y = ahead * np.sin(self.slope) + aside * np.cos(self.slope)
        # The edges lie a half-width to either side of the chord's direction, not of the bowed line's: `across` does.
        dx, dy = self.half_width * np.sin(self.slope), self.half_width * np.cos(self.slope)
        return float(x.min() - dx), float(y.min() - dy), float(x.max() + dx), float(y.max() + dy)


@dataclass(frozen=True)
class River:
    """One river: its course, the extent of its box, and the moisture that it carries."""

    course: Course
    extent: Extent
    moisture: float

    def blow(self, weather: Atmosphere, grid: Grid) -> None:
        """Add it to `weather`: moist air, a strong wind along it, and rain towards its poleward end."""
        patch = Patch(self.extent, grid)
        along, aside = self.course.across(*self._place(patch, grid))
        ends = np.maximum(1 - along**8, 0)
        band = ends * np.maximum(1 - aside**2, 0) ** np.float32(1.5)
        patch.add(weather.moisture, self.moisture * band)
        patch.add(weather.rain, 1.1 * band * (1.2 + along))
        patch.add(weather.middle, 0.12 * band)
        patch.add(weather.surface, 0.12 * band)
        # The wind follows the bow: its slope to the chord is the derivative of the bow.
        turned = self.course.slope + np.arctan(4 * self.course.bow * along)
        patch.add(weather.east, 1.6 * band * np.cos(turned))
        patch.add(weather.north, 1.6 * patch.hemisphere * band * np.sin(turned))

    def _place(self, patch: Patch, grid: Grid) -> tuple[Plane, Plane]:
        """The pixels of `patch` in the coordinates of the course."""
        rows, columns = pixel_size(grid)
        left, low, right, high = self.course.bounds()
        x = patch.east * np.float32(self.extent.half_width / columns) + np.float32((left + right) / 2)
        y = patch.poleward * np.float32(self.extent.half_height / rows) + np.float32((low + high) / 2)
        return x, y


def form_river(random: np.random.Generator, grid: Grid) -> River:
    """Draw a river in the middle latitudes, whole, and not across the seam of the grid."""
    course = Course(
        random.uniform(*_LENGTHS), random.uniform(*_HALF_WIDTHS), random.uniform(*_SLOPES), random.uniform(*_BOWS)
    )
    rows, columns = pixel_size(grid)
    left, low, right, high = course.bounds()
    half_height, half_width = (high - low) / 2 * rows, (right - left) / 2 * columns
    latitude = random.uniform(*_LATITUDES) * random.choice([-1.0, 1.0])
    row = np.clip(grid.row_of(latitude), half_height + 1, grid.height - half_height - 1)
    column = random.uniform(half_width + 1, grid.width - half_width - 1)
    return River(course, Extent(float(row), float(column), half_height, half_width), random.uniform(1.2, 2.2))
