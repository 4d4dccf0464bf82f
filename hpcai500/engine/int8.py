"""Training in 8 bits: what convolutions and linear layers multiply is rounded to 256 values, by torch's own functions.

The values are those of int8; the arithmetic is the device's float32, for torch has no 8-bit kernels that learn. Weights
have a scale for each output channel, symmetric about 0. Inputs have a scale and a zero point for each sample: what one
sample is rounded to does not depend on which others are in its batch, so that data, model and pipeline parallelism
stay what they are. Gradients are straight-through (Bengio et al. 2013; Jacob et al. 2018): those of the rounded values,
in float32, as if nothing had been rounded. Weights themselves are kept, and updated, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_LOWEST, _HIGHEST = -128, 127
# A tensor that is 0 throughout: any scale is right for it.
_LEAST_SCALE = torch.finfo(torch.float32).tiny


class Int8Products(TorchFunctionMode):
    """While it is entered, convolutions and linear layers multiply values of 8 bits; as autocast does it for bf16."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Round the first two arguments, input and weight, of a product."""
        if func in _PRODUCTS and len(args) > 1:
            args = (rounded_samples(args[0]), rounded_weight(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


_PRODUCTS = (F.conv2d, torch.conv2d, F.linear)


def rounded_weight(weight: Tensor) -> Tensor:
    """(outputs, …) with each output's values on -127 … 127 times a scale of its own; gradients pass through."""
    largest = weight.detach().abs().flatten(1).amax(1)
    scales = (largest / _HIGHEST).clamp_(min=_LEAST_SCALE)
    zeros = torch.zeros(len(scales), dtype=torch.int32, device=weight.device)
    return torch.fake_quantize_per_channel_affine(weight, scales, zeros, 0, _LOWEST, _HIGHEST)


def rounded_samples(images: Tensor) -> Tensor:
    """(N, …) with each sample's values on 256 evenly spaced ones that span it, 0 among them; gradients pass through."""
    values = images.detach().flatten(1)
    # 0 is exact: padding and what ReLU cut off stay 0.
    least, greatest = values.amin(1).clamp_(max=0), values.amax(1).clamp_(min=0)
    # One step is to spare: the zero point is rounded, and what would fall off the end would get no gradient.
    scales = ((greatest - least) / (_HIGHEST - _LOWEST - 1)).clamp_(min=_LEAST_SCALE)
    zeros = (_LOWEST - least / scales).round_().clamp_(_LOWEST, _HIGHEST).to(torch.int32)
    return torch.fake_quantize_per_channel_affine(images, scales, zeros, 0, _LOWEST, _HIGHEST)
