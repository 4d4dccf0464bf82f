"""A few climate batches, repeated: what training costs without its input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from hpcai500.data.climate.reading.loader import ClimateBatch
from hpcai500.data.samplers import SampleIds


class MemoryClimateBatches:
    """Holds a few batches, wherever they are, and repeats them.

    Batches of an epoch have the sizes that were asked for; images, their ids and rolls are those of the held ones.
    """

    def __init__(self, batches: Iterable[ClimateBatch]) -> None:
        """Copy `batches`, for example `source.epoch(...)`. Raises ValueError when there are none."""
        self._held = [(_copy(batch.images), batch.samples, batch.rolls) for batch in batches]
        if not self._held:
            raise ValueError("at least one batch must be held")

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[ClimateBatch]:
        """Yield as many batches as asked for, of the sizes asked for (ValueError when larger than the held ones)."""
        del seed, epoch
        for number, ids in enumerate(batches):
            images, samples, rolls = self._held[number % len(self._held)]
            size = len(ids)
            if size > len(samples):
                raise ValueError(f"a batch of {size} was asked for, and {len(samples)} images are held")
            yield ClimateBatch(images[:size], samples[:size], rolls[:size], 0.0)

    def close(self) -> None:
        """Forget the batches."""
        self._held = []


def _copy(images: torch.Tensor) -> torch.Tensor:
    copy = images.clone()
    return copy.pin_memory() if images.is_pinned() else copy
