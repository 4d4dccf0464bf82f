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
        module: takes what the part before gave, as positional tensors whose first dimension is samples, and gives one
            tensor or several in a tuple. It shares its parameters with the model.
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
    """Stem, each residual block, pyramid, and what judges it; finished stages are handed on to the pyramid."""
    body = model.backbone.body
    blocks = (
        # What the stem gives is no level of the pyramid, and what the first block of a later stage takes is one.
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
    """Runs a block on the last of several tensors and hands the others on.

    Args:
        block: the residual block.
        keeps: whether what it takes is handed on too: the output of a finished stage.
    """

    def __init__(self, block: nn.Module, *, keeps: bool) -> None:
        super().__init__()
        self.block, self._keeps = block, keeps

    def forward(self, *before: Tensor) -> tuple[Tensor, ...]:
        """The outputs of finished stages and of the block before -> the same, with this block's."""
        kept = before if self._keeps else before[:-1]
        return (*kept, self.block(before[-1]))


class _Merged(nn.Module):
    """The feature pyramid, of tensors instead of a list."""

    def __init__(self, pyramid: nn.Module) -> None:
        super().__init__()
        self.pyramid = pyramid

    def forward(self, *stages: Tensor) -> tuple[Tensor, ...]:
        """The outputs of all stages -> the levels."""
        return tuple(self.pyramid(stages))


class _Judges(nn.Module):
    """Proposals and detections are a part of the loss; here they only have their place in the chain."""

    def __init__(self, rpn: nn.Module, roi_heads: nn.Module) -> None:
        super().__init__()
        self.rpn, self.roi_heads = rpn, roi_heads

    def forward(self, *levels: Tensor) -> tuple[Tensor, ...]:
        """The levels, as they are."""
        return levels
