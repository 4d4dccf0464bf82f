"""Anchors fitted to boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.climate.boxes import balanced, fit_anchors
from hpcai500.errors import DataError


def clusters(*centres: tuple[float, float], count: int = 200, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.concatenate([np.array(centre) * random.uniform(0.9, 1.1, (count, 2)) for centre in centres])


def test_shapes_that_occur_are_found_and_dealt_by_size() -> None:
    fit = fit_anchors(clusters((100, 40), (10, 12), (30, 30), (200, 300)), levels=2, per_level=2)
    assert fit.boxes == 800
    assert fit.mean_iou > 0.88
    flat = [shape for level in fit.anchors for shape in level]
    for (height, width), wanted in zip(flat, [(10, 12), (30, 30), (100, 40), (200, 300)], strict=True):
        assert (height, width) == pytest.approx(wanted, rel=0.06)


def test_the_fit_is_the_same_every_time() -> None:
    shapes = clusters((10, 20), (50, 50), (20, 90))
    assert fit_anchors(shapes, 2, 3) == fit_anchors(shapes, 2, 3)


def test_more_anchors_fit_better() -> None:
    shapes = np.random.default_rng(1).uniform(8, 200, (500, 2))
    fits = [fit_anchors(shapes, levels, 2).mean_iou for levels in (1, 2, 4, 8)]
    assert fits == sorted(fits)


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    shapes, labels = np.repeat([[10.0, 10], [90, 40]], [90, 30], axis=0), np.repeat([1, 4], [90, 30])
    assert np.unique(balanced(shapes, labels), axis=0, return_counts=True)[1].tolist() == [90, 90]


def test_too_few_shapes_are_refused() -> None:
    with pytest.raises(DataError, match="cannot fit 6 anchors to 2 different box shapes: take more years"):
        fit_anchors(np.array([[10.0, 10], [20, 20], [10, 10]]), 2, 3)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=6, max_size=40, unique=True))
def test_anchors_are_whole_pixels_inside_the_range_of_the_boxes(shapes: list[tuple[int, int]]) -> None:
    fit = fit_anchors(np.array(shapes, float), 2, 2)
    flat = np.array([shape for level in fit.anchors for shape in level])
    assert (flat == flat.round()).all()
    assert (flat >= np.array(shapes).min(axis=0)).all()
    assert (flat <= np.array(shapes).max(axis=0)).all()
    areas = flat.prod(axis=1)
    assert (np.diff(areas) >= 0).all()
