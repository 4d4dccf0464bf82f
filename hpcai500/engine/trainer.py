"""The training loop: epochs of updates and evaluations, every one timed and written to the record."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import nn

from hpcai500.engine.checkpoints import CheckpointStore
from hpcai500.engine.console import Console, Status
from hpcai500.engine.precision import Precision
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.tally import EpochTally
from hpcai500.errors import RunError
from hpcai500.layers import Recipe
from hpcai500.optim.optimizers import build_optimizer
from hpcai500.optim.schedules import LearningRate
from hpcai500.record_writer import RecordWriter
from hpcai500.workloads.base import Place, TrainingBatch, Workload

# Reading a loss makes a GPU wait; this many are kept on the device and looked at together.
_LOSSES_AT_ONCE = 16


class Trainer:
    """Trains one workload to its target epochs.

    Args:
        recipe: what to do.
        workload: the problem.
        place: device and rank.
        precision: the arithmetic.
        record: where events go.
        checkpoints: where state goes.
        console: where progress goes.
        stop: tells when to stop early.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Workload,
        place: Place,
        *,
        precision: Precision,
        record: RecordWriter,
        checkpoints: CheckpointStore,
        console: Console,
        stop: StopRequest,
    ) -> None:
        self._recipe, self._workload, self._place = recipe, workload, place
        self._precision, self._record, self._checkpoints = precision, record, checkpoints
        self._console, self._stop = console, stop
        self._epochs = recipe.problem.epochs
        self._steps = workload.steps_per_epoch
        self._bare = workload.model.to(place.device)
        if recipe.framework.channels_last:
            # torch's stubs do not know this documented form.
            self._bare.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._model = cast(nn.Module, torch.compile(self._bare)) if recipe.framework.compile else self._bare
        self._optimizer = build_optimizer(self._bare, recipe.hyperparameters)
        self._rate = LearningRate(recipe.hyperparameters, recipe.global_batch, self._steps, self._epochs)
        self._losses = torch.zeros(_LOSSES_AT_ONCE, device=place.device)
        self._first_epoch = 1
        self._tally = EpochTally()
        self._last_loss: float | None = None
        self._quality: float | None = None

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """Go on where a checkpoint was taken; returns its (epoch, step)."""
        self._bare.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._precision.restore(state["precision"])
        self._first_epoch = state["epoch"]
        self._tally = EpochTally.from_state(state["tally"])
        self._quality = state["quality"]
        return self._first_epoch, self._tally.steps

    def warm_up(self) -> float:
        """Compile, and let a GPU set itself up, before the clock starts; returns the seconds it took.

        The model is left as it was.
        """
        on_gpu = self._place.device.type == "cuda"
        if not (self._recipe.framework.compile or on_gpu):
            return 0.0
        start = time.perf_counter()
        before = {name: buffer.clone() for name, buffer in self._bare.named_buffers()}
        self._model.train()
        # The very loss of training: compiled backward passes are made for the layout of the gradient that comes in.
        with self._precision.forward():
            loss = self._workload.loss(self._model, self._workload.blank_payload())
        loss.backward()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in self._bare.named_buffers():
                buffer.copy_(before[name])
        return time.perf_counter() - start

    def run(self) -> None:
        """Train to the last epoch.

        Raises:
            RunError: the loss is no number, a signal asked to stop, or the disk is full.
            DataError: a sample cannot be read.
        """
        self._console.start()
        for epoch in range(self._first_epoch, self._epochs + 1):
            self._checkpoints.reserve()
            self._train_epoch(epoch)
            self._look_at_weights(epoch)
            self._evaluate(epoch)
            self._tally = EpochTally()
            self._save(epoch + 1)

    def _train_epoch(self, epoch: int) -> None:
        self._record.event("epoch_start", {"epoch": epoch, "step": self._tally.steps})
        self._model.train()
        batches = self._workload.training_batches(epoch, self._tally.steps)
        try:
            before = time.perf_counter()
            for batch in batches:
                self._step(epoch, batch)
                self._tally.add(batch)
                self._after_step(epoch)
                now = time.perf_counter()
                self._tally.seconds += now - before
                before = now
                if self._stop.signal:
                    self._look_at_losses(epoch)
                    self._interrupt(epoch)
        finally:
            batches.close()
        self._look_at_losses(epoch)
        self._tally.seconds += time.perf_counter() - before
        self._record.event("epoch_stop", {"epoch": epoch, **self._tally.summary()})

    def _step(self, epoch: int, batch: TrainingBatch) -> None:
        step = (epoch - 1) * self._steps + self._tally.steps
        rate = self._rate.at(step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        with self._precision.forward():
            loss = self._workload.loss(self._model, batch.payload)
        self._precision.update(loss, self._optimizer)
        self._losses[self._tally.steps % _LOSSES_AT_ONCE] = loss.detach()

    def _after_step(self, epoch: int) -> None:
        if self._tally.steps % _LOSSES_AT_ONCE == 0:
            self._look_at_losses(epoch)
        self._console.step(self._status(epoch))

    def _look_at_losses(self, epoch: int) -> None:
        """Read the losses since the last look; the first that is no number ends the run."""
        steps = self._tally.steps
        losses = self._losses.tolist()
        for step in range(self._tally.losses_seen, steps):
            loss = losses[step % _LOSSES_AT_ONCE]
            if not math.isfinite(loss):
                raise self._diverged(f"the loss is {loss}", epoch, step)
            self._tally.loss_sum += loss
            self._last_loss = loss
        self._tally.losses_seen = steps

    def _look_at_weights(self, epoch: int) -> None:
        """A checkpoint of weights that are no numbers could never be gone on from."""
        tensors = [tensor for tensor in self._bare.state_dict().values() if tensor.is_floating_point()]
        if not torch.stack([tensor.isfinite().all() for tensor in tensors]).all():
            raise self._diverged("weights are not finite", epoch, self._tally.steps)

    def _diverged(self, what: str, epoch: int, step: int) -> RunError:
        rank, rate = self._place.rank, self._rate.at((epoch - 1) * self._steps + step)
        self._record.event("diverged", {"epoch": epoch, "step": step, "rank": rank, "what": what})
        return RunError(
            f"{what} at epoch {epoch}, step {step} on rank {rank} (learning rate {rate:g}): "
            "lower hyperparameters.base_learning_rate, lengthen hyperparameters.warmup_epochs, "
            "or use accelerator.precision=fp32"
        )

    def _evaluate(self, epoch: int) -> None:
        self._record.event("eval_start", {"epoch": epoch})
        start = time.perf_counter()
        # Not the compiled model: its last, short batch would be compiled anew while the clock runs.
        self._bare.eval()
        with torch.inference_mode(), self._precision.forward():
            evaluation = self._workload.evaluate(
                self._bare, on_batch=lambda samples: self._in_evaluation(epoch, samples)
            )
        seconds = time.perf_counter() - start
        self._quality = evaluation.value
        metric = self._recipe.problem.metric
        value = {"epoch": epoch, "metric": metric, "value": evaluation.value, "samples": evaluation.samples}
        if evaluation.per_class:
            value["per_class"] = dict(evaluation.per_class)
        self._record.event("eval_accuracy", {**value, "seconds": round(seconds, 6)})
        self._record.event("eval_stop", {"epoch": epoch})
        self._console.epoch_done(self._status(epoch), self._tally.seconds + seconds, evaluation.per_class)

    def _in_evaluation(self, epoch: int, samples: int) -> None:
        self._console.evaluating(self._status(epoch), samples)
        if self._stop.signal:
            self._interrupt(epoch)

    def _interrupt(self, epoch: int) -> None:
        assert self._stop.signal is not None
        name, step = self._stop.signal.name, self._tally.steps
        self._look_at_weights(epoch)
        self._record.event("interrupted", {"signal": name, "epoch": epoch, "step": step})
        self._save(epoch)
        raise RunError(
            f"stopped by {name} at epoch {epoch}, step {step}; nothing is lost: "
            f"go on with `hpcai500 {self._recipe.benchmark} --resume --out {self._record.path}`"
        )

    def _save(self, epoch: int) -> None:
        state = {
            "model": self._bare.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "precision": self._precision.state(),
            "epoch": epoch,
            "tally": self._tally.state(),
            "quality": self._quality,
        }
        checkpoint = self._checkpoints.save(state, epoch, self._tally.steps)
        self._record.event("checkpoint", asdict(checkpoint))
        self._checkpoints.prune()

    def _status(self, epoch: int) -> Status:
        return Status(epoch, self._epochs, self._tally.steps, self._steps, self._last_loss, self._quality)


def state_bytes(model: nn.Module) -> int:
    """Upper estimate of a first checkpoint: weights, buffers, and two more numbers for each weight."""

    parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    return 3 * parameters + buffers
