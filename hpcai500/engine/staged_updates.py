"""One update of a model in stages: batches pass its ranks, gradients are summed over the replicas of each stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.monitor_rules import COMPUTING, READING, WAITING
from hpcai500.engine.tally import EpochTally
from hpcai500.engine.updates import Updater
from hpcai500.workloads.base import TrainingBatch

if TYPE_CHECKING:
    from hpcai500.engine.pipe import Pipe


@dataclass
class StagedUpdater(Updater):
    """Does the updates of one stage; all ranks of the job call alike.

    The first stage reads, and its samples are counted there; the others read nothing. The loss is that of this
    rank's replica, the same on all its stages.

    Attributes:
        pipe: passes batches through the stages.
        world: all ranks of the job, for the training thread.
        replicas: the ranks that hold the same stage, one of each model that learns.
        micro_batches: in how many parts a batch passes.
    """

    pipe: Pipe = field(kw_only=True)
    world: Communicator = field(kw_only=True)
    replicas: Communicator = field(kw_only=True)
    micro_batches: int = field(kw_only=True)
    _agreed_seconds: float = field(default=0.0, init=False)

    @property
    def waited_seconds(self) -> float:
        """Of the last update: for other stages, for sums over replicas, and for the last word of all ranks."""
        return super().waited_seconds + self.pipe.waited_seconds + self._agreed_seconds

    def gradients(self, number: int, batches: Iterator[TrainingBatch], tally: EpochTally | None = None) -> Tensor:
        """Leave the gradients of one update in the parameters of this stage: the mean over all shares."""
        self.optimizer.zero_grad(set_to_none=True)
        self.pipe.phase = self.phase
        self.pipe.begin()
        if self.reducer:
            self.reducer.begin(number)
        loss = 0.0
        for turn in range(self.passes):
            batch = self._next(batches)
            with self._held_back(turn):
                if self.reducer:
                    self.reducer.backward_begins()
                loss += self.pipe.run(batch.payload if batch else None, self.passes)
            if tally and batch:
                tally.add(batch)
        self.phase(WAITING)
        if self.reducer:
            self.reducer.finish([])
        return self._agreed(loss)

    def _next(self, batches: Iterator[TrainingBatch]) -> TrainingBatch | None:
        if not self.pipe.is_first:
            return None
        self.phase(READING)
        batch = next(batches)
        self.phase(COMPUTING)
        return batch

    def _agreed(self, loss: float) -> Tensor:
        """The loss of this replica, and what any rank has heard: the stages of one model have only this in common."""
        start = time.perf_counter()
        # A sum of all losses would hide whose was no number first.
        losses = [0.0] * self.replicas.size
        losses[self.replicas.rank] = loss
        numbers = torch.tensor([*losses, float(self.alarm), *self.stop.wishes()], dtype=torch.float64)
        self.world.all_reduce(numbers)
        alarms, *wishes = numbers[self.replicas.size :].tolist()
        self.is_alarmed = alarms > 0
        self.stop.agree(wishes)
        self._agreed_seconds = time.perf_counter() - start
        return numbers[self.replicas.rank]

    def _held_back(self, turn: int) -> AbstractContextManager[Any]:
        """Sums leave while the last backward pass runs; that of several micro-batches adds to gradients to its end."""
        if self.reducer is None or (turn == self.passes - 1 and self.micro_batches == 1):
            return nullcontext()
        return self.reducer.accumulate()
