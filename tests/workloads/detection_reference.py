"""What csrc/core/detection computes, again: readable, slow, from the definitions, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of two boxes x1 y1 x2 y2."""
    width = (torch.minimum(first[2], second[2]) - torch.maximum(first[0], second[0])).clamp(min=0)
    height = (torch.minimum(first[3], second[3]) - torch.maximum(first[1], second[1])).clamp(min=0)
    overlap = width * height
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return overlap / (areas[0] + areas[1] - overlap)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, groups: Tensor | None = None) -> Tensor:
    """Each box in falling order of score stays unless one that stays overlaps it by more than the threshold."""
    kept: list[int] = []
    for index in torch.sort(scores, descending=True, stable=True).indices.tolist():
        rivals = [k for k in kept if groups is None or groups[k] == groups[index]]
        # Python compares the float32 ratio with the threshold in float64, as torchvision does.
        if not any(iou(boxes[k], boxes[index]).item() > iou_threshold for k in rivals):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


def _samples(low: float, high: float, bins: int, ratio: int, aligned: bool, real: type) -> list[list[float]]:
    """Places of the samples of each bin on one axis, in the arithmetic of the type `real`."""
    offset = real(0.5) if aligned else real(0)
    start, end = real(low) - offset, real(high) - offset
    length = end - start if aligned else max(end - start, real(1))
    size = length / real(bins)
    grid = ratio if ratio > 0 else max(math.ceil(size), 0)
    return [
        [float(start + real(b) * size + (real(i) + real(0.5)) * size / real(grid)) for i in range(grid)]
        for b in range(bins)
    ]


def _taps(place: float, size: int) -> Iterator[tuple[int, float]]:
    """Pixels that a sample lies between, and their weights; none where it is more than a pixel outside."""
    if not -1 <= place <= size:
        return
    place = min(max(place, 0.0), float(size - 1))
    low = min(int(place), size - 1)
    yield low, 1 - (place - low)
    if low + 1 < size:
        yield low + 1, place - low


def _bin_mean(plane: Tensor, rows: list[float], columns: list[float]) -> Tensor:
    """Mean over the grid of samples of one bin: (C, H, W) -> (C,)."""
    total = plane[:, 0, 0] * 0
    for y in rows:
        for x in columns:
            for row, row_weight in _taps(y, plane.shape[1]):
                for column, column_weight in _taps(x, plane.shape[2]):
                    total = total + plane[:, row, column] * (row_weight * column_weight)
    return total / max(len(rows) * len(columns), 1)


def roi_align(
    features: Tensor,
    rois: Tensor,
    output_size: tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """RoIAlign by its definition, differentiable; half precision is computed in float32."""
    real = np.float64 if features.dtype == torch.float64 else np.float32
    wide = features if features.dtype == torch.float64 else features.float()
    height, width = output_size
    pooled = []
    for image, *box in rois.to(torch.float64 if real is np.float64 else torch.float32).tolist():
        x1, y1, x2, y2 = (real(value) * real(spatial_scale) for value in box)
        rows = _samples(y1, y2, height, sampling_ratio, aligned, real)
        columns = _samples(x1, x2, width, sampling_ratio, aligned, real)
        bins = [[_bin_mean(wide[int(image)], rows[i], columns[j]) for j in range(width)] for i in range(height)]
        pooled.append(torch.stack([torch.stack(row, dim=-1) for row in bins], dim=-2))
    if not pooled:
        return features.new_zeros((0, features.shape[1], height, width))
    return torch.stack(pooled).to(features.dtype)
