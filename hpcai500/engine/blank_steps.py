"""Steps of a recipe on input whose values do not matter, with and without the other ranks: to time them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import cast

import numpy as np
import torch

from hpcai500.comm.monitor_rules import COMPUTING, WAITING
from hpcai500.comm.reducer import Reducer
from hpcai500.engine.graphs import step_graphs, step_model
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.rehearsal import Rehearsal
from hpcai500.engine.replicas import make_equal
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.tally import EpochTally
from hpcai500.engine.updates import Updater
from hpcai500.layers import Recipe
from hpcai500.measure.convolutions import to_memory_format
from hpcai500.methodology.cost.measured import Phases
from hpcai500.optim.optimizers import build_optimizer
from hpcai500.workloads.base import Place, TrainingBatch, Workload
from hpcai500.workloads.blank import BlankWorkload

_EVALUATIONS = 3


class BlankSteps:
    """Updates of `recipe` on this rank and `device`, timed phase by phase. All ranks call all methods alike.

    Args:
        recipe: what a step does.
        ranks: all processes.
        device: of this rank.
        cores: that this rank may count as its own.
        classes: outputs of a classifier; by default those of the edition's data set.
    """

    def __init__(
        self, recipe: Recipe, ranks: Ranks, device: torch.device, cores: int, classes: int | None = None
    ) -> None:
        self._recipe, self._ranks = recipe, ranks
        self.has_company = ranks.world.size > 1
        self._precision = Precision(recipe.accelerator.precision, device)
        place = Place(device, self._precision.input_dtype, cores, communicator=ranks.world)
        self._workload = BlankWorkload(recipe, place, classes)
        self._bare = self._workload.model.to(device)
        to_memory_format(self._bare, recipe, device)
        if self.has_company:
            make_equal(self._bare, ranks.world)
        on_gpu = device.type == "cuda"
        self._watch = _Watch(lambda: torch.cuda.synchronize(device) if on_gpu else None)
        self._workload.after_loss = self._watch.loss_is_there
        self._updater = Updater(
            # Of a workload, steps call `loss` and `blank_payload` only.
            workload=cast(Workload, self._workload),
            model=step_model(self._bare, recipe.framework),
            optimizer=build_optimizer(self._bare, recipe.hyperparameters, fused=recipe.framework.fused_optimizer),
            precision=self._precision,
            passes=recipe.hyperparameters.accumulation_steps,
            reducer=None,
            stop=StopRequest(),
            sink=None,
            phase=self._watch.phase,
            graphs=step_graphs(recipe, self._workload, self._bare),
        )
        self._blanks = repeat(TrainingBatch(np.empty(0, np.int64), 0, self._workload.blank_payload()))
        self._number = 0
        self._reducer: Reducer | None = None

    def prepare(self) -> int | None:
        """Compile, choose the bucket size, make the reducer, as before a run; returns the size, None for one rank.

        Raises:
            RunError: another rank is lost.
        """
        rehearsal = Rehearsal(self._updater, self._bare, self._ranks, self._recipe.communication)
        found = rehearsal.with_ranks() if self.has_company else rehearsal.warm_up()
        self._reducer, self._updater.reducer = self._updater.reducer, None
        return found.bucket_bytes

    def step(self, *, together: bool) -> Phases:
        """One update, begun by all ranks at once; `together` or each for itself.

        Raises:
            RunError: another rank is lost.
        """
        self._updater.reducer = self._reducer if together else None
        self._ranks.world.barrier()
        self._watch.begin()
        # A rate of 0: the model stays what it is.
        self._updater.update(self._number, 0.0, 0.0, self._blanks, EpochTally())
        self._number += 1
        return self._watch.end()

    def evaluation_seconds(self) -> float:
        """Of a sample in an evaluation, with its input at hand: the slowest rank's, best of a few batches.

        Raises:
            RunError: another rank is lost.
        """
        payload, taken = self._workload.blank_payload(), []
        self._bare.eval()
        with torch.inference_mode(), self._precision.forward():
            for _ in range(_EVALUATIONS):
                self._ranks.world.barrier()
                self._watch.begin()
                self._workload.infer(self._bare, payload)
                self._watch.loss_is_there()
                taken.append(self._watch.forward_end - self._watch.start)
        slowest: float = max(self._ranks.world.gather_objects(min(taken)))
        return slowest / self._recipe.hyperparameters.batch_size

    def close(self) -> None:
        """Stop the threads that communicate."""
        if self._reducer:
            self._reducer.close()


@dataclass
class _Watch:
    """When the phases of a step ended; told by the updater and by the workload."""

    finish: Callable[[], None]
    start: float = 0.0
    forward_end: float = 0.0
    backward_end: float = 0.0
    exchange_end: float = 0.0

    def begin(self) -> None:
        self.start, self.backward_end = self._now(), 0.0

    def loss_is_there(self) -> None:
        self.forward_end = self._now()

    def phase(self, name: str) -> None:
        """As `Updater.phase`: ranks wait when the last backward pass has ended, then compute the update."""
        if name == WAITING:
            self.backward_end = self._now()
        elif name == COMPUTING and self.backward_end:
            self.exchange_end = time.perf_counter()

    def end(self) -> Phases:
        return Phases(
            forward=self.forward_end - self.start,
            backward=self.backward_end - self.forward_end,
            wait=self.exchange_end - self.backward_end,
            update=self._now() - self.exchange_end,
        )

    def _now(self) -> float:
        self.finish()
        return time.perf_counter()
