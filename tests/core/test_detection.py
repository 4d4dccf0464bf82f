"""Detections in the core: rois and boxes of any bits, and the same bits on every processor."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from builders.instruction_sets import on_each
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcai500 import _core

# --- Any bits: the documented result or an error, within bounds, and in a forked child too.


FARTHEST = 2.0**24
anything = st.one_of(
    st.floats(width=32),
    st.floats(-20, 40, width=32),
    st.sampled_from([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e9, 1e6, -FARTHEST, FARTHEST, 1e-45, -0.0]),
)


def pool(
    features: NDArray[np.float32], rois: NDArray[np.float32], ratio: int, aligned: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Pooled rois and the gradient of their sum."""
    pooled = np.full((len(rois), features.shape[1], 3, 2), -77, np.float32)
    gradient = np.full(features.shape, -77, np.float32)
    sampling = {"spatial_scale": 0.5, "sampling_ratio": ratio, "aligned": aligned, "threads": 2}
    _core.roi_align(features, rois, pooled, **sampling)
    _core.roi_align_backward(np.ones_like(pooled), rois, gradient, **sampling)
    return pooled, gradient


@settings(max_examples=200)
@given(st.lists(st.tuples(*[anything] * 4), max_size=4), st.sampled_from([0, 1, 2, 1024]), st.booleans())
def test_any_coordinates_give_a_mean_or_nan(
    boxes: list[tuple[float, float, float, float]], ratio: int, aligned: bool
) -> None:
    features = np.ones((1, 3, 7, 9), np.float32)
    rois = np.array([(0, *box) for box in boxes], np.float32).reshape(-1, 5)
    pooled, gradient = pool(features, rois, ratio, aligned)
    places = rois[:, 1:] * np.float32(0.5) - np.float32(0.5 if aligned else 0)
    sampled = (np.abs(places) <= FARTHEST).all(axis=1)
    assert np.isnan(pooled[~sampled]).all()
    # A mean of ones and, outside, zeros.
    assert ((pooled[sampled] >= 0) & (pooled[sampled] <= 1.001)).all()
    assert gradient.sum() == pytest.approx(pooled[sampled].sum(), rel=1e-3, abs=1e-3)
    assert (gradient >= 0).all()


def test_a_roi_of_millions_of_pixels_costs_what_its_image_costs() -> None:
    # ceil(bin size) is 5 million samples an axis here, and the image holds 63 pixels.
    features = np.arange(63, dtype=np.float32).reshape(1, 1, 7, 9)
    far = np.float32(FARTHEST)
    rois = np.array([[0, -far, -far, far, far], [0, far, far, -far, -far]], np.float32)
    pooled, gradient = pool(features, rois, 0, aligned=True)
    assert pooled[0].sum() == pytest.approx(features.sum() / (2 * far * 0.5 / 3) / (2 * far * 0.5 / 2), rel=0.5)
    assert not pooled[1].any()
    assert gradient.sum() > 0


def test_a_callers_flushed_subnormals_are_its_own() -> None:
    features = np.full((1, 3, 7, 9), 3e-39, np.float32)
    rois = np.array([[0, 1, 1, 9, 9], [0, 2, 0, 9, 3]], np.float32)
    expected = pool(features, rois, 0, aligned=True)
    assert torch.set_flush_denormal(True)
    try:
        found = pool(features, rois, 0, aligned=True)
    finally:
        torch.set_flush_denormal(False)
    assert expected[0].all()
    assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]


@pytest.mark.parametrize("image", [-1.0, 1.0, 1e30, np.nan, np.inf, -0.5])
def test_a_roi_of_no_image_is_named(image: float) -> None:
    rois = np.array([[0, 1, 1, 3, 3], [image, 1, 1, 3, 3]], np.float32)
    with pytest.raises(ValueError, match=r"rois\[1\] is of image .*, but the features are of 1 images, counted from 0"):
        pool(np.ones((1, 3, 7, 9), np.float32), rois, 2, aligned=True)


@given(st.lists(st.tuples(anything, anything, anything, anything, anything), max_size=80), st.floats(0, 1))
def test_any_boxes_and_scores_give_each_index_at_most_once_in_falling_order(
    rows: list[tuple[float, ...]], threshold: float
) -> None:
    table = np.array(rows, np.float32).reshape(-1, 5)
    boxes, scores = table[:, :4].copy(), table[:, 4].copy()
    kept = _core.nms(boxes, scores, None, iou_threshold=threshold, threads=2)
    assert len(set(kept.tolist())) == len(kept)
    ranks = np.where(np.isnan(scores), np.inf, scores)[kept]
    assert (ranks[:-1] >= ranks[1:]).all()
    # What cannot be compared stays.
    assert set(np.flatnonzero(~np.isfinite(boxes).all(axis=1))) <= set(kept.tolist())


def test_memory_that_does_not_fit_is_refused() -> None:
    features, rois = np.ones((1, 3, 7, 9), np.float32), np.zeros((1, 5), np.float32)
    sampling = {"spatial_scale": 1.0, "sampling_ratio": 2, "aligned": False, "threads": 1}
    pooled = np.zeros((1, 3, 2, 2), np.float32)
    read_only = pooled.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(bytes(4 * 5 + 1), np.uint8)[1:].view(np.float32).reshape(1, 5)
    for features_, rois_, out, message in (
        (features[:, :, ::2], rois, pooled, "features must be contiguous with channels first or last"),
        (features.astype(">f4"), rois, pooled, "features must be float32"),
        (features, rois.astype(np.float64), pooled, r"rois must have shape \(k, 5\) and type f4, got \(1, 5\) and f8"),
        (features, np.empty((1, 5), "V0"), pooled, r"type f4, got \(1, 5\) and V0"),
        (features, unaligned, pooled, "rois must be aligned to its items"),
        (features, rois, np.zeros((2, 3, 2, 2), np.float32), r"out must have shape \(1, 3, pooled_height"),
        (features, rois, pooled[..., ::-1], "out must be C-contiguous"),
        (features, rois, read_only, "out must be writable"),
    ):
        with pytest.raises(ValueError, match=message):
            _core.roi_align(features_, rois_, out, **sampling)


def test_it_works_in_a_forked_child() -> None:
    boxes = np.random.default_rng(0).random((9000, 4), np.float32)
    boxes[:, 2:] += boxes[:, :2]
    scores = np.arange(9000, dtype=np.float32)
    expected = _core.nms(boxes, scores, None, iou_threshold=0.9, threads=4)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kept = _core.nms(boxes, scores, None, iou_threshold=0.9, threads=4)
            code = 0 if np.array_equal(kept, expected) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# --- Each instruction set does the same operations in order.


SCRIPT = """
import hashlib
import numpy as np

random = np.random.default_rng(3)
digest = hashlib.sha256()
boxes = random.random((3000, 4), np.float32) * 50
boxes[:, 2:] = boxes[:, :2] + 8
for real in (np.float32, np.float64):
    scores = random.random(3000).astype(real)
    digest.update(_core.nms(boxes.astype(real), scores, None, iou_threshold=0.5, threads=2).tobytes())
rois = np.concatenate([random.integers(0, 2, (40, 1)), random.random((40, 4)) * 60 - 15], axis=1)
for item in ("f4", "f2", "u2", "f8"):
    sampling = {"spatial_scale": 0.5, "sampling_ratio": 0, "aligned": True, "threads": 2}
    numbers = random.standard_normal((2, 83, 17, 19))
    features = (numbers.astype("f4").view("u4") >> 16).astype("u2") if item == "u2" else numbers.astype(item)
    last = features.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    places = rois.astype("f8" if item == "f8" else "f4")
    for layout in (features, last):
        pooled = np.empty((40, 83, 3, 5), item)
        gradient = np.empty_like(layout)
        _core.roi_align(layout, places, pooled, **sampling)
        _core.roi_align_backward(pooled, places, gradient, **sampling)
        digest.update(pooled.tobytes() + gradient.tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    assert len(set(on_each(SCRIPT).values())) == 1
