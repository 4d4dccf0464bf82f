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
    """Intersection over union of each box of `left` (N, 4) with each of `right` (M, 4): (N, M); 0 for empty boxes."""
    top_left = torch.maximum(left[:, None, :2], right[None, :, :2])
    bottom_right = torch.minimum(left[:, None, 2:], right[None, :, 2:])
    common = (bottom_right - top_left).clamp(min=0).prod(dim=2)
    union = area(left)[:, None] + area(right)[None, :] - common
    return torch.where(union > 0, common / union, torch.zeros_like(union))


def clip(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes (…, 4) cut off at the border of an image."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack([x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)], dim=-1)


def at_least(boxes: Tensor, side: float) -> Tensor:
    """(N, 4) -> (N,) bool: boxes whose sides are both `side` pixels or more."""
    return (boxes[:, 2] - boxes[:, 0] >= side) & (boxes[:, 3] - boxes[:, 1] >= side)


def encode(boxes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """What turns `references` (N, 4) into `boxes` (N, 4): (dx, dy, dw, dh) of Girshick et al. 2014, times `weights`."""
    size, reference_size = boxes[:, 2:] - boxes[:, :2], references[:, 2:] - references[:, :2]
    centre, reference_centre = boxes[:, :2] + 0.5 * size, references[:, :2] + 0.5 * reference_size
    shift = (centre - reference_centre) / reference_size
    return torch.cat([shift * weights[0], torch.log(size / reference_size) * weights[1]], dim=1)


def decode(codes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """The inverse of `encode`: codes (N, …, 4) of references (N, 4) -> boxes (N, …, 4), in float32 or better."""
    codes = codes.to(references.dtype)
    shift, log_scale = codes[..., :2] / weights[0], codes[..., 2:] / weights[1]
    references = references.reshape(-1, *[1] * (codes.ndim - 2), 4)
    reference_size = references[..., 2:] - references[..., :2]
    centre = references[..., :2] + 0.5 * reference_size + shift * reference_size
    size = reference_size * torch.exp(log_scale.clamp(max=_LARGEST_LOG_SCALE))
    return torch.cat([centre - 0.5 * size, centre + 0.5 * size], dim=-1)
