"""One rank's stage of a model, and how batches pass all stages: torch.distributed.pipelining."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from hpcai500.comm.failures import as_run_error
from hpcai500.comm.monitor_rules import COMPUTING, WAITING
from hpcai500.engine.precision import Precision
from hpcai500.engine.stage_groups import Neighbours
from hpcai500.errors import CommunicationError
from hpcai500.workloads.chains import Chain
from hpcai500.workloads.models.parts import Part


class StageModule(nn.Module):
    """Consecutive parts of a chain, computed in the run's precision; tensors are contiguous where they are sent."""

    def __init__(self, parts: Sequence[Part], precision: Precision, *, channels_last: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part.module for part in parts)
        self._precision, self._channels_last = precision, channels_last

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the stage before sent -> what goes on to the next."""
        with self._precision.forward():
            current = tuple(self._laid_out(tensor) for tensor in tensors)
            for part in self.parts:
                outputs = part(*current)
                current = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        # A tensor that only passes through must not be its own gradient's root: autograd would see no way to it.
        return tuple(tensor.view_as(tensor).contiguous() for tensor in current)

    def _laid_out(self, tensor: Tensor) -> Tensor:
        if not self._channels_last or tensor.ndim != 4:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)


class Pipe:
    """Passes batches forward and back through all stages of one model; every rank of its column calls alike.

    Args:
        chain: the model.
        own: which of its parts this rank computes.
        neighbours: the ranks of this model.
        precision: the arithmetic.
        example: a batch as the first part takes it; values do not matter.
        micro_batches: in how many parts a batch passes.
        channels_last: memory layout of images.

    Attributes:
        stage: the module of this rank.
        waited_seconds: in `run` since `begin`: for other stages, and for what they send. On a CPU; a GPU is not waited
            for, so there it stays 0.
        phase: told what the rank is doing.
    """

    def __init__(
        self,
        chain: Chain,
        own: range,
        neighbours: Neighbours,
        precision: Precision,
        example: Tensor,
        *,
        micro_batches: int,
        channels_last: bool,
    ) -> None:
        column = neighbours.column
        self._chain, self._column, self._precision = chain, column, precision
        self._micro_batches, self._samples = micro_batches, example.shape[0]
        self.is_first, self.is_last = column.rank == 0, column.rank == column.size - 1
        self.stage = StageModule(chain.parts[own.start : own.stop], precision, channels_last=channels_last)
        before = StageModule(chain.parts[: own.start], precision, channels_last=channels_last)
        inputs, outputs = _shapes(before, self.stage, example[:1], self._samples // micro_batches)
        self._stage = _WatchedStage(
            self.stage,
            column.rank,
            column.size,
            example.device,
            input_args=inputs,
            output_args=outputs,
            group=neighbours.process_group,
        )
        self._stage.busy = self._busy
        # With fewer micro-batches than stages, one forward, one backward by turns is not defined.
        schedule = Schedule1F1B if micro_batches >= column.size else ScheduleGPipe
        # Losses are already shares of the mean: nothing is left to be scaled.
        self._schedule = schedule(self._stage, micro_batches, loss_fn=self._loss, scale_grads=False)
        self._on_cpu = example.device.type == "cpu"
        self._targets: Any = None
        self._losses: list[Tensor] = []
        self._failure: BaseException | None = None
        self._divisor = 1.0
        self._busy_seconds = 0.0
        self.waited_seconds = 0.0
        self.phase: Callable[[str], None] = lambda name: None
        self._sent_bytes = _bytes_of(outputs) if not self.is_last else 0, _bytes_of(inputs) if not self.is_first else 0

    def begin(self) -> None:
        """A new update."""
        self.waited_seconds = 0.0

    def run(self, payload: Any, passes: int) -> float:
        """One backward pass: gradients are added to those of this stage's parameters.

        Args:
            payload: of the workload's batch, on the first stage; None on the others.
            passes: backward passes of this update, whose mean counts.

        Returns:
            The share of the update's loss, on the last stage; 0 on the others.

        Raises:
            RunError: another rank is lost.
        """
        start, self._busy_seconds = time.perf_counter(), 0.0
        self._divisor = float(self._micro_batches * passes)
        self._targets = self._column.broadcast_object(self._chain.targets(payload) if self.is_first else None)
        inputs = (self._chain.inputs(payload),) if self.is_first else ()
        self._losses = []
        self.phase(WAITING)
        with self._own_errors(), as_run_error(self._column.library, "passing a batch through the stages"):
            places = torch.arange(self._samples) if self.is_last else None
            self._schedule.step(*inputs, target=places, return_outputs=False)
        self.phase(COMPUTING)
        self._targets = None
        if self._on_cpu:
            self.waited_seconds += max(0.0, time.perf_counter() - start - self._busy_seconds)
        return math.fsum(loss.item() for loss in self._losses)

    def sent_bytes(self, hosts: Sequence[str] | None = None) -> int:
        """What this rank sends to other stages in one backward pass.

        Args:
            hosts: of the column, by stage: then only what goes to other hosts.
        """
        here = self._column.rank
        return self._micro_batches * sum(
            size
            for other, size in zip((here + 1, here - 1), self._sent_bytes, strict=True)
            if size and (hosts is None or hosts[other] != hosts[here])
        )

    def _loss(self, outputs: tuple[Tensor, ...] | Tensor, places: Tensor) -> Tensor:
        """Of one micro-batch: its share of the update's mean, scaled as the precision wants gradients."""
        whole = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        with self._busy(), self._precision.forward():
            targets = self._chain.pick(self._targets, slice(int(places[0]), int(places[-1]) + 1))
            loss = self._chain.loss(whole, targets) / self._divisor
            self._losses.append(loss.detach())
            return self._precision.scaled(loss)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Within, this rank computes; otherwise, it waits for others."""
        start = time.perf_counter()
        self.phase(COMPUTING)
        try:
            yield
        except Exception as error:
            # torch makes it an error of its own, which would look as if another rank were lost.
            self._failure = self._failure or error.__cause__ or error
            raise
        self.phase(WAITING)
        self._busy_seconds += time.perf_counter() - start

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """What goes wrong while this rank computes is told as what it is."""
        try:
            yield
        except CommunicationError as error:
            if self._failure:
                raise self._failure from error
            raise


class _WatchedStage(PipelineStage):
    """Tells when it computes."""

    busy: Callable[[], Any]

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """As torch's."""
        with self.busy():
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """As torch's."""
        with self.busy():
            return super().backward_one_chunk(*arguments, **named)


def _shapes(
    before: StageModule, stage: StageModule, example: Tensor, samples: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What a stage takes and gives, for `samples`: found with one, which leaves running statistics as they are."""
    modes = [(module, module.training) for part in (before, stage) for module in part.modules()]
    before.eval()
    stage.eval()
    is_first = not before.parts
    with torch.no_grad():
        inputs = (example,) if is_first else before(example)
        outputs = stage(*inputs)
    for module, training in modes:
        module.training = training
    return (
        tuple(_like(tensor, samples, learns=not is_first) for tensor in inputs),
        tuple(_like(tensor, samples, learns=True) for tensor in outputs),
    )


def _like(tensor: Tensor, samples: int, *, learns: bool) -> Tensor:
    return torch.empty(samples, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device, requires_grad=learns)


def _bytes_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
