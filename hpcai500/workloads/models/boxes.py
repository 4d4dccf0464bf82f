"""Boxes (…, 4) as x1 y1 x2 y2 in pixels: overlap, clipping, and the coding of one box relative to another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A box may not grow more than 62.5-fold over its anchor: exp would overflow early in training (Ren et al.'s own code).
_LARGEST_LOG_SCALE = math.log(1000 / 16)

# (dx, dy) and (dw, dh) are multiplied by these: the second stage's targets are small numbers otherwise (Girshick 2015).
# Not tensors: each use on a GPU would copy them there.
PROPOSAL_WEIGHTS = (1.0, 1.0)
DETECTION_WEIGHTS = (10.0, 5.0)

Weights = tuple[float, float]


def area(boxes: Tensor) -> Tensor:
    """(…, 4) -> (…): width x height."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def iou(left: Tensor, right: Tensor) -> Tensor:
    """Intersection over union of each box of `left` (…, N, 4) with each of `right` (…, M, 4): (…, N, M).

    0 for empty boxes. The leading axes (images) are broadcast.
    """
    x1, y1, x2, y2 = left[..., :, None, :].unbind(-1)
    other_x1, other_y1, other_x2, other_y2 = right[..., None, :, :].unbind(-1)
    width = (torch.minimum(x2, other_x2) - torch.maximum(x1, other_x1)).clamp(min=0)
    height = (torch.minimum(y2, other_y2) - torch.maximum(y1, other_y1)).clamp(min=0)
    common = width * height
    union = area(left)[..., :, None] + area(right)[..., None, :] - common
    return (common / union).masked_fill(~(union > 0), 0)


def clip(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes (…, 4) cut off at the border of an image."""
    x, y = boxes.unflatten(-1, (2, 2)).unbind(-1)
    return torch.stack([x.clamp(0, width), y.clamp(0, height)], dim=-1).flatten(-2)


def at_least(boxes: Tensor, side: float) -> Tensor:
    """(…, 4) -> (…) bool: boxes whose sides are both `side` pixels or more."""
    return (boxes[..., 2:] - boxes[..., :2] >= side).all(dim=-1)


def encode(boxes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """What turns `references` (…, 4) into `boxes` (…, 4): (dx, dy, dw, dh) of Girshick et al. 2014, times `weights`."""
    size, reference_size = boxes[..., 2:] - boxes[..., :2], references[..., 2:] - references[..., :2]
    centre, reference_centre = boxes[..., :2] + 0.5 * size, references[..., :2] + 0.5 * reference_size
    shift = (centre - reference_centre) / reference_size
    return torch.cat([shift * weights[0], torch.log(size / reference_size) * weights[1]], dim=-1)


def decode(codes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """The inverse of `encode`: codes (N, …, 4) of references (N, 4) -> boxes (N, …, 4), in float32 or better.

    Both may have more axes in front, which are the same.
    """
    codes = codes.to(references.dtype)
    shift, log_scale = codes[..., :2] / weights[0], codes[..., 2:] / weights[1]
    references = references.reshape(*references.shape[:-1], *[1] * (codes.ndim - references.ndim), 4)
    reference_size = references[..., 2:] - references[..., :2]
    centre = references[..., :2] + 0.5 * reference_size + shift * reference_size
    size = reference_size * torch.exp(log_scale.clamp(max=_LARGEST_LOG_SCALE))
    return torch.cat([centre - 0.5 * size, centre + 0.5 * size], dim=-1)


def take(values: Tensor, places: Tensor) -> Tensor:
    """Rows of boxes or codes: values (N, n, 4) and, of each image, places (N, k) in them -> (N, k, 4)."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))
