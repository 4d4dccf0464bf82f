"""A model as a chain of parts, between any two of which it can be cut (model and pipeline parallelism)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hpcai500.workloads.models.detector import FasterRCNN
from hpcai500.workloads.models.resnet import ResNet, ResNetStages


@dataclass(frozen=True)
class Part:
    """A link of the chain.

    Attributes:
        module: takes the outputs of the part before, as positional tensors whose first dimension is samples, and gives
            one tensor or a tuple of several. It shares its parameters with the model.
        names: modules of the model that it holds: each parameter and buffer of the model is in exactly one part.
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
        # The first block of a later stage takes a level of the pyramid; the stem's output is none.
        Part(_Beside(block, keeps=place > 0 and number == 0), (f"backbone.body.{stage}.{number}",))
        for place, stage in enumerate(body.stage_names)
        for number, block in enumerate(body.get_submodule(stage).children())
    )
    pyramid = Part(_Merged(model.backbone.fpn), ("backbone.fpn",))
    judges = Part(_Judges(model.rpn, model.roi_heads), ("rpn", "roi_heads"))
    return (_stem(body, "backbone.body."), *blocks, pyramid, judges)


def _stem(body: ResNetStages, prefix: str) -> Part:
    stem = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool)
    return Part(stem, (f"{prefix}conv1", f"{prefix}bn1"))


class _Beside(nn.Module):
    """Runs a block on the last of several tensors and passes the others on.

    With `keeps`, the block's input, the output of a finished stage, is passed on too.
    """

    def __init__(self, block: nn.Module, *, keeps: bool) -> None:
        super().__init__()
        self.block, self._keeps = block, keeps

    def forward(self, *before: Tensor) -> tuple[Tensor, ...]:
        """The outputs of finished stages and of the block before -> the same, with this block's."""
        kept = before if self._keeps else before[:-1]
        return (*kept, self.block(before[-1]))


class _Merged(nn.Module):
    """The feature pyramid, with tensors as arguments instead of a list."""

    def __init__(self, pyramid: nn.Module) -> None:
        super().__init__()
        self.pyramid = pyramid

    def forward(self, *stages: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.pyramid(stages))


class _Judges(nn.Module):
    """Gives proposals and detections, which are a part of the loss, their place in the chain."""

    def __init__(self, rpn: nn.Module, roi_heads: nn.Module) -> None:
        super().__init__()
        self.rpn, self.roi_heads = rpn, roi_heads

    def forward(self, *levels: Tensor) -> tuple[Tensor, ...]:
        """The levels, unchanged."""
        return levels
