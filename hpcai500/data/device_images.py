"""Torch's face of the conversion of images: normalised by channel, cast and laid out in one pass, where they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError


def convert_images(
    images: Tensor,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | None = None,
) -> Tensor:
    """Images in another type and layout, each value as (value - mean) / std of its channel, in the same memory.

    Computed as the host's loaders do: value * scale + bias, where scale is 1 / std and bias -mean / std as float32,
    rounded once to float32 and once more, to nearest even, to a short type. The CPU's work is done on return, a CUDA
    device's is put on its current stream; both give the same bits, but for which NaN a NaN becomes.

    Args:
        images: (N, C, H, W), float32, float16, bfloat16 or uint8, contiguous or channels_last; C at most 256.
        mean: of each channel; with `std`, or neither to change nothing but type and layout.
        std: of each channel, above 0.
        dtype: float32, float16 or bfloat16.
        memory_format: contiguous_format or channels_last.
        out: takes the result, in its type and layout, instead of new memory; `dtype` and `memory_format` mean nothing.

    Raises:
        ValueError: another shape, type or layout, an `out` that overlaps, mean or std that cannot be.
        EnvironmentLacksError: images on a CUDA device, and a build without CUDA.
    """
    if out is None:
        out = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=memory_format)
    if out.device != images.device:
        raise ValueError(f"images and out must be on one device, got {images.device} and {out.device}")
    if not images.is_cuda:
        arrays = _bits(images).numpy(), _bits(out).numpy()
        _core.convert_images(*arrays, mean=mean, std=std, threads=torch.get_num_threads())
        return out
    require_cuda_build()
    _core.convert_images_cuda(
        images,
        out,
        mean=mean,
        std=std,
        device=images.get_device(),
        stream=torch.cuda.current_stream(images.device).cuda_stream,
    )
    return out


def require_cuda_build() -> None:
    """Raise EnvironmentLacksError, with the fix, where the core has no kernel for CUDA devices."""
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "hpcai500 is built without CUDA, but images shall be converted on a CUDA device: put nvcc on PATH (or set "
            "CUDACXX) and run make build again, or set accelerator.conversion=host"
        )


def _bits(tensor: Tensor) -> Tensor:
    """The tensor as NumPy can have it: bfloat16, which it lacks, as uint16."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
