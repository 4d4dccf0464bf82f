"""COCO's average precision at IoU 0.5: against hand computation, and its corners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from pycocotools import mask

from hpcai500.workloads.quality import AveragePrecision

CLASSES = ("depression", "cyclone", "river")
Image = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def boxes(*corners: float) -> np.ndarray:
    """Squares of side 10 whose upper left corners are (x, 0)."""
    return np.array([[x, 0, x + 10, 10] for x in corners], float).reshape(-1, 4)


def labels(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def image(truth: Sequence[tuple[float, int]], found: Sequence[tuple[float, float, int]]) -> Image:
    """Truths (x, class) and detections (x, score, class), all squares of side 10."""
    corners, classes = zip(*truth, strict=True) if truth else ((), ())
    places, scores, kinds = zip(*found, strict=True) if found else ((), (), ())
    return boxes(*corners), labels(*classes), boxes(*places), np.array(scores, float), labels(*kinds)


def measured(*images: Image) -> tuple[float, list[float | None]]:
    """The mean, and the precision of each class."""
    precision = AveragePrecision(CLASSES)
    for one in images:
        precision.add(*one)
    result = precision.result()
    assert tuple(result.per_class) == CLASSES
    return result.mean, list(result.per_class.values())


SCENES = {
    "a perfect detector": ([image([(0, 1), (100, 2)], [(0, 0.9, 1), (100, 0.8, 2)])], 1, [1, 1, None]),
    # Four truths; by score: hit, miss, hit, hit. Precision at recall 1/4, 2/4, 3/4: 1, 2/3, 3/4 -> 3/4 from 1/4 on.
    # 101 recalls 0, 0.01, … 1: 26 of them (to 0.25) see precision 1, the 50 up to 0.75 see 3/4, the rest 0.
    "by hand": (
        [image([(x, 2) for x in (0, 100, 200, 300)], [(0, 0.9, 2), (50, 0.8, 2), (100, 0.7, 2), (200, 0.6, 2)])],
        (26 * 1 + 50 * 0.75) / 101,
        [None, (26 * 1 + 50 * 0.75) / 101, None],
    ),
    # IoU 6.7 / 13.3 = 0.504 and 6.6 / 13.4 = 0.493.
    "just half the union": ([image([(0, 1)], [(3.3, 0.9, 1)])], 1, [1, None, None]),
    "less than half the union": ([image([(0, 1)], [(3.4, 0.9, 1)])], 0, [0, None, None]),
    # By score: hit (0.9), double (0.8), hit (0.7): precision 1 to recall 1/2, then 2/3.
    "a second detection of the same truth is a miss": (
        [image([(0, 1)], [(0, 0.8, 1), (1, 0.9, 1)]), image([(0, 1)], [(0, 0.7, 1)])],
        (51 + 50 * 2 / 3) / 101,
        [(51 + 50 * 2 / 3) / 101, None, None],
    ),
    "the mean is over the classes that occur": ([image([(0, 1), (100, 2)], [(0, 0.9, 1)])], 0.5, [1, 0, None]),
    "a class without truth does not count": ([image([(0, 1)], [(0, 0.9, 1), (0, 0.99, 3)])], 1, [1, None, None]),
    "nothing found": ([image([(0, 1)], [])], 0, [0, None, None]),
    "no truth at all": ([image([], [(0, 0.9, 1)])], 0, [None, None, None]),
    "images do not mix": ([image([(0, 1)], []), image([], [(0, 0.9, 1)])], 0, [0, None, None]),
}


@pytest.mark.parametrize(("images", "mean", "per_class"), SCENES.values(), ids=SCENES)
def test_the_precision_of_known_detections(
    images: list[Image], mean: float, per_class: list[float | None], capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(*images)
    assert found[0] == pytest.approx(mean)
    assert [value is None for value in found[1]] == [value is None for value in per_class]
    assert [value or 0 for value in found[1]] == pytest.approx([value or 0 for value in per_class])
    assert capsys.readouterr().out == "", "pycocotools prints"


def single_precision(*corners: float) -> np.ndarray:
    """One box, in float32, as detectors and data sets have them."""
    return np.array([corners], np.float32)


def test_an_iou_just_below_one_half_in_float32_boxes_is_a_miss() -> None:
    """Widths rounded to float32 would make 0.5 of this IoU of 0.49999996."""
    truth, found = single_precision(3.8048432, 0, 20.0899715, 10), single_precision(3.8048432, 0, 11.9474068, 10)
    assert measured((truth, labels(1), found, np.array([0.9], np.float32), labels(1)))[0] == 0


def test_float32_boxes_near_the_threshold_match_as_cocos_float64_has_it() -> None:
    random, near = np.random.default_rng(22), set()
    for _ in range(300):
        x, width, shift = random.uniform(0, 1000), random.uniform(5, 300), random.integers(-2, 3)
        truth = single_precision(x, 0, x + width, 10)
        found = truth.copy()
        # Half of the truth, and then some units in the last place more or less.
        found[0, 2] = (truth[0, 0].astype(float) + truth[0, 2]) / 2
        found[0, 2] += shift * np.spacing(found[0, 2])
        as_coco = [np.array([[*box[0, :2], *(box[0, 2:] - box[0, :2])]]) for box in map(np.float64, (found, truth))]
        matches = bool(mask.iou(*as_coco, [0])[0, 0] >= 0.5)
        mean, _ = measured((truth, labels(1), found, np.array([0.9], np.float32), labels(1)))
        assert mean == pytest.approx(float(matches)), (truth, found)
        near.add(matches)
    assert near == {True, False}


def test_only_the_best_hundred_detections_of_a_class_count() -> None:
    for rank, expected in ((100, 1 / 100), (101, 0)):
        found = np.concatenate([boxes(*range(1000, 1000 + 20 * (rank - 1), 20)), boxes(0)])
        scores = np.linspace(0.9, 0.1, rank)
        mean, _ = measured((boxes(0), labels(1), found, scores, np.ones(rank, np.int64)))
        assert mean == pytest.approx(expected)


def test_the_hundred_are_of_each_class_and_of_each_image() -> None:
    """An image's 101st and 102nd detections count, as they are another class's; so does what the next image has."""
    found = np.concatenate([boxes(*range(1000, 1000 + 20 * 99, 20)), boxes(0), boxes(500, 200)])
    full = boxes(0, 200), labels(1, 2), found, np.linspace(0.9, 0.1, 102), labels(*[1] * 100, 2, 2)
    # Of class 1 ranks 100 and 101 hit, of class 2 rank 2.
    assert measured(full, image([(0, 1)], [(0, 0.05, 1)]))[1][:2] == pytest.approx([2 / 101, 1 / 2])
