"""A model as a chain of parts, for cutting it into stages (model and pipeline parallelism)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from hpcai500.workloads.models.detector import FasterRCNN, Targets
from hpcai500.workloads.models.resnet import ResNet, ResNetStages


@dataclass(frozen=True)
class Part:
    """A link of the chain.

    Attributes:
        module: takes the outputs of the previous part, as positional tensors whose first dimension is samples, and
            returns one tensor or a tuple of several. It shares its parameters with the model.
        names: modules of the model in this part: each parameter and buffer of the model is in exactly one part.
    """

    module: nn.Module
    names: tuple[str, ...]


def classifier_parts(model: ResNet) -> tuple[Part, ...]:
    """Stem, each residual block, pool and classifier."""
    head = Part(nn.Sequential(model.avgpool, nn.Flatten(1), model.fc), ("fc",))
    blocks = (
        Part(block, (f"{stage}.{number}",))
        for stage in model.stage_names
        for number, block in enumerate(model.get_submodule(stage).children())
    )
    return (_stem(model, ""), *blocks, head)


def detector_parts(model: FasterRCNN) -> tuple[Part, ...]:
    """Stem, each residual block, pyramid, the two stages; outputs of finished stages are passed on to the pyramid."""
    body = model.backbone.body
    blocks = (
        # The input of a later stage's first block is a level of the pyramid; the stem's output is not.
        Part(_Beside(block, keeps=place > 0 and number == 0), (f"backbone.body.{stage}.{number}",))
        for place, stage in enumerate(body.stage_names)
        for number, block in enumerate(body.get_submodule(stage).children())
    )
    pyramid = Part(_Merged(model.backbone.fpn), ("backbone.fpn",))
    heads = Part(_Heads(model.rpn, model.roi_heads), ("rpn", "roi_heads"))
    return (_stem(body, "backbone.body."), *blocks, pyramid, heads)


def _stem(body: ResNetStages, prefix: str) -> Part:
    stem = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool)
    return Part(stem, (f"{prefix}conv1", f"{prefix}bn1"))


class _Beside(nn.Module):
    """Runs a block on the last of several tensors and passes the others on.

    With `keeps`, the block's input, the output of a finished stage, is also passed on.
    """

    def __init__(self, block: nn.Module, *, keeps: bool) -> None:
        super().__init__()
        self.block, self._keeps = block, keeps

    def forward(self, *before: Tensor) -> tuple[Tensor, ...]:
        """The outputs of finished stages and of the previous block -> the same, with this block's output."""
        kept = before if self._keeps else before[:-1]
        return (*kept, self.block(before[-1]))


class _Merged(nn.Module):
    """The feature pyramid, with tensors as arguments instead of a list."""

    def __init__(self, pyramid: nn.Module) -> None:
        super().__init__()
        self.pyramid = pyramid

    def forward(self, *stages: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.pyramid(stages))


class _Heads(nn.Module):
    """The place of the proposal and detection heads in the chain; they are computed in the loss."""

    def __init__(self, rpn: nn.Module, roi_heads: nn.Module) -> None:
        super().__init__()
        self.rpn, self.roi_heads = rpn, roi_heads

    def forward(self, *levels: Tensor) -> tuple[Tensor, ...]:
        """The levels, unchanged."""
        return levels


def static_parts(model: nn.Module, ranks: int) -> tuple[str, ...]:
    """Names of modules of `model` in the order of their calls, for training by `ranks`; "" is the model itself.

    Gradients of a part are all ready at once, when its backward graph has run. One rank does not send them and uses
    parts as large as possible. Several ranks use stages, so that the all-reduce of one stage overlaps the backward pass
    of the next; the few kernels of the stem and the classifier are then launched one by one. An unknown model is one
    part.
    """
    match model:
        case ResNet():
            return tuple(model.stage_names) if ranks > 1 else ("",)
        case FasterRCNN():
            # The rest of a step depends on values, so it cannot be captured in a graph.
            stages = tuple(f"backbone.body.{name}" for name in model.backbone.body.stage_names)
            return (*stages, "backbone.fpn", "rpn.head") if ranks > 1 else ("dense",)
        case _:
            return ("",)


@dataclass(frozen=True)
class Chain:
    """A model as consecutive parts, and a loss of the last part's outputs.

    Attributes:
        parts: first to last; modules that only the loss uses are in the last.
        inputs: gets the first part's input, on the device, from a payload.
        targets: gets the loss's targets from a payload: on the host, and small, because they are sent to the last rank.
        pick: selects the targets of some of the samples.
        loss: computes the scalar to minimise from the last part's outputs and their targets.
    """

    parts: tuple[Part, ...]
    inputs: Callable[[Any], Tensor]
    targets: Callable[[Any], Any]
    pick: Callable[[Any, slice], Any]
    loss: Callable[[tuple[Tensor, ...], Any], Tensor]


@runtime_checkable
class Chained(Protocol):
    """A workload whose model can be cut into stages."""

    def chain(self) -> Chain:
        """The model's parts; `Workload.loss` of a payload is `loss(parts(inputs), targets)`."""


def detector_chain(
    model: FasterRCNN, size: tuple[int, int], device: torch.device, inputs: Callable[[Any], Tensor]
) -> Chain:
    """The chain of a detector on `device`, for training images of `size` (height, width).

    `inputs` gets the images of a payload, whose second part is their `Targets`.
    """

    def loss(levels: tuple[Tensor, ...], targets: Targets) -> Tensor:
        losses = cast(dict[str, Tensor], model.after_backbone(levels, size, targets.to(device)))
        return cast(Tensor, sum(losses.values()))

    def pick(targets: Targets, which: slice) -> Targets:
        return Targets(targets.boxes[which], targets.labels[which], targets.seeds[which])

    return Chain(detector_parts(model), inputs, lambda payload: payload[1], pick, loss)
