"""ResNet v1.5 (He et al. 2016, with the stride in the 3x3 convolution of a bottleneck), as in V2.0 section 4.2.

Complete for Image Classification, without its head as the backbone of the detector. State-dict keys are torchvision's,
so that its weights load; width and depths are options for smoke runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from hpcai500.workloads.models.normalisation import Norm


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential | None:
    """A projection if the block changes the shape, else None."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), norm(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: the block of ResNet-18 and -34."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = norm(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride, norm)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, width, H / stride, W / stride)."""
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        outputs: Tensor = self.relu(self.bn2(self.conv2(x)) + identity)
        return outputs


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride: v1.5), 1x1 convolutions and a shortcut: the block of ResNet-50."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = norm(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = norm(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride, norm)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, 4 x width, H / stride, W / stride)."""
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        outputs: Tensor = self.relu(self.bn3(self.conv3(x)) + identity)
        return outputs


class ResNetStages(nn.Module):
    """Stem and stages: the part of a ResNet that a detector uses.

    Args:
        depths: blocks in each stage; ResNet-50 is bottlenecks in (3, 4, 6, 3).
        width: channels of the stem and the first stage.
        channels: channels of an image.
        zero_gamma: start the last norm of each block at 0, so that each block starts as its shortcut.
        norm: builds the normalisation layer for a number of channels.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        *,
        width: int = 64,
        channels: int = 3,
        zero_gamma: bool = False,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stage_channels = [width * 2**stage * block.expansion for stage in range(len(depths))]
        self.stage_names = [f"layer{stage + 1}" for stage in range(len(depths))]
        inputs = width
        for stage, (name, outputs) in enumerate(zip(self.stage_names, self.stage_channels, strict=True)):
            strides = [1 if stage == 0 else 2] + [1] * (depths[stage] - 1)
            blocks = [
                block(inputs if i == 0 else outputs, width * 2**stage, stride, norm) for i, stride in enumerate(strides)
            ]
            self.add_module(name, nn.Sequential(*blocks))
            inputs = outputs
        self._initialise(zero_gamma)

    def _initialise(self, zero_gamma: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, BasicBlock | Bottleneck) and zero_gamma:
                nn.init.zeros_(module.last_norm.get_parameter("weight"))

    def stages(self, images: Tensor) -> list[Tensor]:
        """(N, channels, H, W) -> the output of each stage, (N, C_s, H / 4 / 2^s, W / 4 / 2^s) for s = 0, 1, …"""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        outputs = []
        for name in self.stage_names:
            x = self.get_submodule(name)(x)
            outputs.append(x)
        return outputs


class ResNet(ResNetStages):
    """Stem, four stages, global average pool, classifier; arguments as of `ResNetStages`, and `classes` outputs."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        *,
        width: int = 64,
        classes: int = 1000,
        channels: int = 3,
        zero_gamma: bool = False,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__(block, depths, width=width, channels=channels, zero_gamma=zero_gamma, norm=norm)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.stage_channels[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, H, W) -> class scores (N, classes)."""
        scores: Tensor = self.fc(torch.flatten(self.avgpool(self.stages(images)[-1]), 1))
        return scores


BLOCKS: dict[str, type[BasicBlock | Bottleneck]] = {"basic": BasicBlock, "bottleneck": Bottleneck}
