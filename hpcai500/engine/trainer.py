"""The training loop: epochs of updates and evaluations, each timed and recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from hpcai500.comm.communicator import library_errors
from hpcai500.comm.liveness import EVALUATING, TOGETHER, WRITING
from hpcai500.comm.timeline import SpanSink
from hpcai500.engine.checkpoints import Checkpoint, CheckpointStore
from hpcai500.engine.evidence import (
    Attribution,
    Statistics,
    average_statistics,
    collect_statistics,
    make_equal,
    require_equal,
    running_statistics,
)
from hpcai500.engine.graphs import step_graphs, step_model
from hpcai500.engine.precision import Precision, device_name, same_kernels
from hpcai500.engine.ranks import Ranks, StageGroups, layout_of
from hpcai500.engine.reporting import Console, EpochTally, Journal, Status
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import ShardedUpdater, StagedUpdater, Updater, optimizer_of
from hpcai500.engine.warm_up import WarmUp, WarmUpTimes
from hpcai500.errors import FAULTY_DEVICE, NotFiniteError, RecipeError, RunError, StoppedError
from hpcai500.hosts import name_ranks
from hpcai500.layers import Recipe
from hpcai500.measure.convolutions import to_memory_format
from hpcai500.methodology.passes import better_of, reaches
from hpcai500.optim.schedules import LearningRate
from hpcai500.plugins import broken_workload
from hpcai500.workloads.base import Place, Workload

if TYPE_CHECKING:
    from hpcai500.engine.pipeline import StagedModel
    from hpcai500.engine.sharded import ShardedCheckpointStore, ShardedModel

# Reading a loss makes a GPU wait, so this many are kept on the device and read together.
_LOSSES_AT_ONCE = 16


class Trainer:
    """Trains one workload for the recipe's epochs; all ranks make the same calls.

    Args:
        checkpoints: None on ranks that write none; of a sharded model, all ranks do.
        resume_command: for the message of a run that a signal stops.
        sink: receives the times of steps and all-reduces.
        groups: the ranks that share a model with this one; None if it has a whole model.

    Attributes:
        attribution: where the time of this rank's steps went.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Workload,
        place: Place,
        ranks: Ranks,
        *,
        precision: Precision,
        journal: Journal,
        checkpoints: CheckpointStore | None,
        console: Console,
        stop: StopRequest,
        resume_command: str,
        sink: SpanSink | None,
        groups: StageGroups | None = None,
    ) -> None:
        self._recipe, self._workload, self._place, self._ranks = recipe, workload, place, ranks
        self._precision, self._journal, self._checkpoints = precision, journal, checkpoints
        self._console, self._stop, self._sink = console, stop, sink
        self._resume_command = resume_command
        self._epochs = recipe.problem.epochs
        self._steps = workload.steps_per_epoch
        layout = layout_of(recipe, place.world_size)
        assert layout, "the number of ranks was checked before"
        self._layout = layout
        self._sharded = self._distributed() if recipe.is_sharded else None
        self._bare = workload.model if self._sharded else self._whole()
        model = step_model(self._bare, recipe.framework)
        self._optimizer = optimizer_of(recipe, workload, self._bare)
        self._rate = LearningRate(recipe.hyperparameters, recipe.global_batch, self._steps, self._epochs)
        self._staged = self._cut(groups) if groups else None
        self._updater = self._make_updater(model)
        if self._sharded:
            self._sharded.digest()
        # Loss and own_norm of the latest updates.
        self._seen = torch.zeros(_LOSSES_AT_ONCE, 2, dtype=torch.float64, device=place.device)
        self._first_epoch = 1
        # The epoch up to the checkpoint, over all ranks; and this rank's part of it since then.
        self._before = EpochTally()
        self._tally = EpochTally()
        self.attribution = Attribution()
        self._last_loss: float | None = None
        # Of the latest epoch, over all ranks.
        self._mean_loss: float | None = None
        # (step, what) of this rank's first value that is not finite. Gradients are only suspected: they count once a
        # loss or the weights are not finite either.
        self._suspected: tuple[int, str] | None = None
        self._not_finite: tuple[int, str] | None = None
        self._quality: float | None = None
        # Whether no step was done since a restart.
        self._is_recovering = False

    def _whole(self) -> nn.Module:
        """The whole model on this rank's device, with the weights of rank 0."""
        recipe, place, model = self._recipe, self._place, self._workload.model
        if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
            raise RecipeError(
                f"programming.parallel_mode: the workload of {recipe.benchmark} distributes its model (a parameter is "
                f"a DTensor), but the mode is {recipe.programming.parallel_mode}; use sharded"
            )
        to_memory_format(model.to(place.device), recipe, place.device)
        if place.world_size > 1:
            make_equal(model, self._ranks.world)
        return model

    @property
    def _part(self) -> nn.Module:
        """What this rank trains: the model, or its stage of it."""
        return self._staged.stage if self._staged else self._bare

    def _distributed(self) -> ShardedModel:
        # This imports torch's DTensor, which takes a second.
        from hpcai500.engine.sharded import ShardedModel

        return ShardedModel(self._recipe, self._workload.model, self._layout, self._place)

    def _cut(self, groups: StageGroups) -> StagedModel:
        # This imports torch's compiler, which takes two seconds.
        from hpcai500.engine.pipeline import StagedModel

        return StagedModel(self._recipe, self._workload, self._bare, groups, self._place, self._precision)

    def _make_updater(self, model: nn.Module) -> Updater:
        common: dict[str, Any] = {
            "workload": self._workload,
            "model": model,
            "optimizer": self._optimizer,
            "precision": self._precision,
            "passes": len(self._place.shares),
            "reducer": None,
            "stop": self._stop,
            "sink": None,
            # Set when training begins; before that, compilation may take long.
            "phase": lambda name: None,
            "graphs": step_graphs(self._recipe, self._workload, self._bare),
        }
        if self._sharded:
            first = self._place.rank % self._layout.ranks_per_replica == 0
            return ShardedUpdater(**common, world=self._place.communicator, counts_samples=first)
        if self._staged is None:
            return Updater(**common, passes_communicate=self._place.passes_communicate)
        return StagedUpdater(
            **common,
            pipe=self._staged.pipe,
            world=self._place.communicator,
            replicas=self._staged.groups.watched_replicas,
            micro_batches=self._recipe.programming.micro_batches,
        )

    def restore(self, checkpoint: Checkpoint, state: dict[str, Any]) -> tuple[int, int]:
        """Restore the state of `checkpoint`; returns its (epoch, step)."""
        if self._sharded:
            store = cast("ShardedCheckpointStore", self._checkpoints)
            self._sharded.restore(state, self._optimizer, store.reader(checkpoint))
        else:
            self._bare.load_state_dict(state["model"])
            whole = state["optimizer"]
            self._optimizer.load_state_dict(self._staged.own_state(whole, self._optimizer) if self._staged else whole)
        if own := state["statistics"]:
            for buffer, value in zip(running_statistics(self._part), own, strict=True):
                buffer.copy_(value)
        self._precision.restore(state["precision"])
        self._first_epoch = state["epoch"]
        self._before = EpochTally.from_state(state["tally"])
        self._quality = state["quality"]
        return self._first_epoch, self._before.steps

    def warm_up(self) -> WarmUpTimes:
        """Compile, warm up and choose the bucket size, before the clock starts.

        Raises:
            RunError: another rank is lost.
        """
        warm_up = WarmUp(self._updater, self._bare, self._ranks, self._recipe.communication, self._staged)
        if self._place.world_size > 1:
            if self._sharded:
                found = warm_up.with_shards()
            else:
                found = warm_up.with_stages() if self._staged else warm_up.with_ranks()
            self._updater.sink = self._sink
            if self._updater.reducer:
                self._updater.reducer.sink = self._sink
            return found
        on_gpu = self._place.device.type == "cuda"
        return warm_up.alone() if self._recipe.framework.compile or on_gpu else WarmUpTimes(0.0)

    def run(self, *, is_resumed: bool = False) -> None:
        """Train to the last epoch; `is_resumed` is whether another process began the run.

        Raises:
            NotFiniteError: a loss or a weight is not finite.
            RunError: a signal asked to stop, the disk is full, or another rank is lost.
            DataError: a sample cannot be read.
        """
        self._is_recovering = is_resumed
        self._console.start()
        self._updater.phase = self._ranks.phase
        for epoch in range(self._first_epoch, self._epochs + 1):
            if self._checkpoints:
                self._checkpoints.reserve()
            self._train_epoch(epoch)
            digest = self._check_weights(epoch)
            self._journal.event("replicas", {"epoch": epoch, "ranks": self._place.world_size, "digest": digest})
            quality = self._evaluate(epoch)
            self._before, self._tally = EpochTally(), EpochTally()
            problem = self._recipe.problem.model_dump()
            self._save(epoch + 1, at_target=reaches(quality, problem["target_quality"], better_of(problem)))

    @contextmanager
    def evaluation_mode(self) -> Iterator[nn.Module]:
        """The model as evaluations call it. For an ensemble, results are repeatable (`same_kernels`)."""
        # Not the compiled model: the last, short batch would be recompiled while the clock runs.
        self._bare.eval()
        repeatable = self._recipe.ensemble is not None
        # A sharded model would keep buffers that inference mode makes, and training could not use them.
        mode = torch.no_grad() if self._sharded else torch.inference_mode()
        with mode, self._precision.forward(), same_kernels() if repeatable else nullcontext():
            yield self._bare

    def close(self) -> None:
        if self._updater.reducer:
            self._updater.reducer.close()

    @property
    def between_hosts_bytes(self) -> int:
        """Bytes this rank sends to other hosts in one update: for all-reduces, by the topology, and between stages."""
        sums = self._updater.reducer.sent_between_nodes if self._updater.reducer else 0
        return sums + (self._updater.passes * self._staged.sent_bytes()[1] if self._staged else 0)

    @property
    def between_stages_bytes(self) -> int:
        """Bytes this rank sends to other stages of its model in one update."""
        return self._updater.passes * self._staged.sent_bytes()[0] if self._staged else 0

    @property
    def _step(self) -> int:
        """Number of finished updates of this epoch."""
        return self._before.steps + self._tally.steps

    def _train_epoch(self, epoch: int) -> None:
        self._journal.event("epoch_start", {"epoch": epoch, "step": self._step})
        self._updater.model.train()
        batches = self._workload.training_batches(epoch, self._step)
        try:
            before = time.perf_counter()
            while self._step < self._steps:
                self._update(epoch, batches)
                now = time.perf_counter()
                self._tally.seconds += now - before
                before = now
                if self._stop.agreed:
                    self._read_losses()
                    self._require_finite(epoch, self._not_finite)
                    self._interrupt(epoch, self._stop.agreed.name)
        finally:
            batches.close()
        self._read_losses()
        self._require_finite(epoch, self._not_finite)
        self._tally.seconds += time.perf_counter() - before
        self.attribution.add(self._tally)
        summary = self._whole_tally().summary()
        self._mean_loss = summary["loss"]
        self._journal.event("epoch_stop", {"epoch": epoch, **summary})

    def _update(self, epoch: int, batches: Any) -> None:
        number = (epoch - 1) * self._steps + self._step
        place = self._tally.steps % _LOSSES_AT_ONCE
        rate = self._rate.at(number)
        loss = self._updater.update(number, number / self._steps, rate, batches, self._tally)
        self._seen[place, 0] = loss
        self._seen[place, 1] = self._updater.own_norm
        if self._tally.steps % _LOSSES_AT_ONCE == 0 or self._updater.is_alarmed:
            self._read_losses()
        if self._updater.is_alarmed:
            self._require_finite(epoch, self._not_finite)
        if self._is_recovering:
            self._is_recovering = False
            self._journal.event("first_step", {"epoch": epoch, "step": self._step})
        self._journal.step(self._step, self._last_loss)
        self._console.step(self._status(epoch))

    def _read_losses(self) -> None:
        """Read the losses since the last call. One that is not finite raises an alarm, so that all ranks stop together.

        Losses and gradient norms are this rank's own (with stages: its replica's), before any averaging: the rank of
        the first one that is not finite is where the problem began.
        """
        before = time.perf_counter()
        seen = self._seen.tolist()
        # On a GPU the loop waits here for the device.
        self._tally.spend(time.perf_counter() - before)
        for step in range(self._tally.losses_seen, self._tally.steps):
            loss, norm = seen[step % _LOSSES_AT_ONCE]
            place = self._before.steps + step
            if math.isfinite(loss):
                self._tally.loss_sum += loss
                self._last_loss = loss
            else:
                self._not_finite = self._not_finite or self._suspected or (place, f"the loss is {loss}")
                self._updater.alarm = True
            is_sound = math.isfinite(norm)
            self._suspected = None if is_sound else self._suspected or (place, "gradients are not finite")
        self._tally.losses_seen = self._tally.steps

    def _check_weights(self, epoch: int) -> str | None:
        """Require weights that are finite and the same on all ranks: a run cannot be resumed from any others.

        Assembles a model that is in stages, and averages its running statistics. Returns the digest of the weights,
        None for one rank.
        """
        if self._sharded:
            return self._check_shards(epoch)
        if self._staged:
            average_statistics(self._part, self._staged.groups.watched_replicas)
            self._staged.make_whole()
        tensors = [tensor for tensor in self._bare.state_dict().values() if tensor.is_floating_point()]
        is_finite = bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())
        mine = None if is_finite else self._suspected or (self._step, "weights are not finite")
        self._require_finite(epoch, mine)
        if not self._staged:
            average_statistics(self._bare, self._place.communicator)
        return require_equal(self._bare, self._place.communicator)

    def _check_shards(self, epoch: int) -> str | None:
        """As `_check_weights`; no rank is named for weights, because a rank's shard comes from the samples of all."""
        assert self._sharded
        world = self._place.communicator
        is_finite = all(world.gather_objects(self._sharded.is_finite()))
        self._require_finite(epoch, None if is_finite else (self._step, "weights are not finite"))
        average_statistics(self._bare, world)
        return self._sharded.digest()

    def _require_finite(self, epoch: int, mine: tuple[int, str] | None) -> None:
        """End the run on all ranks if one of them has a value that is not finite.

        Averaging spreads such a value to all ranks, at once or one step later. If it began on one rank (with stages:
        in one replica, on one host), or on one host only, the cause may be a device and not the recipe: then the event
        is `not_finite`, and not `diverged`, which is final. `mine` is this rank's first such step, and what was not
        finite.

        Raises:
            NotFiniteError: a rank has such a value.
        """
        world = self._place.communicator
        found = world.gather_objects((mine, device_name(self._place.device)))
        steps = [value[0] for value, _ in found if value is not None]
        if not steps:
            return
        step = min(steps)
        first = [rank for rank, (value, _) in enumerate(found) if value is not None and value[0] == step]
        what = next(value[1] for value, _ in found if value is not None and value[0] == step)
        hosts = {world.hosts[rank] for rank in first}
        advice = self._advice(epoch, step)
        models = {self._layout.replica(rank) for rank in first}
        if len(first) < world.size and len(hosts) == 1 and (len(models) == 1 or hosts != set(world.hosts)):
            host, devices = hosts.pop(), [found[rank][1] for rank in first]
            event = {"epoch": epoch, "step": step, "what": what, "ranks": first, "host": host, "devices": devices}
            self._journal.event("not_finite", event)
            raise NotFiniteError(
                f"{what} at epoch {epoch}, step {step} on {name_ranks(first)} alone, host {host}, "
                f"{', '.join(sorted(set(devices)))}: all other ranks were finite then, {FAULTY_DEVICE}: "
                f"run `hpcai500 doctor` on {host}, and go on without it; if another host gives the same, {advice}"
            )
        self._journal.event("diverged", {"epoch": epoch, "step": step, "rank": first[0], "what": what})
        where = name_ranks(first) if len(first) == 1 else f"{len(first)} of {world.size} ranks"
        raise NotFiniteError(f"{what} at epoch {epoch}, step {step} on {where}: {advice}")

    def _advice(self, epoch: int, step: int) -> str:
        rate = self._rate.at((epoch - 1) * self._steps + step)
        less = f"lower hyperparameters.base_learning_rate (the rate was {rate:g})"
        longer = "lengthen hyperparameters.warmup_epochs"
        if self._recipe.accelerator.precision == "fp32":
            return f"{less} or {longer}"
        return f"{less}, {longer}, or use accelerator.precision=fp32"

    def _evaluate(self, epoch: int) -> float:
        self._journal.event("eval_start", {"epoch": epoch})
        start = time.perf_counter()
        self._ranks.phase(TOGETHER if self._sharded else EVALUATING)
        with library_errors(self._place.communicator.library, "an evaluation"), self.evaluation_mode() as model:
            evaluation = self._workload.evaluate(model, lambda samples: self._in_evaluation(epoch, samples))
        seconds = time.perf_counter() - start
        self._require_quality(epoch, evaluation.value)
        self._quality = evaluation.value
        metric = self._recipe.problem.metric
        value = {"epoch": epoch, "metric": metric, "value": evaluation.value, "samples": evaluation.samples}
        if evaluation.per_class:
            value["per_class"] = dict(evaluation.per_class)
        self._journal.event("eval_accuracy", {**value, "seconds": round(seconds, 6)})
        self._journal.event("eval_stop", {"epoch": epoch})
        status = replace(self._status(epoch), loss=self._mean_loss)
        self._console.epoch_done(status, self._tally.seconds + seconds, evaluation.per_class)
        return evaluation.value

    def _require_quality(self, epoch: int, value: float) -> None:
        """Require a quality that records can hold, the same on all ranks, so that all of them raise the error.

        Raises:
            EnvironmentLacksError: ranks have different values.
            RunError: it is not finite, or outside the range of its problem.
        """
        values = self._place.communicator.gather_objects(repr(value))
        if different := [rank for rank, other in enumerate(values) if other != values[0]]:
            raise broken_workload(
                self._recipe.benchmark,
                f"its workload's evaluate gives {values[0]} on rank 0, but {values[different[0]]} on rank "
                f"{different[0]}, and must give the same on all ranks",
            )
        is_loss = better_of(self._recipe.problem.model_dump()) == "lower"
        if 0 <= value <= 1 or (is_loss and 0 <= value < math.inf):
            return
        expected = "a finite number of 0 or more" if is_loss else "0 to 1"
        hint = "" if is_loss else "; a benchmark whose metric is a loss needs a LossProblem (docs/plugins.md)"
        raise RunError(
            f"evaluation after epoch {epoch}: {self._recipe.problem.metric} is {value:g}, expected {expected}: correct "
            f"the workload's evaluate, or {self._advice(epoch, self._step - 1)}{hint}"
        )

    def _in_evaluation(self, epoch: int, samples: int) -> None:
        self._ranks.progress()
        self._console.evaluating(self._status(epoch), samples)
        # Several ranks must stop at the same place: after their next update.
        if self._stop.signal and self._place.world_size == 1:
            self._interrupt(epoch, self._stop.signal.name)

    def _interrupt(self, epoch: int, name: str) -> None:
        step = self._step
        # Averaged once more at the end of the epoch, they would differ in the last bit from those of a run in one go.
        statistics = collect_statistics(self._part, self._place.communicator)
        self._check_weights(epoch)
        times = self._whole_tally().times()
        self._journal.event("interrupted", {"signal": name, "epoch": epoch, "step": step, **times})
        self._save(epoch, statistics)
        # Wait for rank 0: a launcher that sees another rank end may kill it while it writes.
        self._place.communicator.barrier()
        raise StoppedError(
            f"stopped by {name} at epoch {epoch}, step {step}; nothing is lost: go on with `{self._resume_command}`"
        )

    def _whole_tally(self) -> EpochTally:
        """The epoch so far, over all ranks; all ranks call it."""
        return self._before.merged(self._place.communicator.gather_objects(self._tally.state()))

    def _save(self, epoch: int, statistics: Statistics | None = None, *, at_target: bool = False) -> None:
        """Save what resumes in `epoch`; `statistics` are those of each rank if it has begun."""
        tally = self._whole_tally()
        if self._sharded:
            learnt = self._sharded.state(self._optimizer)
        else:
            whole = self._staged.whole_state(self._optimizer) if self._staged else self._optimizer.state_dict()
            learnt = {"model": self._bare.state_dict(), "optimizer": whole}
        if self._checkpoints is None:
            return
        state = {
            **learnt,
            "precision": self._precision.state(),
            "epoch": epoch,
            "tally": tally.state(),
            "quality": self._quality,
            "statistics": statistics or [],
        }
        self._ranks.phase(WRITING)
        checkpoint = self._checkpoints.save(state, epoch, tally.steps, at_target=at_target)
        self._journal.event("checkpoint", asdict(checkpoint))
        self._checkpoints.prune()

    def _status(self, epoch: int) -> Status:
        return Status(epoch, self._epochs, self._step, self._steps, self._last_loss, self._quality)
