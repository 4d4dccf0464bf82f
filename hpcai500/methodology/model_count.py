"""Parameters and operations of every model that a recipe can describe, counted from its fields alone (V3.0 Table 3).

`hpcai500 flops` counts by walking over the built model; a verifier has only the recipe, and no torch. Both counts are
exactly equal: two operations per multiply-add of convolutions and matrix products in the forward pass, and twice as
many backward. The gradient of the images is not needed, so it is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EXPANSION = {"basic": 1, "bottleneck": 4}
_IMAGE_CHANNELS = 3
_POOLED = 7
_BOX = 4
_BACKGROUND = 1
# A malformed recipe may ask for any number of stages and blocks.
_MOST_STAGES, _MOST_BLOCKS = 4, 10_000

Size = tuple[int, int]


@dataclass
class ModelCount:
    """Trainable parameters, and operations per sample: `forward` of a forward pass, `training` of both passes."""

    parameters: int = 0
    forward: int = 0
    training: int = 0

    def convolution(
        self, inputs: int, outputs: int, kernel: int, *sizes: Size, stride: int = 1, bias: bool = False
    ) -> Size:
        """Count a convolution, padded by half of its kernel, that is applied to images of `sizes` (H, W).

        Returns the size of the last output.
        """
        self.parameters += outputs * (inputs * kernel * kernel + bias)
        shrunk = [_shrunk(size, stride) for size in sizes]
        for height, width in shrunk:
            self._products(2 * kernel * kernel * inputs * outputs * height * width)
        return shrunk[-1]

    def linear(self, inputs: int, outputs: int, rows: int = 1) -> None:
        """Count a fully connected layer that is applied to `rows` vectors of a sample."""
        self.parameters += (inputs + 1) * outputs
        self._products(2 * inputs * outputs * rows)

    def _products(self, operations: int) -> None:
        self.forward += operations
        self.training += 3 * operations


def model_count(benchmark: str, workload: Mapping[str, Any], classes: int, grid: Size) -> ModelCount | None:
    """Count the model of layer 7 of a recipe; None for the model of a plug-in, which only the plug-in can count.

    Args:
        benchmark: `ic` or `ewa`, else a plug-in's.
        workload: the recipe's table, resolved.
        classes: their number, without background.
        grid: (H, W) of the data set's images; ignored for `ic`, whose recipe has the size.

    Raises:
        KeyError, TypeError, ValueError: the table is not that of a valid recipe.
    """
    if benchmark not in ("ic", "ewa"):
        return None
    depths = workload["depths"]
    if not 1 <= len(depths) <= _MOST_STAGES or not all(1 <= depth <= _MOST_BLOCKS for depth in depths):
        raise ValueError(f"workload.depths: expected 1 to {_MOST_STAGES} stages of 1 to {_MOST_BLOCKS} blocks")
    if benchmark == "ic":
        return _classifier(workload, classes)
    return _detector(workload, classes, (grid[0], workload["crop_width"] or grid[1]))


def _classifier(workload: Mapping[str, Any], classes: int) -> ModelCount:
    count = ModelCount()
    side = workload["image_size"]
    stages = _residual_stages(count, workload, _IMAGE_CHANNELS, (side, side))
    count.linear(stages[-1][0], classes)
    return count


def _detector(workload: Mapping[str, Any], classes: int, size: Size) -> ModelCount:
    """Backbone, pyramid, proposals on every level, and heads on the regions that a step samples."""
    count, channels = ModelCount(), workload["pyramid_channels"]
    stages = _residual_stages(count, workload, len(workload["channels"]), size)
    for inputs, of_stage in stages:
        count.convolution(inputs, channels, 1, of_stage, bias=True)
        count.convolution(channels, channels, 3, of_stage, bias=True)
    sizes = [of_stage for _, of_stage in stages]
    levels, anchors = [*sizes, _shrunk(sizes[-1], 2)], len(workload["anchors"][0])
    count.convolution(channels, channels, 3, *levels, bias=True)
    count.convolution(channels, anchors, 1, *levels, bias=True)
    count.convolution(channels, _BOX * anchors, 1, *levels, bias=True)
    width, regions, labels = workload["head_width"], workload["detection_samples"], classes + _BACKGROUND
    count.linear(channels * _POOLED * _POOLED, width, regions)
    count.linear(width, width, regions)
    count.linear(width, labels, regions)
    count.linear(width, _BOX * labels, regions)
    return count


def _residual_stages(
    count: ModelCount, workload: Mapping[str, Any], channels: int, size: Size
) -> list[tuple[int, Size]]:
    """Stem and stages; returns channels and size (H, W) of each stage's output."""
    block, width = workload["block"], workload["width"]
    # Scale and shift of a frozen norm are not trained.
    of_norm = 0 if workload["norm"] == "frozen-batch" else 2
    size = count.convolution(channels, width, 7, size, stride=2)
    # The first convolution needs no gradient of the images.
    count.training -= count.forward
    count.parameters += of_norm * width
    size = _shrunk(size, 2)
    inputs, stages = width, []
    for stage, depth in enumerate(workload["depths"]):
        inner = width * 2**stage
        outputs = inner * _EXPANSION[block]
        for number in range(depth):
            stride = 2 if stage > 0 and number == 0 else 1
            before = size
            if block == "bottleneck":
                count.convolution(inputs, inner, 1, before)
                size = count.convolution(inner, inner, 3, before, stride=stride)
                count.convolution(inner, outputs, 1, size)
                norms = 2 * inner + outputs
            else:
                size = count.convolution(inputs, inner, 3, before, stride=stride)
                count.convolution(inner, inner, 3, size)
                norms = 2 * inner
            if stride != 1 or inputs != outputs:
                count.convolution(inputs, outputs, 1, before, stride=stride)
                norms += outputs
            count.parameters += of_norm * norms
            inputs = outputs
        stages.append((inputs, size))
    return stages


def _shrunk(size: Size, stride: int) -> Size:
    """The size (H, W) of an image after a strided window, padded by half of its size."""
    return (size[0] - 1) // stride + 1, (size[1] - 1) // stride + 1
