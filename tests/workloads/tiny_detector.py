"""A detector of a few thousand weights, through the code of the real one."""

from __future__ import annotations

from typing import Any

import torch

from hpcai500.layers import ExtremeWeather
from hpcai500.recipe import load_recipe
from hpcai500.workloads.ewa import build_model
from hpcai500.workloads.models.detector import FasterRCNN, Targets

TINY: dict[str, Any] = {
    "block": "basic",
    "depths": (1, 1),
    "width": 8,
    "pyramid_channels": 8,
    "head_width": 16,
    "channels": ("PSL", "TMQ"),
    "anchors": (((8.0, 8.0), (12.0, 12.0)), ((16.0, 16.0), (16.0, 24.0)), ((24.0, 24.0), (32.0, 32.0))),
    "canonical_side": 32.0,
    "proposals_before_nms": (50, 50),
    "proposals_after_nms": (20, 20),
    "proposal_samples": 32,
    "detection_samples": 16,
}


def tiny_options(**changes: Any) -> ExtremeWeather:
    """Options of the tiny detector."""
    options = load_recipe("ewa/reference").workload.model_dump()
    return ExtremeWeather(**{**options, **TINY, **changes})


def tiny_detector(seed: int = 0, **changes: Any) -> FasterRCNN:
    """The tiny detector, with weights of `seed`."""
    torch.manual_seed(seed)
    return build_model(tiny_options(**changes))


def bright_squares(count: int, seed: int = 0) -> tuple[torch.Tensor, Targets]:
    """Images (count, 2, 48, 64) of noise with one bright square each, and where it is."""
    random = torch.Generator().manual_seed(seed)
    images = 0.2 * torch.randn(count, 2, 48, 64, generator=random)
    boxes = torch.zeros(count, 1, 4)
    for image in range(count):
        y, x = torch.randint(0, 32, (2,), generator=random).tolist()
        images[image, :, y : y + 14, x : x + 14] += 2
        boxes[image, 0] = torch.tensor([x, y, x + 14, y + 14])
    return images, Targets(boxes, torch.ones(count, 1, dtype=torch.int64), torch.arange(count))
