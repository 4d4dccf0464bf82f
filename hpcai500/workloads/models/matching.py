"""Which truth each anchor or proposal answers for, and which of them a step trains on (Ren et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcai500.workloads.models.boxes import iou

BACKGROUND = -1
IGNORED = -2


def match(
    truth: Tensor, candidates: Tensor, *, foreground: float, background: float, every_truth: bool = False
) -> Tensor:
    """For each candidate (N, 4) the index of the truth (M, 4) that it overlaps most: (N,) int64.

    BACKGROUND where that overlap (IoU) is below `background`, IGNORED between that and `foreground`. With
    `every_truth`, the best candidates of each truth stand for it however small the overlap is.
    """
    if len(truth) == 0:
        return torch.full((len(candidates),), BACKGROUND, device=candidates.device)
    overlaps = iou(truth, candidates)
    best, index = overlaps.max(dim=0)
    matches = torch.where(best >= foreground, index, IGNORED)
    matches = torch.where(best < background, BACKGROUND, matches)
    if every_truth:
        best_of_truth = overlaps.max(dim=1, keepdim=True).values
        is_best = ((overlaps == best_of_truth) & (best_of_truth > 0)).any(dim=0)
        matches = torch.where(is_best, index, matches)
    return matches


def sample(matches: Tensor, size: int, positive_fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw at most `size` candidates to train on, at most that fraction of them positive, the rest background.

    `matches` (N,) is what `match` gave. Returns the indices of the positives and of the negatives; the draw is that of
    `generator`, on whose device `matches` must be.
    """
    keys = torch.rand(len(matches), generator=generator, device=matches.device)
    positives = _draw(matches >= 0, keys, int(size * positive_fraction))
    negatives = _draw(matches == BACKGROUND, keys, size - len(positives))
    return positives, negatives


def _draw(eligible: Tensor, keys: Tensor, most: int) -> Tensor:
    indices = eligible.nonzero().squeeze(1)
    if len(indices) <= most:
        return indices
    return indices[keys[indices].topk(most, sorted=False).indices]
