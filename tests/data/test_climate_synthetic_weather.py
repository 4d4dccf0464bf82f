"""The synthetic weather: what a meteorologist would look for, measured on the images themselves."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from hpcai500.data.climate.weather import (
    DEPRESSION,
    DISTRACTORS,
    EXTRATROPICAL,
    NEVER_NEGATIVE,
    SCALES,
    TROPICAL,
    Atmosphere,
    Cyclone,
    Grid,
    Kind,
    River,
    calm_weather,
    draw_scene,
    form_cyclone,
    form_river,
    red_noise,
)
from hpcai500.data.climate.years import CHANNELS

GRID = Grid(128, 192)
KINDS = {"depression": DEPRESSION, "tropical": TROPICAL, "extratropical": EXTRATROPICAL}
FIELDS = tuple(Atmosphere.__dataclass_fields__)
Plane = npt.NDArray[np.float32]


def still_air() -> Atmosphere:
    return Atmosphere(**{name: np.zeros((GRID.height, GRID.width), np.float32) for name in FIELDS})


def alone(storm: Cyclone | River) -> Atmosphere:
    weather = still_air()
    storm.blow(weather, GRID)
    return weather


def random_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def inside(plane: Plane, storm: Cyclone | River) -> Plane:
    ymin, xmin, ymax, xmax = storm.extent.box
    return plane[ymin:ymax, xmin:xmax]


@cache
def images() -> npt.NDArray[np.float32]:
    return np.stack([draw_scene(3, 1979, number, GRID, (0.25, 0.25, 0.25, 0.25))[0] for number in range(40)])


@cache
def boxes() -> npt.NDArray[np.int32]:
    return np.stack([draw_scene(3, 1979, number, GRID, (0.25, 0.25, 0.25, 0.25))[1] for number in range(40)])


def channel(name: str) -> npt.NDArray[np.float32]:
    """All images of one channel, in its standard deviations."""
    mean, deviation = SCALES[name]
    return (images()[:, CHANNELS.index(name)] - np.float32(mean)) / np.float32(deviation)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_a_cyclone_is_a_low_that_the_wind_circles_by_hemisphere(kind: Kind, seed: int) -> None:
    storm = form_cyclone(random_of(seed), GRID, kind)
    weather = alone(storm)
    low = inside(weather.pressure, storm)
    assert low.min() == pytest.approx(-storm.depth, rel=0.15)
    row, column = np.unravel_index(low.argmin(), low.shape)
    assert abs(row + 0.5 - low.shape[0] / 2) <= 1
    assert abs(column + 0.5 - low.shape[1] / 2) <= 1
    # Circulation: the line integral of the wind, counter-clockwise, along a rectangle around the middle.
    east, north = inside(weather.east, storm), inside(weather.north, storm)
    near, far = slice(low.shape[0] // 4, -(low.shape[0] // 4)), slice(low.shape[1] // 4, -(low.shape[1] // 4))
    ring_east, ring_north = east[near, far], north[near, far]
    circulation = ring_east[0].sum() - ring_east[-1].sum() + ring_north[:, -1].sum() - ring_north[:, 0].sum()
    hemisphere = 1 if storm.extent.row > GRID.height / 2 else -1
    assert circulation * hemisphere > 1
    # Air flows in near the middle: the outward flux through the same rectangle is negative.
    outwards = ring_east[:, -1].sum() - ring_east[:, 0].sum() + ring_north[-1].sum() - ring_north[0].sum()
    assert outwards < 0


def test_both_hemispheres_are_covered() -> None:
    rows = [form_cyclone(random_of(seed), GRID, TROPICAL).extent.row for seed in range(12)]
    assert min(rows) < GRID.height / 2 < max(rows)


def test_cores_are_warm_in_tropical_cyclones_cold_in_extratropical_ones_and_absent_in_depressions() -> None:
    for seed in range(8):
        cores = {}
        for name, kind in KINDS.items():
            storm = form_cyclone(random_of(seed), GRID, kind)
            middle = inside(alone(storm).middle, storm)
            height, width = middle.shape
            cores[name] = middle[height // 2 - 1 : height // 2 + 1, width // 2 - 1 : width // 2 + 1].mean()
        assert cores["tropical"] > 0.15
        assert cores["extratropical"] < -0.08
        assert cores["depression"] == 0


def test_a_depression_is_weaker_than_a_tropical_cyclone() -> None:
    assert DEPRESSION.depth[1] <= TROPICAL.depth[0]
    winds = {}
    for name in ("depression", "tropical"):
        storms = [form_cyclone(random_of(seed), GRID, KINDS[name]) for seed in range(20)]
        winds[name] = np.mean([np.hypot(alone(storm).east, alone(storm).north).max() for storm in storms])
    assert winds["tropical"] > 1.5 * winds["depression"]


@pytest.mark.parametrize("seed", range(12))
def test_a_cyclone_and_a_river_end_at_their_boxes(seed: int) -> None:
    storms: list[Cyclone | River] = [form_cyclone(random_of(seed), GRID, kind) for kind in KINDS.values()]
    storms.append(form_river(random_of(seed), GRID))
    for storm in storms:
        weather = alone(storm)
        touched = np.any([getattr(weather, name) != 0 for name in FIELDS], axis=0)
        rows, columns = np.flatnonzero(touched.any(axis=1)), np.flatnonzero(touched.any(axis=0))
        ymin, xmin, ymax, xmax = storm.extent.box
        # No pixel outside, and none missing at an edge but what rounds away; the ends of a river are corners.
        slack = 3 if isinstance(storm, River) else 1
        assert 0 <= rows[0] - ymin <= slack
        assert 0 <= columns[0] - xmin <= slack
        assert 0 <= ymax - 1 - rows[-1] <= slack
        assert 0 <= xmax - 1 - columns[-1] <= slack


@pytest.mark.parametrize("seed", range(12))
def test_a_river_is_a_moist_bowed_ridge_that_flows_polewards_and_east(seed: int) -> None:
    storm = form_river(random_of(seed), GRID)
    weather = alone(storm)
    moisture = inside(weather.moisture, storm)
    if storm.extent.row < GRID.height / 2:
        moisture = moisture[::-1]
    # From the equatorward west to the poleward east, with dry corners to either side.
    ridge = moisture.argmax(axis=0)[3:-3]
    assert ridge[-1] - ridge[0] > 0.5 * moisture.shape[0]
    assert np.all(np.diff(ridge) >= -1)
    assert moisture.max() > 0.8 * storm.moisture
    assert (moisture > 0).mean() < 0.6
    # Bowed to the right of its course: below the chord in the middle.
    assert ridge[len(ridge) // 2] < (ridge[0] + ridge[-1]) / 2 - 1
    wet = weather.moisture > 0.5 * storm.moisture
    assert (weather.east[wet] > 0).all()
    polewards = weather.north if storm.extent.row > GRID.height / 2 else -weather.north
    assert (polewards[wet] > 0).mean() > 0.8


def test_the_spectrum_is_red_at_every_size_of_the_grid() -> None:
    for grid in (Grid(64, 96), Grid(100, 151), Grid(128, 192)):
        fields = [red_noise(random_of(seed), grid, knee=3.0, steepness=2.5) for seed in range(30)]
        power = np.mean([np.abs(np.fft.rfft(field, axis=1)) ** 2 for field in fields], axis=(0, 1))
        bands = [power[low:high].mean() for low, high in ((2, 6), (6, 12), (12, 24), (24, 48))]
        assert bands == sorted(bands, reverse=True)
        assert bands[0] > 100 * bands[-1]
        assert np.std(fields) == pytest.approx(1, abs=0.1)


def test_images_are_redder_than_white_noise_in_every_channel() -> None:
    power = np.abs(np.fft.rfft(images(), axis=-1)).astype(np.float64) ** 2
    mean = power.mean(axis=(0, 2))
    assert np.all(mean[:, 1:8].mean(axis=1) > 5 * mean[:, 48:].mean(axis=1))


def test_latitude_gives_each_channel_its_profile() -> None:
    by_row = {name: channel(name).mean(axis=(0, 2)) for name in ("TS", "TMQ", "PSL", "U850")}
    latitudes = GRID.latitudes[:, 0]
    assert abs(latitudes[by_row["TS"].argmax()]) < 15
    assert min(by_row["TS"][0], by_row["TS"][-1]) < by_row["TS"].max() - 2
    assert abs(latitudes[by_row["TMQ"].argmax()]) < 20
    zone = {degrees: np.abs(np.abs(latitudes) - degrees) < 6 for degrees in (12, 30, 46, 60)}
    assert by_row["PSL"][zone[30]].mean() > by_row["PSL"][zone[60]].mean() + 0.3
    assert by_row["U850"][zone[46]].mean() > 0.2
    assert by_row["U850"][zone[12]].mean() < -0.2


def test_longitude_is_periodic_across_the_seam() -> None:
    # Storms end before the seam; everything else passes it.
    grid = GRID
    for seed in range(5):
        random = random_of(seed)
        weather = calm_weather(random, grid)
        for add in DISTRACTORS * 6:
            add(random, weather, grid)
        for name in FIELDS:
            field = getattr(weather, name)
            steps = np.abs(np.diff(np.concatenate([field, field[:, :1]], axis=1), axis=1)).mean(axis=0)
            assert steps[-1] < 1.6 * steps.mean()
    steps = np.abs(np.roll(images(), -1, axis=3) - images()).mean(axis=(0, 2))
    assert np.all(steps[:, -1] < 1.5 * steps.mean(axis=1))


def test_values_are_physical() -> None:
    assert images().dtype == np.float32
    for number, name in enumerate(CHANNELS):
        mean, deviation = SCALES[name]
        values = images()[:, number]
        assert abs(values.mean() - mean) < 0.4 * deviation
        assert 0.2 * deviation < values.std() < 1.3 * deviation
        if name in NEVER_NEGATIVE:
            assert values.min() >= 0
    kelvin = images()[:, CHANNELS.index("TS")]
    assert 190 < kelvin.min() < kelvin.max() < 340
    hectopascal = images()[:, CHANNELS.index("PSL")] / 100
    assert 900 < hectopascal.min() < hectopascal.max() < 1100


@pytest.mark.parametrize("add", DISTRACTORS, ids=lambda add: add.__name__)
def test_a_distractor_changes_the_weather_but_lacks_what_makes_a_storm(add: object) -> None:
    assert callable(add)
    strongest = dict.fromkeys(FIELDS, 0.0)
    for seed in range(10):
        weather = still_air()
        add(random_of(seed), weather, GRID)
        changed = {name: float(np.abs(getattr(weather, name)).max()) for name in FIELDS}
        assert max(changed.values()) > 0.2
        strongest = {name: max(strongest[name], changed[name]) for name in FIELDS}
        assert not (weather.pressure.min() < -0.2 and np.abs(weather.north).max() > 0.2), "a low with a wind is a storm"
    assert min(strongest.values()) == 0


def test_no_threshold_on_one_channel_finds_the_cyclones() -> None:
    outside = np.ones((len(images()), GRID.height, GRID.width), bool)
    for number, rows in enumerate(boxes()):
        for ymin, xmin, ymax, xmax, _ in rows[rows[:, 4] >= 0]:
            outside[number, ymin:ymax, xmin:xmax] = False
    for name, sign in (("PSL", -1), ("TMQ", 1), ("PRECT", 1), ("U850", 1), ("T500", 1)):
        values = sign * channel(name)
        # The extreme of a typical box is passed outside the boxes of the same images, too.
        extremes = [
            values[number, ymin:ymax, xmin:xmax].max()
            for number, rows in enumerate(boxes())
            for ymin, xmin, ymax, xmax, _ in rows[rows[:, 4] >= 0]
        ]
        elsewhere = [plane[free].max() for plane, free in zip(values, outside, strict=True)]
        assert np.median(elsewhere) > np.quantile(extremes, 0.3), name


def test_terrain_stays_while_the_weather_changes() -> None:
    surface_pressure = channel("PS")
    correlation = np.corrcoef(surface_pressure.reshape(len(surface_pressure), -1))
    assert correlation.min() > 0.8
    sea_level = channel("PSL")
    others = np.corrcoef(sea_level.reshape(len(sea_level), -1))
    assert np.median(others[np.triu_indices(len(others), 1)]) < 0.6
