"""What one does without the bucket kernels: torch's grouped copies and norms, Horovod's compression, int8 in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 256
SMALLEST_PEAK = 2.0**-119


def horovod_compress() -> tuple[str, Callable[[Tensor], Tensor]]:
    """Horovod's Compression.fp16.compress where it imports, else the expression in it (compression.py, 0.28.1)."""
    try:
        from horovod.torch.compression import Compression
    except ImportError:
        return "its expression, tensor.type(torch.float16)", lambda tensor: tensor.type(torch.float16)
    return "horovod's own", lambda tensor: Compression.fp16.compress(tensor)[0]


def compress_and_fuse(
    compress: Callable[[Tensor], Tensor], gradients: Sequence[Tensor], views: Sequence[Tensor]
) -> None:
    """Each gradient as its hook compresses it, all kept until they are reduced, and copied to the fusion buffer."""
    compressed = [compress(gradient) for gradient in gradients]
    for view, tensor in zip(views, compressed, strict=True):
        view.copy_(tensor)


def quantise_blocks(values: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Scales (blocks, 1) and codes (blocks, 256) of values plus residual, and the new residual in place.

    The rule of csrc/core/gradients/quantise.h, for a whole number of blocks.
    """
    carried = (values + residual).view(-1, BLOCK)
    largest = carried.abs().amax(dim=1, keepdim=True)
    codable = (largest >= SMALLEST_PEAK) & (largest < torch.finfo(torch.float32).max)
    scale = torch.where(codable, largest / 127, 0.0)
    inverse = torch.where(codable, 127 / largest, 0.0)
    codes = torch.round(carried * inverse)
    rest = carried - codes * scale
    # NaN and infinite values end in the scale, and not in the residual.
    broken = ~(largest < torch.finfo(torch.float32).max)
    residual.copy_(torch.where(broken, 0.0, rest).view(-1))
    return torch.where(broken, torch.nan, scale), codes.to(torch.int8)


def quantise_bucket(
    gradients: Sequence[Tensor],
    residual: Tensor,
    bucket: Tensor,
    quantise: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """The gradients copied to one float32 bucket of whole blocks, then quantised."""
    sizes = [gradient.numel() for gradient in gradients]
    views = [view.view_as(g) for view, g in zip(bucket[: sum(sizes)].split(sizes), gradients, strict=True)]
    torch._foreach_copy_(views, list(gradients))
    return quantise(bucket, residual)


def padded(count: int) -> Tensor:
    """Zeros of whole blocks for `count` values."""
    return F.pad(torch.zeros(count), (0, -count % BLOCK))
