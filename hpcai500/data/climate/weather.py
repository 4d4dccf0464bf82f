"""Synthetic weather for climate images: red noise on a globe, cyclones, rivers, and distractors that look like them.

An image depends on (seed, year, number), the grid and the shares of classes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.years import BOX_COLUMNS, CHANNELS, MOST_BOXES

# ----------------------------------------------------------------------------------------------------
# The grid of the globe, and random fields with the red spectrum of the atmosphere: large patterns are strong.


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
        """The row of a `latitude` in degrees north, as a fraction: row j reaches from j to j + 1."""
        return (latitude + 90.0) / 180.0 * self.height


def red_noise(random: np.random.Generator, grid: Grid, knee: float, steepness: float) -> Plane:
    """A Gaussian field of mean 0 and expected variance 1, periodic in both directions; shape (height, width).

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
    """Half-plane of spectral amplitudes that give a field of variance 1 from standard normal parts."""
    rows = np.fft.fftfreq(grid.height, 1.0 / grid.height)[:, None]
    # A wave around the globe is twice as long as one from pole to pole, but shipped pixels are not 2:1. Storms are
    # round in pixels, so fields are as well.
    columns = np.fft.rfftfreq(grid.width, 1.0 / grid.width)[None, :] * (SHIPPED_HEIGHT / SHIPPED_WIDTH)
    amplitude = (rows**2 + columns**2 + knee**2) ** (-steepness / 2)
    amplitude[0, 0] = 0.0
    # Inner columns represent two waves each, with a real and an imaginary part; of the first and, for an even width,
    # the last column, only the real half of the drawn values counts.
    weight = np.full(amplitude.shape[1], 4.0)
    weight[0] = 1.0
    if grid.width % 2 == 0:
        weight[-1] = 1.0
    variance = float((weight * amplitude**2).sum()) / (grid.height * grid.width) ** 2
    scaled: Plane = (amplitude / np.sqrt(variance)).astype(np.float32)
    return scaled


# ----------------------------------------------------------------------------------------------------
# The part of the grid that one pattern of the weather covers, with its own coordinates.


@dataclass(frozen=True)
class Extent:
    """An upright ellipse on the grid, or the box around it, in rows and columns; fractions are allowed.

    `half_height` and `half_width` are the distances from the middle to the edges.
    """

    row: float
    column: float
    half_height: float
    half_width: float

    @property
    def box(self) -> tuple[int, int, int, int]:
        """(ymin, xmin, ymax, xmax): the smallest box of whole pixels around the ellipse; maxima are exclusive."""
        return (
            int(np.floor(self.row - self.half_height)),
            int(np.floor(self.column - self.half_width)),
            int(np.ceil(self.row + self.half_height)),
            int(np.ceil(self.column + self.half_width)),
        )


class Patch:
    """The pixels in the box of `extent`, wrapped around the globe.

    Attributes:
        east, north: distance of each pixel's middle from the middle of the extent, in its half-widths and
            half-heights; shapes (1, columns) and (rows, 1).
        poleward: `north`, with the sign turned in the southern hemisphere.
        hemisphere: 1 in the north, -1 in the south.
    """

    def __init__(self, extent: Extent, grid: Grid) -> None:
        ymin, xmin, ymax, xmax = extent.box
        rows = np.arange(max(ymin, 0), min(ymax, grid.height))
        columns = np.arange(xmin, xmax)
        self.north: Plane = ((rows + 0.5 - extent.row) / extent.half_height).astype(np.float32)[:, None]
        self.east: Plane = ((columns + 0.5 - extent.column) / extent.half_width).astype(np.float32)[None, :]
        self.hemisphere = 1 if extent.row >= grid.height / 2 else -1
        self.poleward: Plane = self.north * np.float32(self.hemisphere)
        self._where = np.ix_(rows, columns % grid.width)

    def fade(self) -> Plane:
        """1 in the middle, 0 from the ellipse outwards: 1 - r^2."""
        inside: Plane = np.maximum(1 - (self.east**2 + self.north**2), 0)
        return inside

    def add(self, field: Plane, pattern: npt.NDArray[np.floating]) -> None:
        """Add `pattern`, given on the patch, to `field`, given on the grid."""
        field[self._where] += pattern.astype(np.float32, copy=False)


def pixel_size(grid: Grid) -> tuple[float, float]:
    """Rows and columns of this grid for one pixel of the shipped grid.

    Not below a ninth: on smaller grids storms are larger than on the globe, as nothing is left of fewer pixels.
    """
    return max(grid.height / SHIPPED_HEIGHT, 1 / 9), max(grid.width / SHIPPED_WIDTH, 1 / 9)


# ----------------------------------------------------------------------------------------------------
# The weather of one image as a few fields, from which the 16 channels follow; and the weather without storms.


# Far enough below 0 that noise makes no drizzle in a dry place.
_DRY = np.float32(-0.3)


@dataclass(frozen=True, eq=False)
class Atmosphere:
    """Fields of shape (height, width), in standard deviations of the channel that shows them best.

    Attributes:
        pressure: at sea level (PSL).
        east, north: wind at 850 hPa (U850, V850).
        surface, middle, upper: temperature at the surface, at 500 hPa and at 200 hPa (TS, T500, T200).
        moisture: total precipitable water (TMQ).
        rain: PRECT; 0 is no rain, and below 0 it is dry.
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
    """What depends on latitude alone; shape (height, 1)."""

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
    """The geostrophic wind (east, north): low `pressure` is on its left in the north, on its right in the south.

    The Coriolis parameter is bounded away from 0 at the equator.
    """
    height, width = pressure.shape
    strength = zones.turning * np.float32(0.045)
    northwards = np.gradient(pressure, axis=0) * np.float32(height)
    eastwards = (np.roll(pressure, -1, axis=1) - np.roll(pressure, 1, axis=1)) * np.float32(width / 3)
    return -strength * northwards, strength * eastwards


# ----------------------------------------------------------------------------------------------------
# Cyclones: lows that the wind circles, with a warm or a cold core and rain of a typical form.


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the cyclones of one class look. Pairs are minimum and maximum.

    Attributes:
        latitudes: of the middle, in degrees, of either hemisphere.
        half_sizes: half the height of the box, in pixels of the shipped grid.
        elongation: width of the box / its height.
        depth: of the low, in standard deviations of PSL.
        wind: strongest wind for each unit of depth.
        sharpness: the low falls off as (1 - r^2)^sharpness.
        middle, upper, height: of the core at 500 and 200 hPa for each unit of depth: above 0 is warm, and high.
        front: temperature contrast between the sectors ahead and behind, for each unit of depth.
        moisture: gained for each unit of depth.
        rain: the heaviest, independent of the depth.
        rainfall: the form of the rain.
    """

    latitudes: tuple[float, float]
    half_sizes: tuple[float, float]
    elongation: tuple[float, float]
    depth: tuple[float, float]
    wind: float
    sharpness: int
    middle: float = 0.0
    upper: float = 0.0
    height: float = 0.0
    front: float = 0.0
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
        """Add it to `weather`. It ends at its extent, so its box is where it can be seen."""
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
    """The wind (east, north) for a depth of 1: along the isobars, cyclonic, and slightly inwards.

    In balance with the low, it is proportional to the low's slope, r (1 - r^2)^(s - 1), which is steepest where
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
    """Draw a cyclone of `kind` at a random place in its latitudes, whole, and not across the seam of the grid."""
    rows, columns = pixel_size(grid)
    half_size = random.uniform(*kind.half_sizes)
    half_height, half_width = half_size * rows, half_size * random.uniform(*kind.elongation) * columns
    extent = _whole_extent(random, grid, kind.latitudes, half_height, half_width)
    return Cyclone(kind, extent, random.uniform(*kind.depth))


def _whole_extent(
    random: np.random.Generator, grid: Grid, latitudes: tuple[float, float], half_height: float, half_width: float
) -> Extent:
    """Draw a place in `latitudes` of either hemisphere, so that the extent is whole and not across the seam."""
    latitude = random.uniform(*latitudes) * random.choice([-1.0, 1.0])
    row = np.clip(grid.row_of(latitude), half_height + 1, grid.height - half_height - 1)
    column = random.uniform(half_width + 1, grid.width - half_width - 1)
    return Extent(float(row), float(column), half_height, half_width)


# ----------------------------------------------------------------------------------------------------
# Distractors: weather that looks like a storm in one channel but is not one, and so has no box.


def _patch(
    random: np.random.Generator,
    grid: Grid,
    latitudes: tuple[float, float],
    half_heights: tuple[float, float],
    elongation: tuple[float, float],
) -> Patch:
    """A random place around the globe, also across the seam; sizes in pixels of the shipped grid."""
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
    """A cluster of thunderstorms: as wet as a depression, without a low or wind."""
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
    """A straight band of moist air along a parallel, at rest: not a river."""
    patch = _patch(random, grid, (10, 45), (15, 30), (4.0, 7.0))
    core = patch.fade() * np.float32(random.uniform(0.8, 1.6))
    patch.add(weather.moisture, core)


def add_high(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A high, which the wind circles the other way round."""
    patch = _patch(random, grid, (15, 60), (40, 100), (0.9, 1.6))
    fade = patch.fade()
    high = np.float32(random.uniform(0.5, 1.5))
    patch.add(weather.pressure, high * fade**2)
    patch.add(weather.east, 2 * high * patch.hemisphere * patch.north * fade)
    patch.add(weather.north, -2 * high * patch.hemisphere * patch.east * fade)


def add_wave(random: np.random.Generator, weather: Atmosphere, grid: Grid) -> None:
    """A wave in the wind, to and fro across the parallels, that does not close to a circle."""
    patch = _patch(random, grid, (6, 60), (30, 70), (1.5, 3.0))
    across = (
        np.float32(random.uniform(0.6, 1.5) * random.choice([-1.0, 1.0]))
        * patch.fade()
        * np.sin(np.float32(np.pi) * patch.east)
    )
    patch.add(weather.north, across)
    patch.add(weather.rain, np.abs(across))


DISTRACTORS = (add_high, add_wave, add_thermal_low, add_showers, add_jet_streak, add_cold_pool, add_moist_band)


# ----------------------------------------------------------------------------------------------------
# Atmospheric rivers: long, narrow, bowed filaments of moist air that flow from the subtropics polewards and east.


# Pixels of the shipped grid; radians.
_LENGTHS = (210.0, 440.0)
_HALF_WIDTHS = (20.0, 32.0)
_SLOPES = (0.42, 0.78)
_BOWS = (0.08, 0.2)
_LATITUDES = (30.0, 46.0)


@dataclass(frozen=True)
class Course:
    """The centre line of a river, in pixels of the shipped grid about its middle, x eastwards and y polewards.

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
        # As in `across`, the edges lie a half-width to either side of the chord's direction, not of the bowed line's.
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
        rows, columns = pixel_size(grid)
        left, low, right, high = self.course.bounds()
        x = patch.east * np.float32(self.extent.half_width / columns) + np.float32((left + right) / 2)
        y = patch.poleward * np.float32(self.extent.half_height / rows) + np.float32((low + high) / 2)
        along, aside = self.course.across(x, y)
        ends = np.maximum(1 - along**8, 0)
        band = ends * np.maximum(1 - aside**2, 0) ** np.float32(1.5)
        patch.add(weather.moisture, self.moisture * band)
        patch.add(weather.rain, 1.1 * band * (1.2 + along))
        patch.add(weather.middle, 0.12 * band)
        patch.add(weather.surface, 0.12 * band)
        # The wind follows the bow, whose derivative is its slope to the chord.
        turned = self.course.slope + np.arctan(4 * self.course.bow * along)
        patch.add(weather.east, 1.6 * band * np.cos(turned))
        patch.add(weather.north, 1.6 * patch.hemisphere * band * np.sin(turned))


def form_river(random: np.random.Generator, grid: Grid) -> River:
    """Draw a river in the middle latitudes, whole, and not across the seam of the grid."""
    course = Course(
        random.uniform(*_LENGTHS), random.uniform(*_HALF_WIDTHS), random.uniform(*_SLOPES), random.uniform(*_BOWS)
    )
    rows, columns = pixel_size(grid)
    left, low, right, high = course.bounds()
    extent = _whole_extent(random, grid, _LATITUDES, (high - low) / 2 * rows, (right - left) / 2 * columns)
    return River(course, extent, random.uniform(1.2, 2.2))


# ----------------------------------------------------------------------------------------------------
# From the fields of the weather to the 16 channels of an image, in their physical units.


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
# The part of a channel that the fields do not explain, in its standard deviations.
_UNEXPLAINED = 0.15


@lru_cache(maxsize=4)
def terrain(seed: int, grid: Grid) -> Plane:
    """How much mountains lower PS, about the mean: the same in every image of the set `seed`."""
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    heights = np.maximum(red_noise(random, grid, knee=3.0, steepness=2.0) - np.float32(0.4), 0)
    about_mean: Plane = heights - heights.mean()
    return about_mean


def channels_of(weather: Atmosphere, ground: Plane, grid: Grid, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """The image (16, height, width) of `weather` over the terrain `ground`, in the units of `SCALES`.

    Friction turns the wind near the ground towards low pressure. The shares of pressure in PS and Z1000 follow from
    their units: 1 hPa of PSL is about 1 hPa of PS and 8 m of Z1000.
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
        # One noise field, shifted for each channel, is as good as another field, and cheaper.
        anomaly = anomalies[name] + np.roll(noise, shift, axis=(0, 1))
        np.multiply(anomaly, np.float32(deviation), out=image[channel])
        image[channel] += np.float32(mean)
        if name in NEVER_NEGATIVE:
            np.maximum(image[channel], 0, out=image[channel])
    return image


# ----------------------------------------------------------------------------------------------------
# One synthetic image: a calm atmosphere, distractors, storms that barely overlap, and their boxes.


SMALLEST_HEIGHT, SMALLEST_WIDTH = 64, 96
# The published year has 5.1 boxes per image, and a few storms drawn here find no place.
_STORMS_AN_IMAGE = 5.25
_DISTRACTORS_AN_IMAGE = 7.0
# Share of the smaller of two boxes that the other may cover.
_MOST_OVERLAP = 0.15
_TRIES = 60

Storm = Cyclone | River
_CYCLONES = {0: DEPRESSION, 1: TROPICAL, 2: EXTRATROPICAL}


def draw_scene(
    seed: int, year: int, number: int, grid: Grid, class_shares: Sequence[float]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Draw image `number` of `year`, which depends on the arguments alone.

    Returns the image (16, height, width) in the units of `SCALES`, and the boxes (15, 5): rows ymin xmin ymax xmax
    class with exclusive maxima, -1 where unused.
    """
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(year, number))))
    storms = place_storms(random, grid, class_shares)
    weather = calm_weather(random, grid)
    for kind in random.integers(len(DISTRACTORS), size=random.poisson(_DISTRACTORS_AN_IMAGE)):
        DISTRACTORS[kind](random, weather, grid)
    for _, storm in storms:
        storm.blow(weather, grid)
    boxes = np.full((MOST_BOXES, len(BOX_COLUMNS)), -1, np.int32)
    for row, (label, storm) in zip(boxes, storms, strict=False):
        row[:] = (*storm.extent.box, label)
    return channels_of(weather, terrain(seed, grid), grid, random), boxes


def place_storms(random: np.random.Generator, grid: Grid, class_shares: Sequence[float]) -> list[tuple[int, Storm]]:
    """Draw classes by their shares and a place for each storm; storms that find no room are left out."""
    shares = np.asarray(class_shares, np.float64)
    count = min(int(random.poisson(_STORMS_AN_IMAGE)), MOST_BOXES)
    labels = random.choice(len(shares), size=count, p=shares / shares.sum())
    placed: list[tuple[int, Storm]] = []
    # The large ones first: later they would find no room, and the shares of the classes would change.
    for label in sorted(labels.tolist(), reverse=True):
        for _ in range(_TRIES):
            storm = form_river(random, grid) if label not in _CYCLONES else form_cyclone(random, grid, _CYCLONES[label])
            if all(_overlap(storm.extent.box, other.extent.box) <= _MOST_OVERLAP for _, other in placed):
                placed.append((label, storm))
                break
    return placed


def _overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> float:
    """The common area, as a share of the smaller box."""
    height = min(one[2], other[2]) - max(one[0], other[0])
    width = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return max(height, 0) * max(width, 0) / smaller
