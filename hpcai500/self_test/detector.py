"""Non-maximum suppression and RoIAlign against their definitions in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcai500 import _core
from hpcai500.self_test.checking import require_close, require_equal

# Sums of some hundred products of features of order 1, in float32 by us and in float64 here.
_FLOAT32_TOLERANCE = 2e-5
_FLOAT64_TOLERANCE = 1e-12
# Exact in every type, as are the overlaps of whole boxes that are equal to them: rounding cannot decide who stays.
_THRESHOLDS = (0.0, 0.25, 0.5)
_BINS, _SCALE = (3, 5), 0.5


def check_nms() -> str:
    """The boxes that stay are those of the definition, also with ties, groups, and boxes without area."""
    random = np.random.default_rng(4)
    corners = random.integers(0, 40, (300, 2))
    boxes = np.concatenate([corners, corners + random.integers(0, 14, (300, 2))], axis=1)
    groups = random.integers(-1, 2, 300)
    for real in (np.float32, np.float64):
        scores = random.integers(0, 90, 300).astype(real)
        for threshold in _THRESHOLDS:
            for grouped in (None, groups):
                kept = _core.nms(boxes.astype(real), scores, grouped, iou_threshold=threshold, threads=2)
                require_equal(f"boxes kept above {threshold}", kept, _stay(boxes, scores, grouped, threshold))
    return "300 boxes, with and without groups, 3 thresholds; the same stay, in the same order"


def check_roi_align() -> str:
    """Bins and gradients, of both layouts and of every type, inside, across and outside the edges."""
    random = np.random.default_rng(6)
    exact = random.standard_normal((2, 19, 9, 11))
    corners = random.uniform(-6, 20, (14, 2))
    rois = np.column_stack([random.integers(0, 2, 14), corners, corners + random.uniform(0, 12, (14, 2))])
    rois = rois.astype(np.float32).astype(np.float64)
    for ratio, aligned in ((2, False), (0, True)):
        for real, tolerance in ((np.float64, _FLOAT64_TOLERANCE), (np.float32, _FLOAT32_TOLERANCE)):
            _check_pooling(exact, rois, real, {"sampling_ratio": ratio, "aligned": aligned}, tolerance)
        _check_half(exact, rois, {"sampling_ratio": ratio, "aligned": aligned})
    return (
        "14 rois on 2 x 19 x 9 x 11, both layouts, with gradients: float64 to 1e-12, float32 to 2e-5, float16 to 1e-2"
    )


def _check_pooling(exact: NDArray[Any], rois: NDArray[Any], real: Any, sampling: dict[str, Any], limit: float) -> None:
    pooled = _pooled(exact, rois, **sampling)
    slopes = np.random.default_rng(7).standard_normal(pooled.shape)
    gradient = _spread(slopes, exact.shape, rois, **sampling)
    features = exact.astype(real)
    for layout in (features, _channels_last(features)):
        out, back = np.full(pooled.shape, 77, real), np.full_like(layout, 77)
        call = {**sampling, "spatial_scale": _SCALE, "threads": 2}
        _core.roi_align(layout, rois.astype(real), out, **call)
        require_close(f"pooled rois, {real.__name__}", out, pooled, limit)
        _core.roi_align_backward(slopes.astype(real), rois.astype(real), back, **call)
        require_close(f"gradient of rois, {real.__name__}", back, gradient, limit)


def _check_half(exact: NDArray[Any], rois: NDArray[Any], sampling: dict[str, Any]) -> None:
    half = exact.astype(np.float16)
    out = np.full((len(rois), exact.shape[1], *_BINS), 77, np.float16)
    _core.roi_align(half, rois.astype(np.float32), out, **sampling, spatial_scale=_SCALE, threads=2)
    # Values up to 4 have steps of 2**-9 below 4, and one rounding.
    require_close("pooled rois, float16", out, _pooled(half.astype(np.float64), rois, **sampling), 1e-2)


def _stay(boxes: NDArray[Any], scores: NDArray[Any], groups: NDArray[Any] | None, threshold: float) -> NDArray[Any]:
    """In falling order of score, a box stays unless one that stays overlaps it by more than the threshold."""
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable"):
        rivals = [k for k in kept if groups is None or groups[k] == groups[index]]
        if not any(_overlap(boxes[k], boxes[index]) > threshold for k in rivals):
            kept.append(int(index))
    return np.array(kept, np.int64)


def _overlap(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Intersection over union; 0 where there is no union."""
    width, height = (max(0, min(one[2 + a], other[2 + a]) - max(one[a], other[a])) for a in (0, 1))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    union = sum(areas) - width * height
    return float(width * height / union) if union else 0.0


def _pooled(features: NDArray[Any], rois: NDArray[Any], **sampling: Any) -> NDArray[Any]:
    """Each bin is the mean of bilinear samples: rows x image x columns, as two matrix products."""
    weights = [_weights(roi, features.shape[2:], **sampling) for roi in rois]
    return np.stack(
        [rows @ features[int(roi[0])] @ columns.T for roi, (rows, columns) in zip(rois, weights, strict=True)]
    )


def _spread(slopes: NDArray[Any], shape: tuple[int, ...], rois: NDArray[Any], **sampling: Any) -> NDArray[Any]:
    """The gradient: the same two products, transposed."""
    gradient = np.zeros(shape)
    for roi, slope in zip(rois, slopes, strict=True):
        rows, columns = _weights(roi, shape[2:], **sampling)
        gradient[int(roi[0])] += rows.T @ slope @ columns
    return gradient


def _weights(roi: NDArray[Any], size: tuple[int, ...], **sampling: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """(bins, pixels) on each axis: how much of each pixel a bin is."""
    _, x1, y1, x2, y2 = roi
    return _axis(y1, y2, _BINS[0], size[0], **sampling), _axis(x1, x2, _BINS[1], size[1], **sampling)


def _axis(low: float, high: float, bins: int, pixels: int, sampling_ratio: int, aligned: bool) -> NDArray[Any]:
    shift = 0.5 if aligned else 0.0
    start, length = low * _SCALE - shift, (high - low) * _SCALE
    length = length if aligned else max(length, 1.0)
    grid = sampling_ratio or max(math.ceil(length / bins), 1)
    table = np.zeros((bins, pixels))
    for b in range(bins):
        for i in range(grid):
            place = start + (b + (i + 0.5) / grid) * length / bins
            if -1 <= place <= pixels:
                place = min(max(place, 0.0), pixels - 1.0)
                first = min(int(place), pixels - 1)
                table[b, first] += (1 - (place - first)) / grid
                table[b, min(first + 1, pixels - 1)] += (place - first) / grid
    return table


def _channels_last(features: NDArray[Any]) -> NDArray[Any]:
    return features.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
