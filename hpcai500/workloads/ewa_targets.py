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


def padded_targets(truths: Sequence[Truth], seeds: Sequence[int], places: int) -> Targets:
    """Truths of a batch, `places` for each image, which no image has more boxes than; those without one have label 0.

    All batches of a run have as many: a compiler makes code for the shapes that it has seen.
    """
    boxes, labels = torch.zeros(len(truths), places, 4), torch.zeros(len(truths), places, dtype=torch.int64)
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
