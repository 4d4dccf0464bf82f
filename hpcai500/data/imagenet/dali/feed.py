"""What a pipeline is fed with: the files of each batch, in our order, and the keys of what is drawn for them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcai500.data.imagenet.image_index import Split
from hpcai500.data.samplers import SampleIds

Fed = tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]


class Feed:
    """A source for DALI's `external_source`: one batch a call, of an epoch that was begun; then the epoch has ended.

    `queued` are the batches that the pipeline was given and has not handed out.
    """

    def __init__(self, split: Split, root: Path) -> None:
        self._split = split
        self._root = os.fsencode(root.absolute())
        self._waiting: Iterator[SampleIds] = iter(())
        self._seed = self._epoch = 0
        self.queued: deque[SampleIds] = deque()

    def begin(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> None:
        """Start an epoch. Raises ValueError for a seed that is no unsigned 64-bit number."""
        if not 0 <= seed < 2**64 or not 0 <= epoch < 2**32:
            raise ValueError(f"seed must be in [0, 2^64) and epoch in [0, 2^32), got {seed} and {epoch}")
        self._waiting, self._seed, self._epoch = iter(batches), seed, epoch

    def end(self) -> None:
        """Give no further batch of this epoch."""
        self._waiting = iter(())

    def __call__(self) -> Fed:
        """Paths and keys of the next batch; StopIteration where the epoch has none."""
        ids = np.ascontiguousarray(next(self._waiting), dtype=np.int64)
        self.queued.append(ids)
        keys = np.empty((len(ids), 3), np.int64)
        # The bits of the unsigned seed.
        keys[:, 0], keys[:, 1], keys[:, 2] = ids, self._epoch, np.uint64(self._seed).astype(np.int64)
        return [self._path(sample) for sample in ids], keys

    def _path(self, sample: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._root + b"/" + os.fsencode(self._split.paths[sample]), np.uint8)
