"""Feature maps as the core takes them: their types, their memory formats, and the type in which rois are computed."""

from __future__ import annotations

import torch
from torch import Tensor

_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_types(features: Tensor, rois: Tensor) -> None:
    """Raise TypeError for tensors of another type, ValueError for another number of axes."""
    if features.dtype not in _TYPES:
        raise TypeError(f"features must be float32, float16, bfloat16 or float64, got {features.dtype}")
    if not rois.is_floating_point():
        raise TypeError(f"rois must be floating point, got {rois.dtype}")
    for name, tensor, axes in (("features", features, 4), ("rois", rois, 2)):
        if tensor.dim() != axes:
            raise ValueError(f"{name} must have {axes} axes, got shape {tuple(tensor.shape)}")


def coordinates(rois: Tensor, features: torch.dtype) -> Tensor:
    """Rois in float64 where the features are, in float32 elsewhere."""
    dtype = torch.float64 if features == torch.float64 else torch.float32
    return rois.detach().to(dtype).contiguous()


def is_channels_last(features: Tensor) -> bool:
    """Whether the channels are last; not where both formats are the same."""
    return features.is_contiguous(memory_format=torch.channels_last) and not features.is_contiguous()


def packed(features: Tensor) -> Tensor:
    """Itself where its channels are first or last without a gap, else a copy."""
    return features if is_channels_last(features) else features.contiguous()


def bits(tensor: Tensor) -> Tensor:
    """The tensor for the core: bfloat16, which arrays lack, as uint16."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


def empty_features(gradient: Tensor, shape: list[int], channels_last: bool, dtype: torch.dtype) -> Tensor:
    """Memory for the gradient of features, on the device of `gradient`."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=gradient.device, memory_format=memory_format)
