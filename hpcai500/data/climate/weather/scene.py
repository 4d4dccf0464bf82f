"""One synthetic image: a calm atmosphere, distractors, storms that do not hide each other, and their boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import BOX_COLUMNS, MOST_BOXES
from hpcai500.data.climate.weather.atmosphere import calm_weather
from hpcai500.data.climate.weather.cyclones import DEPRESSION, EXTRATROPICAL, TROPICAL, Cyclone, form_cyclone
from hpcai500.data.climate.weather.distractors import DISTRACTORS
from hpcai500.data.climate.weather.fields import Grid
from hpcai500.data.climate.weather.rivers import River, form_river
from hpcai500.data.climate.weather.scales import channels_of, terrain

SMALLEST_HEIGHT, SMALLEST_WIDTH = 64, 96
# The published year has 5.1 boxes an image; of those drawn here a few find no place.
_STORMS_AN_IMAGE = 5.25
_DISTRACTORS_AN_IMAGE = 7.0
# Of the smaller of two boxes, how much the other may cover.
_MOST_OVERLAP = 0.15
_TRIES = 60

Storm = Cyclone | River
_CYCLONES = {0: DEPRESSION, 1: TROPICAL, 2: EXTRATROPICAL}


def draw_scene(
    seed: int, year: int, number: int, grid: Grid, class_shares: Sequence[float]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Draw image `number` of `year`, which depends on nothing but the arguments.

    Returns the image (16, height, width) in the units of `channels.SCALES`, and the boxes (15, 5): rows ymin xmin
    ymax xmax class with exclusive maxima, -1 where unused.
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
    """Draw classes by their shares and a place for each storm; those for which there is no room are left out."""
    shares = np.asarray(class_shares, np.float64)
    wanted = min(int(random.poisson(_STORMS_AN_IMAGE)), MOST_BOXES)
    labels = random.choice(len(shares), size=wanted, p=shares / shares.sum())
    placed: list[tuple[int, Storm]] = []
    # The large ones first: they would not find room later, and the shares of the classes would change.
    for label in sorted(labels.tolist(), reverse=True):
        for _ in range(_TRIES):
            storm = form_river(random, grid) if label not in _CYCLONES else form_cyclone(random, grid, _CYCLONES[label])
            if all(_overlap(storm.extent.box, other.extent.box) <= _MOST_OVERLAP for _, other in placed):
                placed.append((label, storm))
                break
    return placed


def _overlap(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> float:
    """The common area, as a part of the smaller of two boxes."""
    height = min(one[2], other[2]) - max(one[0], other[0])
    width = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return max(height, 0) * max(width, 0) / smaller
