"""The synthetic weather: what a meteorologist would look for, measured on the images themselves; and its boxes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcai500.data.climate.weather import (
    DEPRESSION,
    DISTRACTORS,
    EXTRATROPICAL,
    NEVER_NEGATIVE,
    SCALES,
    SMALLEST_HEIGHT,
    SMALLEST_WIDTH,
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
    place_storms,
    red_noise,
)
from hpcai500.data.climate.years import CHANNELS, MOST_BOXES

GRID = Grid(128, 192)
KINDS = {"depression": DEPRESSION, "tropical": TROPICAL, "extratropical": EXTRATROPICAL}
FIELDS = tuple(Atmosphere.__dataclass_fields__)
SHARES = (0.06, 0.43, 0.46, 0.05)
EVEN = (0.25,) * 4
Plane = npt.NDArray[np.float32]
Storm = Cyclone | River
random_of = np.random.default_rng


def still_air() -> Atmosphere:
    return Atmosphere(**{name: np.zeros((GRID.height, GRID.width), np.float32) for name in FIELDS})


def alone(storm: Storm) -> Atmosphere:
    weather = still_air()
    storm.blow(weather, GRID)
    return weather


def inside(plane: Plane, storm: Storm) -> Plane:
    ymin, xmin, ymax, xmax = storm.extent.box
    return plane[ymin:ymax, xmin:xmax]


@cache
def scenes() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Forty images and their boxes."""
    images, boxes = zip(*(draw_scene(3, 1979, number, GRID, EVEN) for number in range(40)), strict=True)
    return np.stack(images), np.stack(boxes)


def channel(name: str) -> npt.NDArray[np.float32]:
    """All images of one channel, in its standard deviations."""
    mean, deviation = SCALES[name]
    return (scenes()[0][:, CHANNELS.index(name)] - np.float32(mean)) / np.float32(deviation)


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
    storms: list[Storm] = [form_cyclone(random_of(seed), GRID, kind) for kind in KINDS.values()]
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
    power = np.abs(np.fft.rfft(scenes()[0], axis=-1)).astype(np.float64) ** 2
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
    steps = np.abs(np.roll(scenes()[0], -1, axis=3) - scenes()[0]).mean(axis=(0, 2))
    assert np.all(steps[:, -1] < 1.5 * steps.mean(axis=1))


def test_values_are_physical() -> None:
    assert scenes()[0].dtype == np.float32
    for number, name in enumerate(CHANNELS):
        mean, deviation = SCALES[name]
        values = scenes()[0][:, number]
        assert abs(values.mean() - mean) < 0.4 * deviation
        assert 0.2 * deviation < values.std() < 1.3 * deviation
        if name in NEVER_NEGATIVE:
            assert values.min() >= 0
    kelvin = scenes()[0][:, CHANNELS.index("TS")]
    assert 190 < kelvin.min() < kelvin.max() < 340
    hectopascal = scenes()[0][:, CHANNELS.index("PSL")] / 100
    assert 900 < hectopascal.min() < hectopascal.max() < 1100


@pytest.mark.parametrize("add", DISTRACTORS, ids=lambda add: add.__name__)
def test_a_distractor_changes_the_weather_but_lacks_what_makes_a_storm(add: Any) -> None:
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
    images, boxes = scenes()
    places = [
        (number, slice(ymin, ymax), slice(xmin, xmax))
        for number, rows in enumerate(boxes)
        for ymin, xmin, ymax, xmax, _ in rows[rows[:, 4] >= 0]
    ]
    outside = np.ones((len(images), GRID.height, GRID.width), bool)
    for place in places:
        outside[place] = False
    for name, sign in (("PSL", -1), ("TMQ", 1), ("PRECT", 1), ("U850", 1), ("T500", 1)):
        values = sign * channel(name)
        # The extreme of a typical box is passed outside the boxes of the same images, too.
        extremes = [values[place].max() for place in places]
        elsewhere = [plane[free].max() for plane, free in zip(values, outside, strict=True)]
        assert np.median(elsewhere) > np.quantile(extremes, 0.3), name


def test_terrain_stays_while_the_weather_changes() -> None:
    terrain, weather = (np.corrcoef(channel(name).reshape(40, -1)) for name in ("PS", "PSL"))
    assert terrain.min() > 0.8
    assert np.median(weather[np.triu_indices(40, 1)]) < 0.6


# --- boxes


def placed(grid: Grid, shares: tuple[float, ...], images: int) -> list[npt.NDArray[np.int32]]:
    """Rows ymin xmin ymax xmax class of each image."""
    found = []
    for number in range(images):
        storms = place_storms(np.random.default_rng([7, number]), grid, shares)
        found.append(np.array([(*storm.extent.box, label) for label, storm in storms], np.int32).reshape(-1, 5))
    return found


@given(
    st.integers(SMALLEST_HEIGHT, 300),
    st.integers(SMALLEST_WIDTH, 400),
    st.integers(0, 2**62),
    st.tuples(*[st.floats(0.01, 1)] * 4),
)
@settings(max_examples=60, deadline=None)
def test_boxes_lie_inside_any_grid_and_keep_the_format(
    height: int, width: int, seed: int, shares: tuple[float, ...]
) -> None:
    image, boxes = draw_scene(seed, 1979, 0, Grid(height, width), shares)
    assert image.shape == (16, height, width)
    assert image.dtype == np.float32
    assert np.isfinite(image).all()
    assert boxes.shape == (MOST_BOXES, 5)
    assert boxes.dtype == np.int32
    used = boxes[:, 4] >= 0
    assert (boxes[~used] == -1).all()
    assert not used[1:][~used[:-1]].any(), "unused rows come last"
    ymin, xmin, ymax, xmax, label = boxes[used].T
    assert ((ymin >= 0) & (xmin >= 0) & (ymax < height) & (xmax < width)).all()
    assert ((ymax - ymin >= 6) & (xmax - xmin >= 6)).all()
    assert np.isin(label, range(4)).all()


@pytest.mark.parametrize(("height", "width"), [(96, 144), (128, 192), (768, 1152)])
def test_sizes_are_those_of_the_real_classes_at_every_scale(height: int, width: int) -> None:
    boxes = np.concatenate(placed(Grid(height, width), EVEN, 400))
    rows, columns = height / 768, width / 1152
    # Height and width in pixels of the shipped grid; whole pixels add up to two.
    limits = {0: (50, 101), 1: (57, 125), 2: (88, 310), 3: (95, 480)}
    for label, (least, most) in limits.items():
        ymin, xmin, ymax, xmax, _ = boxes[boxes[:, 4] == label].T
        assert (ymax - ymin).min() >= least * rows
        assert (ymax - ymin).max() <= most * rows + 2
        assert (xmax - xmin).min() >= least * columns
        assert (xmax - xmin).max() <= most * columns + 2


def test_class_shares_and_boxes_an_image_are_those_of_the_published_year() -> None:
    images = placed(Grid(128, 192), SHARES, 3000)
    labels = np.concatenate(images)[:, 4]
    # 5.1 boxes an image; the standard deviation of the mean of 3000 is 0.04.
    assert len(labels) / len(images) == pytest.approx(5.1, abs=0.2)
    for share, found in zip(SHARES, np.bincount(labels, minlength=4) / len(labels), strict=True):
        deviation = (share * (1 - share) / len(labels)) ** 0.5
        # Four standard deviations, and what the lack of room costs the largest.
        assert found == pytest.approx(share, abs=4 * deviation + 0.01)


def test_other_shares_are_followed_in_any_scale() -> None:
    labels = np.concatenate(placed(Grid(128, 192), (3, 0, 1, 0), 500))[:, 4]
    assert set(labels.tolist()) == {0, 2}
    assert (labels == 0).mean() == pytest.approx(0.75, abs=0.05)


def test_boxes_hardly_overlap_and_are_never_more_than_fit_the_format() -> None:
    images = placed(Grid(128, 192), EVEN, 500)
    assert max(map(len, images)) <= MOST_BOXES
    assert min(map(len, images)) <= 2
    for boxes in images:
        for number, (ymin, xmin, ymax, xmax, _) in enumerate(boxes):
            others = boxes[number + 1 :]
            height = np.minimum(others[:, 2], ymax) - np.maximum(others[:, 0], ymin)
            width = np.minimum(others[:, 3], xmax) - np.maximum(others[:, 1], xmin)
            common = np.maximum(height, 0) * np.maximum(width, 0)
            areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
            assert (common <= 0.15 * np.minimum(areas, (ymax - ymin) * (xmax - xmin))).all()


def test_storms_live_where_they_do_on_earth() -> None:
    boxes = np.concatenate(placed(Grid(128, 192), EVEN, 500))
    latitude = np.abs((boxes[:, 0] + boxes[:, 2]) / 2 * 180 / 128 - 90)
    middle = {label: np.median(latitude[boxes[:, 4] == label]) for label in range(4)}
    assert middle[0] < 25 > middle[1]
    assert middle[2] > 40
    assert 25 < middle[3] < 50
    # And in both hemispheres alike.
    north = (boxes[:, 0] + boxes[:, 2] > 128).mean()
    assert north == pytest.approx(0.5, abs=0.06)
