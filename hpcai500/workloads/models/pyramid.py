"""Feature pyramid network (Lin et al. 2017): the stages of a backbone, merged top down. Keys as torchvision's."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.workloads.models.resnet import ResNetStages


def _convolution(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """One convolution, in a container that gives it torchvision's key."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.kaiming_uniform_(convolution.weight, a=1)
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # there is a bias
    return nn.Sequential(convolution)


class FeaturePyramid(nn.Module):
    """Brings every stage to `outputs` channels and adds to each what the coarser ones know.

    Args:
        inputs: channels of the stages, finest first.
        outputs: channels of every level.
    """

    def __init__(self, inputs: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.inner_blocks = nn.ModuleList(_convolution(channels, outputs, 1) for channels in inputs)
        self.layer_blocks = nn.ModuleList(_convolution(outputs, outputs, 3) for _ in inputs)

    def forward(self, stages: Sequence[Tensor]) -> list[Tensor]:
        """Stages, finest first -> as many levels and one more, at half the resolution of the coarsest."""
        merged = self.inner_blocks[-1](stages[-1])
        levels = [self.layer_blocks[-1](merged)]
        finer = list(zip(stages, self.inner_blocks, self.layer_blocks, strict=True))[:-1]
        for stage, inner, layer in reversed(finer):
            lateral = inner(stage)
            merged = lateral + F.interpolate(merged, size=lateral.shape[-2:], mode="nearest")
            levels.insert(0, layer(merged))
        return [*levels, F.max_pool2d(levels[-1], 1, 2)]


class Backbone(nn.Module):
    """A residual network under a feature pyramid."""

    def __init__(self, body: ResNetStages, channels: int) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramid(body.stage_channels, channels)

    @property
    def strides(self) -> list[int]:
        """Pixels of the image a cell of each level stands for, finest level first: 4, 8, 16, …"""
        return [4 * 2**level for level in range(len(self.body.stage_names) + 1)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """(N, 16, H, W) -> levels (N, channels, H / stride, W / stride), rounded up."""
        levels: list[Tensor] = self.fpn(self.body.stages(images))
        return levels
