"""Convolutions in float64, an own way round: one matrix product for each place of the kernel. What is checked against.

torch's own float64 convolution copies each pixel once for each place of the kernel, a gigabyte for a climate image.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_WIDE = torch.float64
Pair = tuple[int, int]


def forward(images: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Images (N, C, H, W) and weight (O, C, R, S) -> (N, O, P, Q)."""
    padded = _padded(images, padding)
    height, width = ((padded.shape[2 + axis] - weight.shape[2 + axis]) // stride[axis] + 1 for axis in (0, 1))
    result = torch.zeros(len(images), len(weight), height, width, dtype=_WIDE, device=images.device)
    for place, part in _places(weight, stride, (height, width)):
        result += torch.einsum("nchw,oc->nohw", padded[part].to(_WIDE), place)
    return result


def input_gradient(gradient: Tensor, images: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """What `gradient` (N, O, P, Q) is for `images` (N, C, H, W), whose values do not matter."""
    padded = torch.zeros_like(_padded(images, padding), dtype=_WIDE)
    wide = gradient.to(_WIDE)
    for place, part in _places(weight, stride, (gradient.shape[2], gradient.shape[3])):
        padded[part] += torch.einsum("nohw,oc->nchw", wide, place)
    (top, left), (height, width) = padding, images.shape[2:]
    return padded[:, :, top : top + height, left : left + width]


def weight_gradient(gradient: Tensor, images: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """What `gradient` (N, O, P, Q) is for `weight` (O, C, R, S), whose values do not matter."""
    padded, wide = _padded(images, padding), gradient.to(_WIDE)
    result = torch.zeros(weight.shape, dtype=_WIDE, device=weight.device)
    size = gradient.shape[2], gradient.shape[3]
    for (row, column), part in _parts(weight, stride, size):
        result[:, :, row, column] = torch.einsum("nohw,nchw->oc", wide, padded[part].to(_WIDE))
    return result


Part = tuple[slice, slice, slice, slice]


def _places(weight: Tensor, stride: Pair, size: Pair) -> Iterator[tuple[Tensor, Part]]:
    """Of each place of the kernel its weights (O, C), and which pixels they are multiplied with."""
    for (row, column), part in _parts(weight, stride, size):
        yield weight[:, :, row, column].to(_WIDE), part


def _parts(weight: Tensor, stride: Pair, size: Pair) -> Iterator[tuple[Pair, Part]]:
    for row in range(weight.shape[2]):
        for column in range(weight.shape[3]):
            rows = slice(row, row + (size[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(column, column + (size[1] - 1) * stride[1] + 1, stride[1])
            yield (row, column), (slice(None), slice(None), rows, columns)


def _padded(images: Tensor, padding: Pair) -> Tensor:
    return torch.nn.functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))
