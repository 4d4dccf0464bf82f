"""Training steps for whoever looks at them: the parts of a run, without record, evaluation and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
import torch

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.liveness import COMPUTING, WAITING
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.timeline import SpanSink
from hpcai500.engine.evidence import make_equal
from hpcai500.engine.graphs import step_graphs, step_model
from hpcai500.engine.journal import EpochTally
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater
from hpcai500.engine.warm_up import Rehearsal
from hpcai500.errors import RecipeError
from hpcai500.layers import Recipe
from hpcai500.measure.convolutions import to_memory_format
from hpcai500.measure.trace import marked_input
from hpcai500.methodology.cost import Phases
from hpcai500.optim.optimizers import build_optimizer
from hpcai500.optim.schedules import LearningRate
from hpcai500.workloads import factory
from hpcai500.workloads.base import BlankWorkload, Place, TrainingBatch, Workload

# ----------------------------------------------------------------------------------------------------
# Steps of a recipe on input whose values do not matter, with and without the other ranks: to time them.


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


# ----------------------------------------------------------------------------------------------------
# Training steps for whoever looks at them: the parts of a run, without record, evaluation and checkpoints.


# Of one step: its number, and what it runs in.
Around = Callable[[int], AbstractContextManager[object]]


@dataclass(frozen=True)
class Measured:
    """Steps that were done, on this rank; seconds.

    Attributes:
        steps: how many.
        seconds: from the first to the last, the device's work included.
        data_wait_seconds: waiting for batches.
        compute_seconds: what is neither waiting for data nor for sums.
        communication_wait_seconds: from the end of backward passes to the last sum.
        step_seconds: of a usual step: the median where each step is timed, the mean on a device, which works on after
            a step of the host has returned.
    """

    steps: int
    seconds: float
    data_wait_seconds: float
    compute_seconds: float
    communication_wait_seconds: float
    step_seconds: float


class ProfiledSteps:
    """The workload, model, optimizer, sums and input pipeline of a run, made as the run makes them; all ranks alike.

    Args:
        recipe: of the run.
        data: folder of its data.
        ranks: all processes.
        device: of this rank.
        cores: that this rank may count as its own.
        world: `ranks.world`, or what does the same and tells about it.

    Raises:
        HpcAi500Error: whatever keeps the run from starting.
    """

    def __init__(
        self, recipe: Recipe, data: Path, ranks: Ranks, device: torch.device, cores: int, *, world: Communicator
    ) -> None:
        if recipe.programming.stages > 1:
            raise RecipeError(
                f"programming.parallel_mode: a profile is of data parallelism, got {recipe.programming.parallel_mode}; "
                "take data"
            )
        self._ranks, self._device = ranks, device
        precision = Precision(recipe.accelerator.precision, device)
        place = Place(
            device,
            precision.input_dtype,
            recipe.os.input_threads or cores,
            communicator=world,
            total_shares=recipe.shards,
            shares=tuple(range(world.rank, recipe.shards, world.size)),
            tracker=ranks.tracker(),
        )
        self._workload: Workload = factory(recipe.benchmark)(recipe, data, place)
        if recipe.accelerator.loader == "memory":
            self._workload.hold_in_memory(recipe.accelerator.prefetch_batches * len(place.shares))
        self._model = self._workload.model.to(device)
        to_memory_format(self._model, recipe, device)
        if world.size > 1:
            make_equal(self._model, world)
        steps = self._workload.steps_per_epoch
        self._rate = LearningRate(recipe.hyperparameters, recipe.global_batch, steps, recipe.problem.epochs)
        self._steps_of_run = steps * recipe.problem.epochs
        self._updater = Updater(
            workload=self._workload,
            model=step_model(self._model, recipe.framework),
            optimizer=build_optimizer(self._model, recipe.hyperparameters, fused=recipe.framework.fused_optimizer),
            precision=precision,
            passes=len(place.shares),
            reducer=None,
            stop=StopRequest(announce=False),
            sink=None,
            phase=lambda name: None,
            graphs=step_graphs(recipe, self._workload, self._model),
        )
        self._rehearsal = Rehearsal(self._updater, self._model, ranks, recipe.communication)
        self._batches = self._endless_batches()
        self._input = marked_input(self._batches)
        self._done = 0

    def warm_up(self, steps: int) -> float:
        """Compile, choose the bucket size, then do `steps`; returns the seconds of one, the slowest rank's.

        Raises:
            HpcAi500Error: as `run`.
        """
        if self._ranks.world.size > 1:
            self._rehearsal.with_ranks()
        else:
            self._rehearsal.warm_up()
        self._updater.phase = self._ranks.phase
        own = self.run(steps).step_seconds
        slowest: float = max(self._ranks.world.gather_objects(own))
        return slowest

    def run(self, steps: int, around: Around | None = None, sink: SpanSink | None = None) -> Measured:
        """Do `steps` more, on real batches; all ranks together.

        Args:
            steps: at least 1.
            around: gives the context of each.
            sink: told when each step and each sum was.

        Raises:
            RunError: another rank is lost.
            DataError: a sample cannot be read.
        """
        self._updater.sink = sink
        if self._updater.reducer:
            self._updater.reducer.sink = sink
        self._model.train()
        tally = EpochTally()
        self._ranks.world.barrier()
        self._settle()
        moments = [time.perf_counter()]
        for step in range(steps):
            with around(step) if around else nullcontext():
                self._step(tally)
            moments.append(time.perf_counter())
        self._settle()
        seconds = time.perf_counter() - moments[0]
        on_host = self._device.type == "cpu"
        return Measured(
            steps,
            seconds,
            tally.data_wait_seconds,
            tally.compute_seconds,
            tally.communication_wait_seconds,
            step_seconds=median(two - one for one, two in pairwise(moments)) if on_host else seconds / steps,
        )

    def close(self) -> None:
        """Stop the threads that read and communicate."""
        self._batches.close()
        if self._updater.reducer:
            self._updater.reducer.close()
        self._workload.close()

    def _step(self, tally: EpochTally) -> None:
        # After the last step of the run, its schedules have nothing to say.
        number = min(self._done, self._steps_of_run - 1)
        epoch = number / self._workload.steps_per_epoch
        self._updater.update(self._done, epoch, self._rate.at(number), self._input, tally)
        self._done += 1

    def _endless_batches(self) -> Generator[TrainingBatch]:
        epoch = 1
        while True:
            yield from self._workload.training_batches(epoch, 0)
            epoch += 1

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
