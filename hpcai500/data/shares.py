"""The shares of an update that one process computes: one each backward pass.

An update is cut into as many shares as the recipe has backward passes, over all ranks. Which samples a share holds
depends on their number alone, so the same run can go on with fewer ranks, each of which then takes several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcai500.data.samplers import SampleIds, Sharding, Tail


@dataclass(frozen=True)
class Share:
    """Sample ids of one backward pass; the first `real` of them are no padding."""

    ids: SampleIds
    real: int


class Shares:
    """Shares `mine` out of `total` of every update.

    Args:
        samples: size of the training set.
        batch_size: samples of one share.
        total: shares of an update over all processes.
        mine: numbers of those that this process computes, in the order in which it does.
        tail: what happens to the last update of an epoch (`Sharding`).

    Raises DataError and ValueError as `Sharding` does.
    """

    def __init__(self, samples: int, batch_size: int, total: int, mine: Sequence[int], tail: Tail) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.total = total
        self._shardings = [Sharding(samples, batch_size, total, number, tail) for number in mine]

    @property
    def steps_per_epoch(self) -> int:
        """Updates of one epoch."""
        return self._shardings[0].steps_per_epoch

    def of_epoch(self, order: SampleIds, first_step: int = 0) -> Iterator[Share]:
        """Shares out of `order` from update `first_step` on: all of this process's of one update, then the next."""
        streams = [list(sharding.batches(order)) for sharding in self._shardings]
        for step in range(first_step, self.steps_per_epoch):
            for sharding, stream in zip(self._shardings, streams, strict=True):
                yield Share(stream[step], sharding.real_count(step))
