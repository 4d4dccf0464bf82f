"""What a batch of images should be found to hold, and the seed of each image's random choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BACKGROUND_LABEL = 0


@dataclass(frozen=True)
class Targets:
    """Truth of a batch.

    Attributes:
        boxes: (N, M, 4) as x1 y1 x2 y2 in pixels.
        labels: (N, M) int64, from 1; BACKGROUND_LABEL in places that hold no box.
        seeds: one for each image: the anchors and proposals that it trains on are drawn with it.
    """

    boxes: Tensor
    labels: Tensor
    seeds: tuple[int, ...]

    def to(self, device: torch.device) -> Targets:
        """The same on `device`."""
        boxes, labels = (tensor.to(device, non_blocking=True) for tensor in (self.boxes, self.labels))
        return Targets(boxes, labels, self.seeds)

    def boxes_of(self, image: int) -> Tensor:
        """The boxes (m, 4) of one image."""
        return self.boxes[image, self.labels[image] != BACKGROUND_LABEL]

    def labels_of(self, image: int) -> Tensor:
        """The labels (m,) of one image."""
        labels = self.labels[image]
        return labels[labels != BACKGROUND_LABEL]

    def generators(self, device: torch.device) -> Iterator[torch.Generator]:
        """A fresh source of random numbers for each image: the same choices after a restart, on any rank."""
        for seed in self.seeds:
            yield torch.Generator(device).manual_seed(seed)
