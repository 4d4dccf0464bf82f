"""What a batch of images should be found to hold, and the seed of each image's random choices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcai500.workloads.models.draws import uniform

BACKGROUND_LABEL = 0


@dataclass(frozen=True)
class Targets:
    """Truth of a batch.

    Attributes:
        boxes: (N, M, 4) as x1 y1 x2 y2 in pixels.
        labels: (N, M) int64, from 1; BACKGROUND_LABEL in places that hold no box.
        seeds: (N,) int64, always on the host: the anchors and proposals that an image trains on are drawn with its.
    """

    boxes: Tensor
    labels: Tensor
    seeds: Tensor

    def to(self, device: torch.device) -> Targets:
        """The same on `device`, which is not waited for; the seeds stay."""
        boxes, labels = (_sent(tensor, device) for tensor in (self.boxes, self.labels))
        return Targets(boxes, labels, self.seeds)

    @property
    def present(self) -> Tensor:
        """(N, M), where there is a box."""
        return self.labels != BACKGROUND_LABEL

    def boxes_of(self, image: int) -> Tensor:
        """The boxes (m, 4) of one image. On a GPU this waits for it."""
        return self.boxes[image, self.labels[image] != BACKGROUND_LABEL]

    def labels_of(self, image: int) -> Tensor:
        """The labels (m,) of one image. On a GPU this waits for it."""
        labels = self.labels[image]
        return labels[labels != BACKGROUND_LABEL]

    def keys(self, count: int) -> Tensor:
        """(N, count) uniform random numbers in [0, 1) on the boxes' device: an image's follow from its seed alone.

        The same choices after a restart, on any rank and beside any other image.
        """
        return uniform(self.seeds, count, self.boxes.device)


def blank_targets(images: int, places: int, height: int, width: int) -> Targets:
    """One box in each image of `height` x `width`, and `places` for such: in memory as real targets are."""
    boxes, labels = torch.zeros(images, places, 4), torch.zeros(images, places, dtype=torch.int64)
    boxes[:, 0], labels[:, 0] = torch.tensor([width / 4, height / 4, width / 2, height / 2]), 1
    return Targets(boxes, labels, torch.zeros(images, dtype=torch.int64))


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    # A copy from memory that is not pinned would wait for all that the GPU was given before.
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
