"""ResNet v1.5 (He et al. 2016, with the stride in the 3x3 convolution of a bottleneck), as V2.0 section 4.2.2 uses it.

State-dict keys are torchvision's, so that its weights load; width and depths are options for smoke runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """A projection where the block changes the shape, nothing elsewhere."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: the block of ResNet-18 and -34."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
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

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, 4 x width, H / stride, W / stride)."""
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        outputs: Tensor = self.relu(self.bn3(self.conv3(x)) + identity)
        return outputs


class ResNet(nn.Module):
    """Stem, four stages, global average pool, classifier.

    Args:
        block: residual block of all stages.
        depths: blocks in each of the four stages; ResNet-50 is bottlenecks in (3, 4, 6, 3).
        width: channels of the stem and the first stage.
        classes: outputs of the classifier.
        channels: channels of an image.
        zero_gamma: start the last batch norm of each block at 0, so that each block starts as its shortcut.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        *,
        width: int = 64,
        classes: int = 1000,
        channels: int = 3,
        zero_gamma: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = []
        inputs = width
        for stage, depth in enumerate(depths):
            stage_width = width * 2**stage
            outputs = stage_width * block.expansion
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            blocks = [block(inputs if i == 0 else outputs, stage_width, stride) for i, stride in enumerate(strides)]
            stages.append(nn.Sequential(*blocks))
            inputs = outputs
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        self._initialise(zero_gamma)

    def _initialise(self, zero_gamma: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, BasicBlock | Bottleneck) and zero_gamma:
                nn.init.zeros_(module.last_norm.weight)

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, H, W) -> class scores (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return scores


BLOCKS: dict[str, type[BasicBlock | Bottleneck]] = {"basic": BasicBlock, "bottleneck": Bottleneck}
