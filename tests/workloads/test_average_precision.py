"""COCO's average precision at IoU 0.5: against hand computation, and its corners."""

from __future__ import annotations

import numpy as np
import pytest
from pycocotools import mask

from hpcai500.workloads.quality import AveragePrecision

CLASSES = ("depression", "cyclone", "river")
NOTHING = (np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))


def boxes(*corners: float) -> np.ndarray:
    """Squares of side 10 whose upper left corners are (x, 0)."""
    return np.array([[x, 0, x + 10, 10] for x in corners], float).reshape(-1, 4)


def labels(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_perfect_detector_has_one() -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(boxes(0, 100), labels(1, 2), boxes(0, 100), np.array([0.9, 0.8]), labels(1, 2))
    result = precision.result()
    assert result.mean == pytest.approx(1)
    assert result.per_class == {"depression": pytest.approx(1), "cyclone": pytest.approx(1), "river": None}


def test_average_precision_by_hand() -> None:
    """Four truths; by score: hit, miss, hit, hit. Precision at recall 1/4, 2/4, 3/4: 1, 2/3, 3/4 -> 3/4 from 1/4 on."""
    precision = AveragePrecision(CLASSES)
    found, scores = boxes(0, 50, 100, 200), np.array([0.9, 0.8, 0.7, 0.6])
    precision.add(boxes(0, 100, 200, 300), labels(2, 2, 2, 2), found, scores, labels(2, 2, 2, 2))
    # 101 recalls 0, 0.01, … 1: 26 of them (to 0.25) see precision 1, the 50 up to 0.75 see 3/4, the rest 0.
    assert precision.result().per_class["cyclone"] == pytest.approx((26 * 1 + 50 * 0.75) / 101)


def test_a_hit_needs_half_the_union() -> None:
    for shift, expected in ((3.3, 1.0), (3.4, 0.0)):  # IoU 6.7 / 13.3 = 0.504 and 6.6 / 13.4 = 0.493
        precision = AveragePrecision(CLASSES)
        precision.add(boxes(0), labels(1), boxes(shift), np.array([0.9]), labels(1))
        assert precision.result().mean == pytest.approx(expected)


def single_precision(*corners: float) -> np.ndarray:
    """One box, in float32, as detectors and data sets have them."""
    return np.array([corners], np.float32)


def test_an_iou_just_below_one_half_in_float32_boxes_is_a_miss() -> None:
    """Widths rounded to float32 would make 0.5 of this IoU of 0.49999996."""
    truth, found = single_precision(3.8048432, 0, 20.0899715, 10), single_precision(3.8048432, 0, 11.9474068, 10)
    precision = AveragePrecision(CLASSES)
    precision.add(truth, labels(1), found, np.array([0.9], np.float32), labels(1))
    assert precision.result().mean == 0


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
        precision = AveragePrecision(CLASSES)
        precision.add(truth, labels(1), found, np.array([0.9], np.float32), labels(1))
        assert precision.result().mean == pytest.approx(float(matches)), (truth, found)
        near.add(matches)
    assert near == {True, False}


def test_a_second_detection_of_the_same_truth_is_a_miss() -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(boxes(0), labels(1), boxes(0, 1), np.array([0.8, 0.9]), labels(1, 1))
    precision.add(boxes(0), labels(1), boxes(0), np.array([0.7]), labels(1))
    # By score: hit (0.9), double (0.8), hit (0.7): precision 1 to recall 1/2, then 2/3.
    assert precision.result().mean == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_the_mean_is_over_the_classes_that_occur() -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(boxes(0, 100), labels(1, 2), boxes(0), np.array([0.9]), labels(1))
    result = precision.result()
    assert result.per_class == {"depression": pytest.approx(1), "cyclone": 0, "river": None}
    assert result.mean == pytest.approx(0.5)


def test_detections_of_a_class_without_truth_do_not_count() -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(boxes(0), labels(1), boxes(0, 0), np.array([0.9, 0.99]), labels(1, 3))
    assert precision.result().mean == pytest.approx(1)


def test_nothing_found_is_zero() -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(boxes(0), labels(1), *NOTHING)
    result = precision.result()
    assert (result.mean, result.per_class["depression"]) == (0, 0)


def test_no_truth_at_all_is_zero_and_no_class_occurs() -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(np.zeros((0, 4)), labels(), boxes(0), np.array([0.9]), labels(1))
    result = precision.result()
    assert result.mean == 0
    assert set(result.per_class.values()) == {None}


def test_only_the_best_hundred_detections_of_a_class_count() -> None:
    for rank, expected in ((100, 1 / 100), (101, 0)):
        precision = AveragePrecision(CLASSES)
        found = np.concatenate([boxes(*range(1000, 1000 + 20 * (rank - 1), 20)), boxes(0)])
        scores = np.linspace(0.9, 0.1, rank)
        precision.add(boxes(0), labels(1), found, scores, np.ones(rank, np.int64))
        assert precision.result().mean == pytest.approx(expected)


def test_the_hundred_are_of_each_class_and_of_each_image() -> None:
    """An image's 101st and 102nd detections count, as they are another class's; so does what the next image has."""
    precision = AveragePrecision(CLASSES)
    found = np.concatenate([boxes(*range(1000, 1000 + 20 * 99, 20)), boxes(0), boxes(500, 200)])
    classes = labels(*[1] * 100, 2, 2)
    precision.add(boxes(0, 200), labels(1, 2), found, np.linspace(0.9, 0.1, 102), classes)
    precision.add(boxes(0), labels(1), boxes(0), np.array([0.05]), labels(1))
    result = precision.result()
    # Of class 1 ranks 100 and 101 hit, of class 2 rank 2.
    assert result.per_class["depression"] == pytest.approx(2 / 101)
    assert result.per_class["cyclone"] == pytest.approx(1 / 2)


def test_images_do_not_mix() -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(boxes(0), labels(1), *NOTHING)
    precision.add(np.zeros((0, 4)), labels(), boxes(0), np.array([0.9]), labels(1))
    assert precision.result().mean == 0


def test_stdout_stays_clean(capsys: pytest.CaptureFixture[str]) -> None:
    precision = AveragePrecision(CLASSES)
    precision.add(boxes(0), labels(1), boxes(0), np.array([0.9]), labels(1))
    precision.result()
    assert capsys.readouterr().out == ""
