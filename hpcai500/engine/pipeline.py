"""Pipeline parallelism: a model cut into stages on several ranks, and one update of it.

A model that is a chain of parts is cut so that stages have about equal work (by FLOPs). Batches pass through the stages
in micro-batches (torch.distributed.pipelining); gradients are summed over the ranks that hold the same stage.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from hpcai500.comm.communicator import Communicator, as_run_error
from hpcai500.comm.liveness import COMPUTING, WAITING
from hpcai500.engine.evidence import make_equal
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Neighbours, StageGroups
from hpcai500.errors import CommunicationError, RecipeError
from hpcai500.layers import Recipe
from hpcai500.measure.flops import FlopsCount, count_flops
from hpcai500.plugins import broken_workload
from hpcai500.workloads.base import Place, Workload
from hpcai500.workloads.models.parts import Chain, Chained, Part

# ----------------------------------------------------------------------------------------------------
# Where the chain is cut.


def work_of(parts: Sequence[Part], count: FlopsCount) -> list[float]:
    """Training FLOPs of each part for one sample, by the same count that results use."""
    return [
        math.fsum(
            operator.training_flops
            for operator in count.operators
            if any(f"{operator.name}.".startswith(f"{name}.") for name in part.names)
        )
        for part in parts
    ]


def cut(work: Sequence[float], stages: int) -> list[range]:
    """Cut parts with this `work` into `stages` consecutive ranges so that the largest has as little work as possible.

    Raises:
        RecipeError: there are fewer parts than stages.
    """
    if stages > len(work):
        raise RecipeError(
            f"programming.stages: this model can be cut into at most {len(work)} parts, got {stages}; use fewer"
        )
    sums = [0.0, *accumulate(work)]
    # Dynamic programming: `best[start]` is (work of the largest stage, end of the first stage) for the parts from
    # `start` on, cut into the current number of stages.
    best = [(sums[-1] - done, len(work)) for done in sums]
    ends = [best]
    for count in range(2, stages + 1):
        best = [
            min(
                (max(sums[end] - sums[start], ends[-1][end][0]), end) for end in range(start + 1, len(work) - count + 2)
            )
            if start <= len(work) - count
            else (math.inf, len(work))
            for start in range(len(work) + 1)
        ]
        ends.append(best)
    found, start = [], 0
    for best in reversed(ends):
        found.append(range(start, best[start][1]))
        start = best[start][1]
    return found


# ----------------------------------------------------------------------------------------------------
# One rank's stage, and how batches pass all stages.


class StageModule(nn.Module):
    """Consecutive parts of a chain, computed in the run's precision; outputs are contiguous, as sending requires."""

    def __init__(self, parts: Sequence[Part], precision: Precision, *, channels_last: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part.module for part in parts)
        self._precision, self._channels_last = precision, channels_last

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        with self._precision.forward():
            current = tuple(self._laid_out(tensor) for tensor in tensors)
            for part in self.parts:
                outputs = part(*current)
                current = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        # A tensor that is passed on unchanged needs a view: autograd finds no path to one that is input and output.
        return tuple(tensor.view_as(tensor).contiguous() for tensor in current)

    def _laid_out(self, tensor: Tensor) -> Tensor:
        if not self._channels_last or tensor.ndim != 4:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)


class Pipe:
    """Passes batches forward and back through all stages of one model; all ranks of its column make the same calls.

    `own` are the parts that this rank computes; `example` is an input batch of the first part, with any values.

    Attributes:
        waited_seconds: waiting for other stages, in `run` since `begin`. Measured on a CPU only; on a GPU, which
            computes asynchronously, it stays 0.
        phase: called with the phase that begins.
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
        # With fewer micro-batches than stages, 1F1B is not defined.
        schedule = Schedule1F1B if micro_batches >= column.size else ScheduleGPipe
        # Losses are already shares of the mean and need no scaling.
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
        self.waited_seconds = 0.0

    def run(self, payload: Any, passes: int) -> float:
        """Do one of the `passes` of an update; gradients are added to those of this stage's parameters.

        The first stage gives the batch's payload, the others None. Returns the share of the update's loss on the last
        stage, 0 on the others.

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
        """Bytes this rank sends to other stages in one pass; with the `hosts` of all stages, only to other hosts."""
        here = self._column.rank
        return self._micro_batches * sum(
            size
            for other, size in zip((here + 1, here - 1), self._sent_bytes, strict=True)
            if size and (hosts is None or hosts[other] != hosts[here])
        )

    def _loss(self, outputs: tuple[Tensor, ...] | Tensor, places: Tensor) -> Tensor:
        """Scaled share of the micro-batch with the samples `places` in the update's mean loss."""
        whole = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        with self._busy(), self._precision.forward():
            targets = self._chain.pick(self._targets, slice(int(places[0]), int(places[-1]) + 1))
            loss = self._chain.loss(whole, targets) / self._divisor
            self._losses.append(loss.detach())
            return self._precision.scaled(loss)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Time the body, in which this rank computes, and call `phase`; outside of it the rank waits for others."""
        start = time.perf_counter()
        self.phase(COMPUTING)
        try:
            yield
        except Exception as error:
            # torch wraps it in an error that looks like a lost rank.
            self._failure = self._failure or error.__cause__ or error
            raise
        self.phase(WAITING)
        self._busy_seconds += time.perf_counter() - start

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise this rank's own failure, if any, instead of torch's communication error."""
        try:
            yield
        except CommunicationError as error:
            if self._failure:
                raise self._failure from error
            raise


class _WatchedStage(PipelineStage):
    """torch's stage, which computes inside the context `busy`."""

    busy: Callable[[], Any]

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        with self.busy():
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        with self.busy():
            return super().backward_one_chunk(*arguments, **named)


def _shapes(
    before: StageModule, stage: StageModule, example: Tensor, samples: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Empty tensors like the inputs and outputs of `stage` for `samples` samples.

    They are found by passing one sample in evaluation mode, which does not change running statistics.
    """
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


# ----------------------------------------------------------------------------------------------------
# The whole model and its stages.


class StagedModel:
    """The stage of this rank, and the conversion between stages and the whole model.

    Every rank holds the weights of the whole model, which take little memory, but gradients, optimizer state and
    activations only of its own stage.

    Raises:
        RecipeError: the workload's model cannot be cut, or not into so many stages.
        EnvironmentLacksError: names in the workload's chain are not those of the parts' modules.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Workload,
        whole: nn.Module,
        groups: StageGroups,
        place: Place,
        precision: Precision,
    ) -> None:
        chain = _chain_of(recipe, workload)
        self._whole, self.groups = whole, groups
        self._column, self.layout = groups.neighbours.column, groups.layout
        if problem := next(_wrong_names(chain.parts, whole), None):
            raise broken_workload(recipe.benchmark, f"its workload's chain(): {problem}")
        model, example = workload.counted()
        ranges = cut(work_of(chain.parts, count_flops(model, *example)), self.layout.stages)
        self._stages = [nn.ModuleList(part.module for part in chain.parts[own.start : own.stop]) for own in ranges]
        _require_all(whole, self._stages)
        self.pipe = Pipe(
            chain,
            ranges[self._column.rank],
            groups.neighbours,
            precision,
            chain.inputs(workload.blank_payload()).to(place.device),
            micro_batches=recipe.programming.micro_batches,
            channels_last=recipe.framework.channels_last,
        )
        self.stage: nn.Module = self.pipe.stage

    def sent_bytes(self) -> tuple[int, int]:
        """Bytes this rank sends to other stages in one pass, and the part of them that goes to other hosts."""
        return self.pipe.sent_bytes(), self.pipe.sent_bytes(self._column.hosts)

    def make_whole(self) -> None:
        """Update the whole model on this rank with the trained weights and buffers of all stages.

        Raises:
            RunError: another rank is lost.
        """
        for number, stage in enumerate(self._stages):
            make_equal(stage, self._column, root=number)

    def whole_state(self, optimizer: optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state of all stages, as in one process; all ranks of a model call it.

        `optimizer` has the parameters of the whole model, and has updated those of this rank's stage.

        Raises:
            RunError: another rank is lost.
        """
        own = optimizer.state_dict()
        state: dict[int, Any] = {}
        for root in range(self._column.size):
            state.update(_shared(own["state"], self._column, root, next(self._whole.parameters()).device))
        return {**own, "state": dict(sorted(state.items()))}

    def own_state(self, whole: Mapping[str, Any], optimizer: optim.Optimizer) -> dict[str, Any]:
        """The part of a `whole` state, from `whole_state` or from one process, that belongs to this rank's stage."""
        mine = {id(parameter) for parameter in self.stage.parameters()}
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        own = {number for number, parameter in enumerate(parameters) if id(parameter) in mine}
        return {**whole, "state": {number: value for number, value in whole["state"].items() if number in own}}


def _chain_of(recipe: Recipe, workload: Workload) -> Chain:
    if not isinstance(workload, Chained):
        raise RecipeError(
            f"programming.parallel_mode: the model of {recipe.benchmark} cannot be cut into stages (its workload has "
            "no chain()); use data"
        )
    return workload.chain()


def _wrong_names(parts: Sequence[Part], whole: nn.Module) -> Iterator[str]:
    """What is wrong with the names of `parts`: operations would be counted for another part, or for none."""
    names = list(whole.named_parameters(remove_duplicate=False))
    known = {name for name, _ in [*whole.named_modules(), *names]}
    for number, part in enumerate(parts, 1):
        if strange := [name for name in part.names if name not in known]:
            yield f"part {number} names {strange[0]}, which is not in the model"
        named = {id(one) for full, one in names if any(f"{full}.".startswith(f"{name}.") for name in part.names)}
        own = {id(one) for one in part.module.parameters()}
        for full, parameter in names:
            if id(parameter) in named - own:
                yield f"part {number} names {full}, which its module lacks"
            if id(parameter) in own - named:
                yield f"part {number} has {full}, but does not name its module"


def _require_all(whole: nn.Module, stages: list[nn.ModuleList]) -> None:
    """Refuse stages that lack a tensor of the model (it would never be trained) or share one (trained twice)."""
    expected = [id(tensor) for tensor in [*whole.parameters(), *whole.buffers()]]
    found = [id(tensor) for stage in stages for tensor in [*stage.parameters(), *stage.buffers()]]
    if sorted(expected) != sorted(found):
        raise RecipeError(
            f"programming.parallel_mode: the parts of this model hold {len(found)} of its {len(expected)} tensors: "
            "each must be in exactly one part; use data"
        )


def _shared(state: Mapping[int, Any], column: Communicator, root: int, device: torch.device) -> dict[int, Any]:
    """The optimizer state of member `root`, on all members; its tensors are broadcast as tensors, not pickled."""
    mine = column.rank == root
    described = {number: _described(value) for number, value in state.items()} if mine else None
    plain = column.broadcast_object(described, root)
    found: dict[int, Any] = {}
    for number, description in plain.items():
        values = {key: value for key, value in description.items() if not isinstance(value, _Spec)}
        for key, form in description.items():
            if isinstance(form, _Spec):
                where = device if form.on_device else torch.device("cpu")
                tensor = state[number][key].detach().contiguous() if mine else form.empty(where)
                column.broadcast(tensor, root)
                values[key] = tensor
        found[number] = values
    return found


@dataclass(frozen=True)
class _Spec:
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_device: bool

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _described(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _Spec(tuple(value.shape), value.dtype, value.device.type != "cpu") if isinstance(value, Tensor) else value
        for key, value in values.items()
    }
