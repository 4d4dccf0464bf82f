"""Measured training steps: the parts of a run, without record and checkpoints.

`BlankSteps` times steps on blank input, with and without the other ranks; `ProfiledSteps` does the steps of a run on
its data.
"""

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
from torch import nn

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.liveness import COMPUTING, WAITING
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.timeline import SpanSink
from hpcai500.engine.evidence import make_equal
from hpcai500.engine.graphs import step_graphs, step_model
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.reporting import EpochTally
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater, optimizer_of
from hpcai500.engine.warm_up import WarmUp
from hpcai500.errors import RecipeError
from hpcai500.layers import Recipe
from hpcai500.measure.convolutions import to_memory_format
from hpcai500.measure.trace import marked_input
from hpcai500.methodology.cost import Phases
from hpcai500.optim.schedules import LearningRate
from hpcai500.workloads import factory
from hpcai500.workloads.base import Place, TrainingBatch, Workload
from hpcai500.workloads.blank import BlankWorkload


def _updater(
    recipe: Recipe,
    workload: Workload,
    model: nn.Module,
    place: Place,
    precision: Precision,
    *,
    passes: int,
    stop: StopRequest,
    phase: Callable[[str], None],
) -> Updater:
    """The updater of a run of `recipe`, as before its warm-up: it has no reducer yet.

    `model` is that of `workload`, on the device.
    """
    to_memory_format(model, recipe, place.device)
    if place.world_size > 1:
        make_equal(model, place.communicator)
    return Updater(
        workload=workload,
        model=step_model(model, recipe.framework),
        optimizer=optimizer_of(recipe, workload, model),
        precision=precision,
        passes=passes,
        reducer=None,
        stop=stop,
        sink=None,
        phase=phase,
        passes_communicate=place.passes_communicate,
        graphs=step_graphs(recipe, workload, model),
    )


# ----------------------------------------------------------------------------------------------------
# Steps on blank input.


_EVALUATIONS = 3


class BlankSteps:
    """Updates of `recipe` on blank input, timed phase by phase. All ranks call all methods together.

    A classifier has `classes` outputs; by default those of the edition's data set.
    """

    def __init__(
        self, recipe: Recipe, ranks: Ranks, device: torch.device, cores: int, classes: int | None = None
    ) -> None:
        self._recipe, self._ranks = recipe, ranks
        self.has_peers = ranks.world.size > 1
        self._precision = Precision(recipe.accelerator.precision, device)
        place = Place(device, self._precision.input_dtype, cores, communicator=ranks.world)
        self._workload = BlankWorkload(recipe, place, classes)
        on_gpu = device.type == "cuda"
        # Only the stream of the steps: sums of gradients still run beside it when the backward pass has ended.
        self._watch = _Watch(lambda: torch.cuda.current_stream(device).synchronize() if on_gpu else None)
        self._workload.after_loss = self._watch.forward_done
        self._bare = self._workload.model.to(place.device)
        self._updater = _updater(
            recipe,
            # A step calls only `loss` and `blank_payload` of a workload.
            cast(Workload, self._workload),
            self._bare,
            place,
            self._precision,
            passes=recipe.hyperparameters.accumulation_steps,
            stop=StopRequest(),
            phase=self._watch.phase,
        )
        self._blanks = repeat(TrainingBatch(np.empty(0, np.int64), 0, self._workload.blank_payload()))
        self._number = 0
        self._reducer: Reducer | None = None

    def prepare(self) -> int | None:
        """Compile, choose the bucket size and make the reducer; returns the bucket size, None for one rank.

        Raises:
            RunError: another rank is lost.
        """
        warm_up = WarmUp(self._updater, self._bare, self._ranks, self._recipe.communication)
        found = warm_up.with_ranks() if self.has_peers else warm_up.alone()
        self._reducer, self._updater.reducer = self._updater.reducer, None
        return found.bucket_bytes

    def step(self, *, together: bool) -> Phases:
        """Do one update, started by all ranks at once, with all-reduces (`together`) or without.

        Raises:
            RunError: another rank is lost.
        """
        self._updater.reducer = self._reducer if together else None
        self._ranks.world.barrier()
        self._watch.begin()
        # With rate 0 the model does not change.
        self._updater.update(self._number, 0.0, 0.0, self._blanks, EpochTally())
        self._number += 1
        return self._watch.end()

    def evaluation_seconds(self) -> float:
        """Evaluation time of one sample, without reading it: of the slowest rank, best of a few batches.

        Raises:
            RunError: another rank is lost.
        """
        payload, taken = next(self._blanks).payload, []
        self._bare.eval()
        with torch.inference_mode(), self._precision.forward():
            for _ in range(_EVALUATIONS):
                self._ranks.world.barrier()
                self._watch.begin()
                self._workload.infer(self._bare, payload)
                self._watch.forward_done()
                taken.append(self._watch.forward_end - self._watch.start)
        slowest: float = max(self._ranks.world.gather_objects(min(taken)))
        return slowest / self._recipe.hyperparameters.batch_size

    def close(self) -> None:
        if self._reducer:
            self._reducer.close()


@dataclass
class _Watch:
    """Times at which the phases of a step ended, from calls of updater and workload; `finish` waits for the device."""

    finish: Callable[[], None]
    start: float = 0.0
    forward_end: float = 0.0
    backward_end: float = 0.0
    exchange_end: float = 0.0

    def begin(self) -> None:
        self.start, self.backward_end = self._now(), 0.0

    def forward_done(self) -> None:
        self.forward_end = self._now()

    def phase(self, name: str) -> None:
        """Called as `Updater.phase`: WAITING follows the last backward pass, COMPUTING then begins the update."""
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
# Steps on a run's data.


# The context in which a step runs, by the step's number.
Around = Callable[[int], AbstractContextManager[object]]


@dataclass(frozen=True)
class Measured:
    """The times of steps on this rank.

    Attributes:
        seconds: of all steps, including the device's work.
        compute_seconds: neither waiting for data nor for all-reduces.
        communication_wait_seconds: from the end of backward passes to the last all-reduce.
        step_seconds: of a typical step: the median on a CPU; the mean on a GPU, which is still working when the host
            returns from a step.
    """

    steps: int
    seconds: float
    data_wait_seconds: float
    compute_seconds: float
    communication_wait_seconds: float
    step_seconds: float


class ProfiledSteps:
    """The workload, model, optimizer, reducer and input pipeline of a run, made in the same way on all ranks.

    `world` is `ranks.world`, or a wrapper that observes its calls.

    Raises:
        HpcAi500Error: the run could not start.
    """

    def __init__(
        self, recipe: Recipe, data: Path, ranks: Ranks, device: torch.device, cores: int, *, world: Communicator
    ) -> None:
        if recipe.programming.parallel_mode != "data":
            raise RecipeError(
                f"programming.parallel_mode: only data parallelism can be profiled, got "
                f"{recipe.programming.parallel_mode}; use data"
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
        steps = self._workload.steps_per_epoch
        self._rate = LearningRate(recipe.hyperparameters, recipe.global_batch, steps, recipe.problem.epochs)
        self._steps_of_run = steps * recipe.problem.epochs
        self._model = self._workload.model.to(place.device)
        self._updater = _updater(
            recipe,
            self._workload,
            self._model,
            place,
            precision,
            passes=len(place.shares),
            stop=StopRequest(announce=False),
            phase=lambda name: None,
        )
        self._communication = recipe.communication
        self._batches = self._endless_batches()
        self._input = marked_input(self._batches)
        self._done = 0

    def warm_up(self, steps: int) -> float:
        """Compile, choose the bucket size, then do `steps` steps; returns the seconds of one on the slowest rank.

        Raises:
            HpcAi500Error: as `run`.
        """
        # Not kept: its blank input fills memory of the device.
        warm_up = WarmUp(self._updater, self._model, self._ranks, self._communication)
        if self._ranks.world.size > 1:
            warm_up.with_ranks()
        else:
            warm_up.alone()
        self._updater.phase = self._ranks.phase
        own = self.run(steps).step_seconds
        slowest: float = max(self._ranks.world.gather_objects(own))
        return slowest

    def run(self, steps: int, around: Around | None = None, sink: SpanSink | None = None) -> Measured:
        """Do `steps` (at least 1) more; all ranks together. `sink` receives the times of steps and all-reduces.

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
        self._synchronize()
        moments = [time.perf_counter()]
        for step in range(steps):
            with around(step) if around else nullcontext():
                self._step(tally)
            moments.append(time.perf_counter())
        self._synchronize()
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
        self._batches.close()
        if self._updater.reducer:
            self._updater.reducer.close()
        self._workload.close()

    def _step(self, tally: EpochTally) -> None:
        # The run's schedules end with its last step.
        number = min(self._done, self._steps_of_run - 1)
        epoch = number / self._workload.steps_per_epoch
        self._updater.update(self._done, epoch, self._rate.at(number), self._input, tally)
        self._done += 1

    def _endless_batches(self) -> Generator[TrainingBatch]:
        epoch = 1
        while True:
            yield from self._workload.training_batches(epoch, 0)
            epoch += 1

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
