"""From the boxes of climate images to what the detector is trained against, and back from what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hpcai500.data.climate.truth import Truth
from hpcai500.workloads.models.roi_heads import Detections
from hpcai500.workloads.models.targets import Targets
from hpcai500.workloads.voting.detections import Image, Seen


def seed_of(seed: int, epoch: int, sample: int) -> int:
    """The seed of one image's random choices in one epoch."""
    return int(np.random.SeedSequence([seed, epoch, sample]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def padded_targets(truths: Sequence[Truth], seeds: Sequence[int]) -> Targets:
    """Truths of a batch as tensors of one size: places without a box have label 0."""
    most = max(1, *(len(truth.labels) for truth in truths))
    boxes, labels = torch.zeros(len(truths), most, 4), torch.zeros(len(truths), most, dtype=torch.int64)
    for image, truth in enumerate(truths):
        count = len(truth.labels)
        boxes[image, :count], labels[image, :count] = torch.from_numpy(truth.boxes), torch.from_numpy(truth.labels)
    return Targets(boxes, labels, torch.tensor(seeds, dtype=torch.int64))


def as_arrays(found: Detections) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Boxes (D, 4), scores (D,) and labels (D,) for NumPy."""
    boxes, scores, labels = (tensor.float().numpy() for tensor in (found.boxes, found.scores, found.labels))
    return boxes, scores, labels.astype(np.int64)


def as_image(sample: int, truth: Truth, found: tuple[npt.NDArray[Any], ...]) -> Image:
    """An image with its truth and what `as_arrays` gave of it, for a file of predictions."""
    return Image(sample, Seen(truth.boxes, np.empty(0), truth.labels), Seen(*found))
