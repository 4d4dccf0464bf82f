"""Normalisation layers by their names in a recipe; each replaces batch norm and has its state-dict keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hpcai500 import _core
from hpcai500.comm.communicator import Communicator
from hpcai500.workloads.operators import on_stream

Norm = Callable[[int], nn.Module]

# Wu and He 2018 use 32 groups; a smoke model has few channels, and each group needs a few.
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
        # In the type of the input: under autocast, multiplying by float32 would make all later layers float32.
        return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


_FROZEN_STATE = ("weight", "bias", "running_mean", "running_var")


class GroupNorm(nn.GroupNorm):
    """Group norm by the core's kernels if images are on a CUDA device in channels_last, else by torch's.

    torch's convert images to channels first, under autocast in float32, and back for the next convolution: on an H200,
    25 of the 40 ms of a step of Extreme Weather Analytics. The core's keep type and layout; statistics are float32.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> the same shape, and with the core's kernels the same type and memory format."""
        if not _fits_kernels(input):
            return super().forward(input)
        return _ByKernels.apply(input, self.weight, self.bias, self.num_groups, self.eps)  # type: ignore[no-any-return,no-untyped-call]


def _fits_kernels(images: Tensor) -> bool:
    return (
        images.is_cuda
        and not torch.compiler.is_compiling()
        and images.ndim == 4
        and images.shape[1] % 8 == 0
        # For a single pixel, torch refuses groups of one value.
        and images.numel() > images.shape[1]
        and images.is_contiguous(memory_format=torch.channels_last)
        and images.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and images.data_ptr() % 16 == 0
        and bool(_core.cuda_architectures())
    )


class _ByKernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float) -> Tensor:
        images, out = images.detach(), torch.empty_like(images)
        moments = torch.empty(2 * len(images) * groups, device=images.device)
        workspace = _workspace(images, groups)
        _core.group_norm_cuda(
            images,
            weight.detach(),
            bias.detach(),
            out,
            moments,
            workspace,
            groups=groups,
            epsilon=epsilon,
            **on_stream(images),
        )
        ctx.groups = groups
        ctx.save_for_backward(images, weight, moments)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        images, weight, moments = ctx.saved_tensors
        gradient = gradient.to(images.dtype).contiguous(memory_format=torch.channels_last)
        out, sums = torch.empty_like(images), torch.empty(2 * images.shape[0] * images.shape[1], device=images.device)
        _core.group_norm_backward_cuda(
            images,
            gradient,
            weight.detach(),
            moments,
            out,
            sums,
            _workspace(images, ctx.groups),
            groups=ctx.groups,
            **on_stream(images),
        )
        for_bias, for_weight = sums.view(2, *images.shape[:2]).sum(1)
        return out, for_weight, for_bias, None, None


def _workspace(images: Tensor, groups: int) -> Tensor:
    count, channels, height, width = images.shape
    size = _core.group_norm_cuda_workspace(count, height * width, channels, groups, images.dtype == torch.float32)
    return torch.empty(size, dtype=torch.uint8, device=images.device)


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm in 32 groups, or fewer if a group would have fewer than 4 channels or groups would be uneven."""
    groups = min(_GROUPS, max(1, channels // _LEAST_CHANNELS_A_GROUP))
    while channels % groups:
        groups -= 1
    return GroupNorm(groups, channels)


def norm_factory(name: str, communicator: Communicator | None = None, momentum: float = 0.1) -> Norm:
    """A function that builds the normalisation for a number of channels.

    Args:
        name: `batch`, `sync-batch`, `frozen-batch` or `group`, as in a recipe.
        communicator: the ranks of `sync-batch`, not used for anything else; None is one rank.
        momentum: weight of a batch in the running statistics; with 1 they are those of the last batch.
    """
    match name:
        case "batch":
            return partial(nn.BatchNorm2d, momentum=momentum)
        case "sync-batch":
            from hpcai500.workloads.models.sync_batch_norm import SyncBatchNorm2d  # imports torch's compiler: a second

            return partial(SyncBatchNorm2d, communicator=communicator, momentum=momentum)
        case "frozen-batch":
            return FrozenBatchNorm2d
        case "group":
            return group_norm
        case _:
            raise AssertionError(f"a validated recipe named the unknown normalisation {name!r}")
