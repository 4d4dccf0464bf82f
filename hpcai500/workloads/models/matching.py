"""Which truth each anchor or proposal answers for, and which of them a step trains on (Ren et al. 2015).

All images of a batch at once, in tensors whose shapes do not depend on what the images hold: what is not there is told
by a mask. So a GPU is never asked how much of something it found.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcai500.workloads.models.boxes import iou

BACKGROUND = -1
IGNORED = -2


def match(
    truth: Tensor,
    present: Tensor,
    candidates: Tensor,
    *,
    foreground: float,
    background: float,
    every_truth: bool = False,
) -> Tensor:
    """For each candidate of each image the place of the truth that it overlaps most: (N, A) int64.

    BACKGROUND where that overlap (IoU) is below `background`, IGNORED between that and `foreground`. With
    `every_truth`, the best candidates of each truth stand for it however small the overlap is.

    Args:
        truth: boxes (N, M, 4).
        present: (N, M), where `truth` holds a box.
        candidates: boxes (N, A, 4), or (A, 4) for every image.
    """
    if truth.shape[1] == 0:
        return torch.full((truth.shape[0], candidates.shape[-2]), BACKGROUND, device=candidates.device)
    # Below every overlap there is: a place without a box is nobody's best.
    overlaps = iou(truth, candidates).masked_fill(~present[:, :, None], -1)
    best, index = overlaps.max(dim=1)
    matches = index.masked_fill(best < foreground, IGNORED).masked_fill(best < background, BACKGROUND)
    if every_truth and overlaps.shape[2] > 0:
        best_of_truth = overlaps.amax(dim=2, keepdim=True)
        is_best = ((overlaps == best_of_truth) & (best_of_truth > 0)).any(dim=1)
        matches = torch.where(is_best, index, matches)
    return matches


@dataclass(frozen=True)
class Sample:
    """What a step trains on: of each image as many places, positives first, then background, then unused ones.

    Attributes:
        places: (N, S) int64, the candidates that were drawn; any in unused places.
        positive: (N, S), where a positive one was drawn.
        used: (N, S), where any was drawn.
        most_positives: behind so many places none is positive.
    """

    places: Tensor
    positive: Tensor
    used: Tensor
    most_positives: int

    def count(self) -> Tensor:
        """How many were drawn in the batch, at least 1 so that it can be divided by: a float32 scalar on the device."""
        return self.used.sum(dtype=torch.float32).clamp(min=1)


def sample(matches: Tensor, keys: Tensor, size: int, positive_fraction: float) -> Sample:
    """Draw at most `size` candidates of each image, at most that fraction of them positive, the rest background.

    Args:
        matches: (N, A), what `match` gave.
        keys: (N, A), uniform random numbers from 0 on: the candidates with the largest are drawn.
        size: S, less where there are fewer candidates.
        positive_fraction: of `size`, rounded down.
    """
    candidates = matches.shape[1]
    places, most_positives = min(size, candidates), min(int(size * positive_fraction), candidates)
    positives, count = _draw(matches >= 0, keys, most_positives)
    negatives, available = _draw(matches == BACKGROUND, keys, places)
    place = torch.arange(places, device=matches.device)[None]
    positive = place < count
    taken = torch.where(positive, place, most_positives + place - count)
    drawn = torch.cat([positives, negatives], dim=1).gather(1, taken)
    return Sample(drawn, positive, place < count + available, most_positives)


def _draw(eligible: Tensor, keys: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The eligible candidates with the largest keys, best first (N, most), and how many these are (N, 1)."""
    best = keys.masked_fill(~eligible, -1).topk(most, dim=1)
    return best.indices, (best.values >= 0).sum(dim=1, keepdim=True)
