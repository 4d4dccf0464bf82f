"""Top-1 accuracy: only the class with the highest score counts (V2.0 section 4.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator


class Top1:
    """Counts right answers on the device, so that evaluation does not wait for each batch."""

    def __init__(self, device: torch.device) -> None:
        self._right = torch.zeros((), dtype=torch.int64, device=device)
        self.samples = 0

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add a batch: scores (N, classes), labels (N,) int64. Scores that are not numbers are wrong answers."""
        numbers = torch.isfinite(scores).all(dim=1)
        self._right += ((scores.argmax(dim=1) == labels) & numbers).sum()
        self.samples += labels.shape[0]

    def combine(self, ranks: Communicator) -> None:
        """Add up what all ranks have counted: whole numbers, so the value is that of one process."""
        counts = torch.stack([self._right.cpu(), torch.tensor(self.samples)])
        ranks.all_reduce(counts)
        self._right, self.samples = counts[0], int(counts[1])

    @property
    def value(self) -> float:
        """Share of right answers, 0 to 1."""
        return float(self._right) / self.samples if self.samples else 0.0
