"""NMS and RoIAlign in plain torch, as fast as we could write them: what one uses where torchvision does not import."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def _overlaps(box: Tensor, area: Tensor, boxes: Tensor, areas: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 1, 4) and (m, 4)."""
    corners = torch.maximum(box[..., :2], boxes[:, :2]), torch.minimum(box[..., 2:], boxes[:, 2:])
    sides = (corners[1] - corners[0]).clamp_(min=0)
    intersection = sides[..., 0] * sides[..., 1]
    return intersection / (area + areas - intersection)


def nms_shrinking(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The best box stays, those that it overlaps go, and so on: one step for each box that stays."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept = []
    while len(order) > 0:
        kept.append(order[0])
        stays = _overlaps(boxes[:1], areas[:1], boxes[1:], areas[1:]) <= iou_threshold
        order, boxes, areas = order[1:][stays], boxes[1:][stays], areas[1:][stays]
    return torch.stack(kept) if kept else order


def nms_matrix(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """All ratios at once, then who stays is found by repetition until nothing changes (at most n times)."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    above = (_overlaps(boxes[:, None], areas[:, None], boxes, areas) > iou_threshold).triu_(1).float()
    stays = torch.ones(len(boxes))
    while True:
        again = (stays @ above == 0).float()
        if again.equal(stays):
            return order[stays.bool()]
        stays = again


def _sample_places(low: Tensor, high: Tensor, bins: int, ratio: int) -> Tensor:
    """(K, bins * ratio) places of the samples on one axis, for rois of at least a pixel."""
    steps = (torch.arange(bins * ratio, dtype=low.dtype) + 0.5) / (bins * ratio)
    return low[:, None] + steps * (high - low).clamp(min=1)[:, None]


def roi_align_grid_sample(features: Tensor, rois: Tensor, size: int, scale: float, ratio: int) -> Tensor:
    """All samples by grid_sample, then means over each bin. For rois of one image, inside it."""
    height, width = features.shape[2:]
    box = rois[:, 1:] * scale
    x = _sample_places(box[:, 0], box[:, 2], size, ratio) * (2 / (width - 1)) - 1
    y = _sample_places(box[:, 1], box[:, 3], size, ratio) * (2 / (height - 1)) - 1
    samples = size * ratio
    grid = torch.stack([x[:, None, :].expand(-1, samples, -1), y[:, :, None].expand(-1, -1, samples)], dim=-1)
    sampled = F.grid_sample(
        features, grid.reshape(1, -1, samples, 2), padding_mode="border", align_corners=True, mode="bilinear"
    )
    pooled = F.avg_pool2d(sampled, ratio)
    return pooled.reshape(features.shape[1], len(rois), size, size).transpose(0, 1).contiguous()


def roi_align_gather(features: Tensor, rois: Tensor, size: int, scale: float, ratio: int) -> Tensor:
    """The four pixels of all samples by indexing, channels last. For rois of one image, inside it."""
    channels, height, width = features.shape[1:]
    box = rois[:, 1:] * scale
    pixels = features[0].permute(1, 2, 0).reshape(height * width, channels)

    def taps(places: Tensor, length: int) -> tuple[Tensor, Tensor]:
        low = places.long().clamp(max=length - 2)
        weight = places - low
        return torch.stack([low, low + 1], dim=-1).flatten(1), torch.stack([1 - weight, weight], dim=-1).flatten(1)

    columns, column_weights = taps(_sample_places(box[:, 0], box[:, 2], size, ratio), width)
    rows, row_weights = taps(_sample_places(box[:, 1], box[:, 3], size, ratio), height)
    index = rows[:, :, None] * width + columns[:, None, :]
    weights = row_weights[:, :, None] * column_weights[:, None, :] / ratio**2
    weighted = pixels[index.flatten()].reshape(*index.shape, channels) * weights[..., None]
    step = 2 * ratio
    return weighted.reshape(len(rois), size, step, size, step, channels).sum((2, 4)).permute(0, 3, 1, 2).contiguous()
