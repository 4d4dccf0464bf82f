"""RoIAlign (He et al. 2017, Mask R-CNN, section 3), as torchvision's `roi_align` defines it, with its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.workloads.operators.device import refuse_where_determinism_is_asked, require_cuda_build
from hpcai500.workloads.operators.features import (
    bits,
    check_types,
    coordinates,
    empty_features,
    is_channels_last,
    packed,
)


def roi_align(
    features: Tensor,
    rois: Tensor,
    output_size: int | tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """(N, C, H, W) features and (K, 5) rois -> (K, C, height, width), each bin the mean of bilinear samples.

    The result has the features' type, also under autocast; half precision is summed in float32. It is contiguous
    whatever the features' memory format, as a box head flattens it. Features are fastest in channels_last; those of
    neither format are copied first. Differentiable in the features, not in the rois; the gradient has the features'
    memory format, and on a CPU the same bits for any number of threads.

    A roi with a coordinate that is not finite, or beyond 2^24 feature pixels, gives NaN and no gradient.

    Args:
        features: float32, float16, bfloat16 or float64.
        rois: rows [image, x1, y1, x2, y2] in input pixels, floating point; computed with in float32 (float64 where
            the features are).
        output_size: bins (height, width), or one number for both; at most 1024.
        spatial_scale: feature pixels per input pixel, such as 1/4.
        sampling_ratio: samples of a bin on each axis, at most 1024; 0 or less takes ceil(size of the bin).
        aligned: shift by half a pixel, which is exact; without it rois are also at least one pixel large.

    Raises:
        ValueError: another shape or range, or (on a CPU) a roi whose image does not exist; on a GPU, which is not
            waited for, such a roi gives NaN.
        TypeError: tensors of another type.
    """
    height, width = (output_size, output_size) if isinstance(output_size, int) else output_size
    return _roi_align(features, rois, spatial_scale, height, width, sampling_ratio, aligned)  # type: ignore[no-any-return]


@torch.library.custom_op("hpcai500::roi_align", mutates_args=(), device_types="cpu")
def _roi_align(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    check_types(features, rois)
    pooled = features.new_empty((rois.shape[0], features.shape[1], pooled_height, pooled_width))
    _core.roi_align(
        bits(packed(features)).numpy(),
        coordinates(rois, features.dtype).numpy(),
        bits(pooled).numpy(),
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        threads=torch.get_num_threads(),
    )
    return pooled


@_roi_align.register_kernel("cuda")
def _(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    require_cuda_build()
    check_types(features, rois)
    pooled = features.new_empty((rois.shape[0], features.shape[1], pooled_height, pooled_width))
    _core.roi_align_cuda(
        bits(packed(features)),
        coordinates(rois, features.dtype),
        bits(pooled),
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        device=features.get_device(),
        stream=torch.cuda.current_stream(features.device).cuda_stream,
    )
    return pooled


@_roi_align.register_fake
def _(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    check_types(features, rois)
    return features.new_empty((rois.shape[0], features.shape[1], pooled_height, pooled_width))


@torch.library.custom_op("hpcai500::roi_align_backward", mutates_args=(), device_types="cpu")
def _roi_align_backward(
    gradient: Tensor,
    rois: Tensor,
    images: int,
    height: int,
    width: int,
    channels_last: bool,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    check_types(gradient, rois)
    shape = [images, gradient.shape[1], height, width]
    result = empty_features(gradient, shape, channels_last, gradient.dtype)
    _core.roi_align_backward(
        bits(gradient.contiguous()).numpy(),
        coordinates(rois, gradient.dtype).numpy(),
        bits(result).numpy(),
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        threads=torch.get_num_threads(),
    )
    return result


@_roi_align_backward.register_kernel("cuda")
def _(
    gradient: Tensor,
    rois: Tensor,
    images: int,
    height: int,
    width: int,
    channels_last: bool,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    require_cuda_build()
    refuse_where_determinism_is_asked("roi_align_backward")
    check_types(gradient, rois)
    places = coordinates(rois, gradient.dtype)
    # Half precision is summed in float32 and rounded once.
    result = empty_features(gradient, [images, gradient.shape[1], height, width], channels_last, places.dtype)
    _core.roi_align_backward_cuda(
        bits(gradient.contiguous()),
        places,
        result,
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        device=gradient.get_device(),
        stream=torch.cuda.current_stream(gradient.device).cuda_stream,
    )
    return result.to(gradient.dtype)


@_roi_align_backward.register_fake
def _(
    gradient: Tensor,
    rois: Tensor,
    images: int,
    height: int,
    width: int,
    channels_last: bool,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    check_types(gradient, rois)
    shape = [images, gradient.shape[1], height, width]
    return empty_features(gradient, shape, channels_last, gradient.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, rois, ctx.spatial_scale, _, _, ctx.sampling_ratio, ctx.aligned = inputs
    ctx.save_for_backward(rois)
    ctx.images, _, ctx.height, ctx.width = features.shape
    ctx.channels_last = is_channels_last(features)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (rois,) = ctx.saved_tensors
    return (
        _roi_align_backward(
            gradient,
            rois,
            ctx.images,
            ctx.height,
            ctx.width,
            ctx.channels_last,
            ctx.spatial_scale,
            ctx.sampling_ratio,
            ctx.aligned,
        ),
        *[None] * 6,
    )


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gradient, rois, _, _, _, _, ctx.spatial_scale, ctx.sampling_ratio, ctx.aligned = inputs
    ctx.save_for_backward(rois)
    ctx.pooled_height, ctx.pooled_width = gradient.shape[2:]


def _double_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient is linear in what it spreads: its own gradient is the pooling again."""
    (rois,) = ctx.saved_tensors
    pooled = _roi_align(
        gradient, rois, ctx.spatial_scale, ctx.pooled_height, ctx.pooled_width, ctx.sampling_ratio, ctx.aligned
    )
    return pooled, *[None] * 8


_roi_align.register_autograd(_backward, setup_context=_save)
_roi_align_backward.register_autograd(_double_backward, setup_context=_save_backward)
