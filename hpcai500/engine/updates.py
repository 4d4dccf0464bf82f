"""One update: backward passes over this rank's shares, gradients summed over all ranks, one step of the optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

from hpcai500.comm.communicator import Communicator, library_errors
from hpcai500.comm.liveness import COMPUTING, READING, TOGETHER, WAITING
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.timeline import SpanSink, StepSpan
from hpcai500.engine.graphs import StepGraphs
from hpcai500.engine.precision import Precision
from hpcai500.engine.reporting import EpochTally
from hpcai500.engine.signals import StopRequest
from hpcai500.layers import RULES, Recipe
from hpcai500.optim.optimizers import advance, build_optimizer
from hpcai500.plugins import broken_workload
from hpcai500.workloads.base import OwnOptimizer, TrainingBatch, Workload

if TYPE_CHECKING:
    from hpcai500.engine.pipeline import Pipe


@dataclass
class Updater:
    """Does the updates of a run; all ranks make the same calls.

    Attributes:
        model: called by the workload's loss; may be compiled.
        passes: backward passes of this rank in one update.
        reducer: sums gradients over ranks; None for one rank.
        stop: a signal to any rank is agreed on by all ranks after the same update.
        sink: receives the time of each step; None for one rank.
        phase: called with the phase that begins.
        passes_communicate: whether passes have collectives, sends or receives of their own.
        graphs: captured parts of the model; None if there are none.
        alarm: whether this rank has seen a loss that is not finite; the next update reports it to all ranks.
        is_alarmed: whether any rank had `alarm` set in the last update.
        passing: the phase of forward and backward passes.
    """

    workload: Workload
    model: nn.Module
    optimizer: optim.Optimizer
    precision: Precision
    passes: int
    reducer: Reducer | None
    stop: StopRequest
    sink: SpanSink | None
    phase: Callable[[str], None]
    passes_communicate: bool = False
    graphs: StepGraphs | None = None
    alarm: bool = False
    is_alarmed: bool = False
    passing: str = COMPUTING

    def update(
        self, number: int, epoch: float, rate: float, batches: Iterator[TrainingBatch], tally: EpochTally
    ) -> Tensor:
        """Do update `number` of the run, at `epoch` (a fraction of epochs done), with learning rate `rate`.

        Returns this rank's mean loss, on the device.

        Raises:
            RunError: another rank is lost.
            DataError: a sample cannot be read.
        """
        start, waited_before = time.perf_counter(), tally.data_wait_seconds
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        advance(self.optimizer, epoch)
        loss = self.gradients(number, batches, tally)
        self.phase(COMPUTING)
        self.precision.step(self.optimizer, unscaled=isinstance(self.workload, OwnOptimizer))
        tally.steps += 1
        span = StepSpan(
            step=number,
            start=start,
            seconds=time.perf_counter() - start,
            data_wait_seconds=tally.data_wait_seconds - waited_before,
            communication_wait_seconds=self.waited_seconds,
        )
        tally.spend(span.compute_seconds, span.communication_wait_seconds)
        if self.sink:
            self.sink.step(span)
        return loss

    @property
    def waited_seconds(self) -> float:
        """Seconds that this rank waited for others in the last update."""
        return self.reducer.waited_seconds if self.reducer else 0.0

    @property
    def own_norm(self) -> Tensor | float:
        """Norm of this rank's own gradients in the last update, before summing; not finite if they are not.

        It is 0 for one rank, and if steps whose gradients are not finite are skipped.
        """
        return 0.0 if self.reducer is None or self.precision.skips_overflows else self.reducer.own_norm

    def gradients(self, number: int, batches: Iterator[TrainingBatch], tally: EpochTally | None = None) -> Tensor:
        """Compute the gradients of one update in the parameters: the mean over all shares of all ranks."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.reducer:
            self.reducer.begin(number)
        losses = []
        for turn in range(self.passes):
            self.phase(READING)
            batch = _next(batches)
            self.phase(self.passing)
            if self.graphs:
                self.graphs.pass_begins()
            with self._accumulating(turn):
                with self.precision.forward():
                    loss = self.workload.loss(self.model, batch.payload) / self.passes
                if self.reducer:
                    self.reducer.backward_begins()
                self.precision.backward(loss)
            if self.graphs and turn < self.passes - 1:
                self.graphs.pass_ended()
            losses.append(loss.detach())
            if tally:
                self._count(tally, batch)
        self.phase(WAITING)
        status = [float(self.alarm), *self.stop.requests()]
        alarms, *requests = self._summed(status)
        self.is_alarmed = alarms > 0
        self.stop.agree(requests)
        return sum(losses[1:], losses[0])

    def _count(self, tally: EpochTally, batch: TrainingBatch) -> None:
        tally.add(batch)

    def _summed(self, status: list[float]) -> list[float]:
        """The sums of `status` over all ranks; gradients are then averaged, too."""
        return self.reducer.finish(status) if self.reducer else status

    def _accumulating(self, turn: int) -> AbstractContextManager[None]:
        """Only accumulate gradients in all passes except the last, during which they are all-reduced."""
        if self.reducer is None or turn == self.passes - 1:
            return nullcontext()
        return self.reducer.accumulate()


@dataclass
class StagedUpdater(Updater):
    """Does the updates of one stage; all ranks of the job make the same calls.

    Only the first stage reads batches and counts their samples. The loss is that of this rank's replica, the same on
    all its stages. `world` and `replicas` (the ranks that hold the same stage) are for the training thread.
    """

    # Stages pass on activations and their gradients.
    passes_communicate: bool = True
    pipe: Pipe = field(kw_only=True)
    world: Communicator = field(kw_only=True)
    replicas: Communicator = field(kw_only=True)
    micro_batches: int = field(kw_only=True)
    _agreed_seconds: float = field(default=0.0, init=False)

    @property
    def waited_seconds(self) -> float:
        """Waiting in the last update: for other stages, for all-reduces over replicas, and for all ranks to agree."""
        return super().waited_seconds + self.pipe.waited_seconds + self._agreed_seconds

    def gradients(self, number: int, batches: Iterator[TrainingBatch], tally: EpochTally | None = None) -> Tensor:
        """Compute the gradients of one update in the parameters of this stage: the mean over all shares."""
        self.optimizer.zero_grad(set_to_none=True)
        self.pipe.phase = self.phase
        self.pipe.begin()
        if self.reducer:
            self.reducer.begin(number)
        loss = 0.0
        for turn in range(self.passes):
            batch = self._next(batches)
            with self._accumulating(turn):
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
        batch = _next(batches)
        self.phase(COMPUTING)
        return batch

    def _agreed(self, loss: float) -> Tensor:
        """Sum losses, alarms and requests to stop over all ranks; returns the loss of this replica."""
        start = time.perf_counter()
        # One number for each replica's loss: a sum of all would hide which one was not finite.
        losses = [0.0] * self.replicas.size
        losses[self.replicas.rank] = loss
        numbers = torch.tensor([*losses, float(self.alarm), *self.stop.requests()], dtype=torch.float64)
        self.world.all_reduce(numbers)
        alarms, *requests = numbers[self.replicas.size :].tolist()
        self.is_alarmed = alarms > 0
        self.stop.agree(requests)
        self._agreed_seconds = time.perf_counter() - start
        return numbers[self.replicas.rank]

    def _accumulating(self, turn: int) -> AbstractContextManager[Any]:
        """Keep the reducer from sending gradients that are not complete yet.

        They are complete during the last pass if that has one micro-batch, and only after it if it has several.
        """
        if self.reducer is None or (turn == self.passes - 1 and self.micro_batches == 1):
            return nullcontext()
        return self.reducer.accumulate()


@dataclass
class ShardedUpdater(Updater):
    """Does the updates of a sharded model, whose passes communicate and average its gradients; all ranks call it.

    Each pass averages the gradients over the replicas and adds them to this rank's shards, so that all passes together
    give the mean over all shares. torch does not say how long passes wait for other ranks. `world` is for the training
    thread.
    """

    passes_communicate: bool = True
    passing: str = TOGETHER
    world: Communicator = field(kw_only=True)
    counts_samples: bool = field(kw_only=True)
    _agreed_seconds: float = field(default=0.0, init=False)

    @property
    def waited_seconds(self) -> float:
        """Waiting for all ranks to agree, after the last pass; waiting within passes is unknown."""
        return self._agreed_seconds

    def update(
        self, number: int, epoch: float, rate: float, batches: Iterator[TrainingBatch], tally: EpochTally
    ) -> Tensor:
        # An optimizer may add up norms over shards.
        with library_errors(self.world.library, "an update of the sharded model"):
            return super().update(number, epoch, rate, batches, tally)

    def gradients(self, number: int, batches: Iterator[TrainingBatch], tally: EpochTally | None = None) -> Tensor:
        """Compute the gradients of one update in this rank's shards: the mean over all shares of all replicas."""
        with library_errors(self.world.library, "a pass of the sharded model"):
            loss: Any = super().gradients(number, batches, tally)
            whole: Tensor = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
            return whole

    def _count(self, tally: EpochTally, batch: TrainingBatch) -> None:
        """Count the samples on one of the ranks that work on them."""
        if self.counts_samples:
            tally.add(batch)
        else:
            tally.data_wait_seconds += batch.wait_seconds or 0.0

    def _summed(self, status: list[float]) -> list[float]:
        start = time.perf_counter()
        # On the host, so that a GPU is not waited for.
        numbers = torch.tensor(status, dtype=torch.float64)
        self.world.all_reduce(numbers)
        self._agreed_seconds = time.perf_counter() - start
        sums: list[float] = numbers.tolist()
        return sums


def _next(batches: Iterator[TrainingBatch]) -> TrainingBatch:
    """The next batch, with the time that this took if the workload does not say how long it waited."""
    start = time.perf_counter()
    batch = next(batches)
    return batch if batch.wait_seconds is not None else replace(batch, wait_seconds=time.perf_counter() - start)


# ----------------------------------------------------------------------------------------------------
# The optimizer of a run.


def optimizer_of(recipe: Recipe, workload: object, model: nn.Module) -> optim.Optimizer:
    """The optimizer of a run over all trainable parameters of `model`: the workload's own, or else the recipe's.

    Raises:
        EnvironmentLacksError: this torch has no fused kernel for the device, the workload's own optimizer has not
            exactly the parameters of the model, or nobody has the rule that the recipe names.
    """
    policy = recipe.hyperparameters
    if not isinstance(workload, OwnOptimizer):
        if policy.optimizer not in RULES:
            raise broken_workload(
                recipe.benchmark,
                f"its workload has no optimizer(model), and hpcai500 no update rule {policy.optimizer} "
                "(hyperparameters.optimizer)",
            )
        return build_optimizer(model, policy, fused=recipe.framework.fused_optimizer)
    own = workload.optimizer(model)
    found = {id(parameter) for group in own.param_groups for parameter in group["params"]}
    expected = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    lacking = [name for number, name in expected.items() if number not in found]
    if lacking or not found <= expected.keys():
        what = f"lacks the parameter {lacking[0]}" if lacking else "has parameters that the model does not train"
        raise broken_workload(recipe.benchmark, f"its workload's optimizer(model) {what}")
    try:
        signature(own.step).bind()
    except TypeError as error:
        what = f"the step of its workload's optimizer, a {type(own).__name__}, needs arguments"
        raise broken_workload(recipe.benchmark, f"{what}, but the engine calls step() without a closure") from error
    return own
