"""Normalisation layers by the names of a recipe; each takes the place of batch norm, with its state-dict keys."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]

# Wu and He 2018: 32 groups, and at least some channels in each where a smoke model has few.
_GROUPS = 32
_LEAST_CHANNELS_A_GROUP = 4


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics, scale and shift never change: for weights that were trained before."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> the same shape."""
        weight, bias, mean, variance = (self.get_buffer(name) for name in _FROZEN_STATE)
        scale = weight * (variance + self.epsilon).rsqrt()
        shift = bias - mean * scale
        # The type of the input: under autocast a multiplication by fp32 would make everything behind it fp32.
        return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


_FROZEN_STATE = ("weight", "bias", "running_mean", "running_var")


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm in 32 groups, fewer where a group would be smaller than 4 channels or uneven."""
    groups = min(_GROUPS, max(1, channels // _LEAST_CHANNELS_A_GROUP))
    while channels % groups:
        groups -= 1
    return nn.GroupNorm(groups, channels)


NORMS: dict[str, Norm] = {
    "batch": nn.BatchNorm2d,
    "frozen-batch": FrozenBatchNorm2d,
    "sync-batch": nn.SyncBatchNorm,
    "group": group_norm,
}
