"""A model whose stages are trained by several ranks: made whole wherever the run asks for all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim

from hpcai500.comm.base import Communicator
from hpcai500.engine.cutting import cut, work_of
from hpcai500.engine.pipe import Pipe
from hpcai500.engine.precision import Precision
from hpcai500.engine.replicas import make_equal
from hpcai500.engine.stage_groups import StageGroups
from hpcai500.errors import RecipeError
from hpcai500.layers import Recipe
from hpcai500.measure.flops import count_flops
from hpcai500.workloads.base import Place, Workload
from hpcai500.workloads.chains import Chain, Chained
from hpcai500.workloads.models.parts import Part


class StagedModel:
    """The stage of this rank, and the way from all stages to the whole model and back.

    Every rank holds the whole model's weights, which count for little; gradients, the optimizer's state and what
    backward passes keep are of its own stage alone.

    Args:
        recipe: how many stages and micro-batches.
        workload: whose model is cut.
        whole: that model, on the device.
        groups: of this rank.
        place: device and communicator.
        precision: the arithmetic.

    Attributes:
        layout: who holds which part.
        pipe: passes batches.
        stage: the part that is trained here.

    Raises:
        RecipeError: the workload's model cannot be cut, or not into as many stages.
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
        self._whole, self._groups = whole, groups
        self._column, self.layout = groups.neighbours.column, groups.layout
        ranges = cut(work_of(chain.parts, _count(workload)), self.layout.stages)
        self._stages = [_modules(chain.parts[own.start : own.stop]) for own in ranges]
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

    @property
    def replicas(self) -> Communicator:
        """The ranks that hold the same stage, for the training thread."""
        return self._groups.watched_replicas

    @property
    def unwatched_replicas(self) -> Communicator:
        """The same, for other threads."""
        return self._groups.replicas

    def sent_bytes(self) -> tuple[int, int]:
        """What this rank sends to other stages in one backward pass, and the part of it that goes to other hosts."""
        return self.pipe.sent_bytes(), self.pipe.sent_bytes(self._column.hosts)

    def make_whole(self) -> None:
        """Give the whole model on this rank the weights and buffers that each of its stages has learnt.

        Raises:
            RunError: another rank is lost.
        """
        for number, stage in enumerate(self._stages):
            make_equal(stage, self._column, root=number)

    def whole_state(self, optimizer: optim.Optimizer) -> dict[str, Any]:
        """The state of an optimizer over the whole model, as one process would have it; all ranks of a model call it.

        Args:
            optimizer: over the whole model, of which it has updated this rank's stage.

        Raises:
            RunError: another rank is lost.
        """
        own = optimizer.state_dict()
        state: dict[int, Any] = {}
        for root in range(self._column.size):
            state.update(_shared(own["state"], self._column, root, next(self._whole.parameters()).device))
        return {**own, "state": dict(sorted(state.items()))}

    def own_state(self, whole: Mapping[str, Any], optimizer: optim.Optimizer) -> dict[str, Any]:
        """Of the state that `whole_state` made, or one process, the part of this rank's stage."""
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


def _count(workload: Workload) -> Any:
    model, example = workload.counted()
    return count_flops(model, *example)


def _modules(parts: tuple[Part, ...]) -> nn.Module:
    return nn.ModuleList(part.module for part in parts)


def _require_all(whole: nn.Module, stages: list[nn.Module]) -> None:
    """A tensor in no stage would never learn, and one in two would learn apart."""
    wanted = [id(tensor) for tensor in [*whole.parameters(), *whole.buffers()]]
    found = [id(tensor) for stage in stages for tensor in [*stage.parameters(), *stage.buffers()]]
    if sorted(wanted) != sorted(found):
        raise RecipeError(
            f"programming.parallel_mode: the parts of this model hold {len(found)} of its {len(wanted)} tensors: each "
            "must be in exactly one; use data"
        )


def _shared(state: Mapping[int, Any], column: Communicator, root: int, device: torch.device) -> dict[int, Any]:
    """The optimizer's state that member `root` has; tensors travel as tensors, whatever their size."""
    mine = column.rank == root
    described = {number: _described(value) for number, value in state.items()} if mine else None
    plain = column.broadcast_object(described, root)
    found: dict[int, Any] = {}
    for number, description in plain.items():
        values = {key: value for key, value in description.items() if not isinstance(value, _Form)}
        for key, form in description.items():
            if isinstance(form, _Form):
                where = device if form.on_device else torch.device("cpu")
                tensor = state[number][key].detach().contiguous() if mine else form.empty(where)
                column.broadcast(tensor, root)
                values[key] = tensor
        found[number] = values
    return found


@dataclass(frozen=True)
class _Form:
    """What is to be known of a tensor before it arrives."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_device: bool

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _described(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _Form(tuple(value.shape), value.dtype, value.device.type != "cpu") if isinstance(value, Tensor) else value
        for key, value in values.items()
    }
