"""Normalisation layers by the names of a recipe; each takes the place of batch norm, with its state-dict keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from hpcai500.comm.communicator import Communicator

Norm = Callable[[int], nn.Module]

# Wu and He 2018 use 32 groups; a smoke model has few channels, and each group gets at least some.
_GROUPS = 32
_LEAST_CHANNELS_A_GROUP = 4


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics, scale and shift never change: for pretrained weights."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, variance = (self.get_buffer(name) for name in _FROZEN_STATE)
        scale = weight * (variance + self.epsilon).rsqrt()
        shift = bias - mean * scale
        # In the type of the input: under autocast a multiplication by float32 would make all later layers float32.
        return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


_FROZEN_STATE = ("weight", "bias", "running_mean", "running_var")


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm in 32 groups, fewer where a group would be smaller than 4 channels or uneven."""
    groups = min(_GROUPS, max(1, channels // _LEAST_CHANNELS_A_GROUP))
    while channels % groups:
        groups -= 1
    return nn.GroupNorm(groups, channels)


def norm_factory(name: str, communicator: Communicator | None = None, momentum: float = 0.1) -> Norm:
    """What builds the normalisation of a number of channels.

    Args:
        name: `batch`, `sync-batch`, `frozen-batch` or `group`, as in a recipe.
        communicator: the ranks that `sync-batch` is over, used for nothing else; None is one rank.
        momentum: weight of a batch in the running statistics; with 1 they are those of the last batch.
    """
    match name:
        case "batch":
            return partial(nn.BatchNorm2d, momentum=momentum)
        case "sync-batch":
            from hpcai500.workloads.models.sync_batch_norm import (
                SyncBatchNorm2d,  # it imports torch's compiler: a second
            )

            return partial(SyncBatchNorm2d, communicator=communicator, momentum=momentum)
        case "frozen-batch":
            return FrozenBatchNorm2d
        case "group":
            return group_norm
        case _:
            raise AssertionError(f"a validated recipe named the unknown normalisation {name!r}")
