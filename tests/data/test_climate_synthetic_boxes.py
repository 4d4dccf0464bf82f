"""The boxes of synthetic images: inside the grid, of realistic sizes and shares, and of the format."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcai500.data.climate.weather import SMALLEST_HEIGHT, SMALLEST_WIDTH, Grid, draw_scene, place_storms
from hpcai500.data.climate.years import MOST_BOXES

SHARES = (0.06, 0.43, 0.46, 0.05)
EVEN = (1.0, 1.0, 1.0, 1.0)


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
