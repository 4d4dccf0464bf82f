"""Detection operators on the compiled core: NMS and RoIAlign, which torch lacks (torchvision has them).

They work in eager mode, under autograd, autocast and torch.compile, on CPU and CUDA tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError

# ----------------------------------------------------------------------------------------------------
# Requirements of the operators on a CUDA device.


def require_cuda_build() -> None:
    """Raise EnvironmentLacksError, with the fix, if the core has no CUDA kernels."""
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "hpcai500 is built without CUDA, but a tensor is on a CUDA device: put nvcc on PATH (or set CUDACXX) and"
            " run make build again, or use CPU tensors"
        )


def on_stream(tensor: Tensor) -> dict[str, int]:
    """Device and stream for a call of the core on `tensor`: torch's current stream."""
    return {"device": tensor.get_device(), "stream": torch.cuda.current_stream(tensor.device).cuda_stream}


def require_nondeterminism_allowed(name: str) -> None:
    """Raise RuntimeError (or warn, with warn_only) under torch.use_deterministic_algorithms."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    message = f"{name} sums in no fixed order on a CUDA device, but deterministic algorithms were requested"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}: run it on the CPU, or allow it with warn_only=True")
    warnings.warn(message, stacklevel=2)


# ----------------------------------------------------------------------------------------------------
# Greedy non-maximum suppression, as torchvision's `nms` defines it, also within groups.


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the kept boxes, int64, in descending order of score; of equal scores the earlier comes first.

    A box is suppressed if its intersection over union with a kept box is above `iou_threshold`. A NaN is the highest
    score, as in torch.sort. A ratio that is NaN (two boxes without area, a coordinate that is NaN or infinite) is not
    above any threshold: such boxes are kept and suppress nothing.

    Args:
        boxes: (n, 4), rows x1 y1 x2 y2, floating point. Half precision is compared in float32, also under autocast.
        scores: (n,), floating point.
        iou_threshold: in [0, 1].

    Raises:
        ValueError: a wrong shape or threshold.
        TypeError: boxes or scores are not floating point.
    """
    return _nms(boxes, scores, None, iou_threshold)  # type: ignore[no-any-return]


def batched_nms(boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float) -> Tensor:
    """nms() within each group: boxes of different groups (classes, pyramid levels) never suppress each other.

    `groups` (n,) are integers and compared as numbers: no offset is added to coordinates, which would lose precision.
    The rest is as in nms().

    Raises:
        ValueError: as nms().
        TypeError: as nms(), or groups are not integers.
    """
    return _nms(boxes, scores, groups, iou_threshold)  # type: ignore[no-any-return]


def _compared_type(boxes: Tensor, scores: Tensor, groups: Tensor | None) -> torch.dtype:
    for name, tensor in (("boxes", boxes), ("scores", scores)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
    if groups is not None and (groups.is_floating_point() or groups.is_complex()):
        raise TypeError(f"groups must be integers, got {groups.dtype}")
    return torch.promote_types(torch.promote_types(boxes.dtype, scores.dtype), torch.float32)


@torch.library.custom_op("hpcai500::nms", mutates_args=(), device_types="cpu")
def _nms(boxes: Tensor, scores: Tensor, groups: Tensor | None, iou_threshold: float) -> Tensor:
    dtype = _compared_type(boxes, scores, groups)
    kept = _core.nms(
        boxes.detach().to(dtype).contiguous().numpy(),
        scores.detach().to(dtype).contiguous().numpy(),
        None if groups is None else groups.to(torch.int64).contiguous().numpy(),
        iou_threshold=iou_threshold,
        threads=torch.get_num_threads(),
    )
    return torch.from_numpy(kept)


@_nms.register_kernel("cuda")
def _(boxes: Tensor, scores: Tensor, groups: Tensor | None, iou_threshold: float) -> Tensor:
    require_cuda_build()
    dtype = _compared_type(boxes, scores, groups)
    order = torch.sort(scores.detach().to(dtype), descending=True, stable=True).indices
    keep = torch.empty(len(order), dtype=torch.uint8, device=boxes.device)
    workspace = torch.empty(_core.nms_cuda_workspace(len(order)), dtype=torch.uint8, device=boxes.device)
    _core.nms_cuda(
        boxes.detach().to(dtype)[order],
        None if groups is None else groups.to(torch.int64)[order],
        keep,
        workspace,
        iou_threshold=iou_threshold,
        **on_stream(boxes),
    )
    # The only wait for the device: the host needs the number of kept boxes.
    return order[keep.bool()]


@_nms.register_fake
def _(boxes: Tensor, scores: Tensor, groups: Tensor | None, *_: Any) -> Tensor:
    _compared_type(boxes, scores, groups)
    # The number of kept boxes depends on the values.
    kept = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty((kept,), dtype=torch.int64)


# ----------------------------------------------------------------------------------------------------
# Non-maximum suppression of many short lists at once, with as many results as boxes.
#
# The number of kept boxes is only known on the device. The result is a mask of fixed shape, so the host never waits.


def sorted_nms(boxes: Tensor, segments: Sequence[int], iou_threshold: float) -> Tensor:
    """(N, n, 4) boxes in descending order of score in each segment -> (N, n) bool, which of them nms() would keep.

    Boxes of different segments (pyramid levels, classes) or different rows (images) never suppress each other. A box
    with a NaN is kept and suppresses nothing: mark boxes to be ignored in this way, and drop them from the result.

    Args:
        boxes: rows x1 y1 x2 y2, floating point; half precision is compared in float32.
        segments: number of boxes in each consecutive segment; the sum is n.
        iou_threshold: in [0, 1].

    Raises:
        ValueError: a wrong shape, threshold or number of boxes in the segments.
        TypeError: boxes are not floating point.
    """
    return _sorted_nms(boxes, [int(count) for count in segments], iou_threshold)  # type: ignore[no-any-return]


def _check_segments(boxes: Tensor, segments: Sequence[int]) -> None:
    if not boxes.is_floating_point():
        raise TypeError(f"boxes must be floating point, got {boxes.dtype}")
    if boxes.dim() != 3 or boxes.shape[2] != 4:
        raise ValueError(f"boxes must have shape (N, n, 4), got {tuple(boxes.shape)}")
    if min(segments, default=-1) < 0 or sum(segments) != boxes.shape[1]:
        raise ValueError(f"segments must add up to the {boxes.shape[1]} boxes, got {list(segments)}")


def _compared(boxes: Tensor) -> Tensor:
    return boxes.detach().to(torch.promote_types(boxes.dtype, torch.float32)).contiguous()


@torch.library.custom_op("hpcai500::sorted_nms", mutates_args=(), device_types="cpu")
def _sorted_nms(boxes: Tensor, segments: Sequence[int], iou_threshold: float) -> Tensor:
    _check_segments(boxes, segments)
    images, count = boxes.shape[:2]
    values = _compared(boxes).reshape(-1, 4).numpy()
    groups = np.arange(images)[:, None] * len(segments) + np.repeat(np.arange(len(segments)), segments)
    falling = np.broadcast_to(np.arange(count, 0, -1, dtype=values.dtype), (images, count))
    # Boxes with NaN are skipped and cost nothing.
    compared = np.flatnonzero(~np.isnan(values).any(axis=1))
    kept = _core.nms(
        values[compared],
        falling.reshape(-1)[compared],
        groups.reshape(-1)[compared],
        iou_threshold=iou_threshold,
        threads=torch.get_num_threads(),
    )
    stays = np.ones(images * count, dtype=np.bool_)
    stays[compared] = False
    stays[compared[kept]] = True
    return torch.from_numpy(stays).reshape(images, count)


@_sorted_nms.register_kernel("cuda")
def _sorted_nms_on_cuda(boxes: Tensor, segments: Sequence[int], iou_threshold: float) -> Tensor:
    require_cuda_build()
    _check_segments(boxes, segments)
    of_all_images = list(segments) * boxes.shape[0]
    keep = torch.empty(boxes.shape[:2], dtype=torch.uint8, device=boxes.device)
    workspace = torch.empty(_core.nms_segments_cuda_workspace(of_all_images), dtype=torch.uint8, device=boxes.device)
    _core.nms_segments_cuda(
        _compared(boxes).reshape(-1, 4),
        of_all_images,
        keep.reshape(-1),
        workspace,
        iou_threshold=iou_threshold,
        **on_stream(boxes),
    )
    return keep.bool()


@_sorted_nms.register_fake
def _(boxes: Tensor, segments: Sequence[int], *_: Any) -> Tensor:
    _check_segments(boxes, segments)
    return boxes.new_empty(boxes.shape[:2], dtype=torch.bool)


# ----------------------------------------------------------------------------------------------------
# Feature maps for the core: their types, their memory formats, and the type in which rois are computed.


_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_types(features: Tensor, rois: Tensor) -> None:
    """Raise TypeError for a wrong type, ValueError for a wrong number of axes."""
    if features.dtype not in _TYPES:
        raise TypeError(f"features must be float32, float16, bfloat16 or float64, got {features.dtype}")
    if not rois.is_floating_point():
        raise TypeError(f"rois must be floating point, got {rois.dtype}")
    for name, tensor, axes in (("features", features, 4), ("rois", rois, 2)):
        if tensor.dim() != axes:
            raise ValueError(f"{name} must have {axes} axes, got shape {tuple(tensor.shape)}")


def coordinates(rois: Tensor, features: torch.dtype) -> Tensor:
    """Rois in float64 if the features are, otherwise in float32; contiguous."""
    dtype = torch.float64 if features == torch.float64 else torch.float32
    return rois.detach().to(dtype).contiguous()


def is_channels_last(features: Tensor) -> bool:
    """Whether the channels are last; False if both formats are the same."""
    return features.is_contiguous(memory_format=torch.channels_last) and not features.is_contiguous()


def packed(features: Tensor) -> Tensor:
    """The features themselves if channels are first or last without gaps, else a copy."""
    return features if is_channels_last(features) else features.contiguous()


def bits(tensor: Tensor) -> Tensor:
    """The tensor for the core: bfloat16, which NumPy lacks, as uint16."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


def empty_features(gradient: Tensor, shape: list[int], channels_last: bool, dtype: torch.dtype) -> Tensor:
    """Uninitialised memory for the gradient of features, on the device of `gradient`."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=gradient.device, memory_format=memory_format)


# ----------------------------------------------------------------------------------------------------
# RoIAlign (He et al. 2017, Mask R-CNN, section 3), as torchvision's `roi_align` defines it, with its gradient.


def roi_align(
    features: Tensor,
    rois: Tensor,
    output_size: int | tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """(N, C, H, W) features and (K, 5) rois -> (K, C, height, width), each bin the mean of bilinear samples.

    The result has the features' type, also under autocast; half precision is summed in float32. It is contiguous for
    any memory format of the features, because a box head flattens it. Features are fastest in channels_last; those in
    neither format are copied first. Differentiable in the features, not in the rois; the gradient has the features'
    memory format, and on a CPU the same bits for any number of threads.

    A roi with a coordinate that is not finite, or beyond 2^24 feature pixels, gives NaN and no gradient.

    Args:
        features: float32, float16, bfloat16 or float64.
        rois: rows [image, x1, y1, x2, y2] in input pixels, floating point; computed in float32 (float64 if the features
            are).
        output_size: bins (height, width), or one number for both; at most 1024.
        spatial_scale: feature pixels per input pixel, such as 1/4.
        sampling_ratio: samples of a bin on each axis, at most 1024; 0 or less takes ceil(size of the bin).
        aligned: shift by half a pixel, which is exact; without it rois are also at least one pixel large.

    Raises:
        ValueError: a wrong shape or range, or (on a CPU) a roi whose image does not exist; on a GPU it gives NaN.
        TypeError: tensors of a wrong type.
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
        **on_stream(features),
    )
    return pooled


@_roi_align.register_fake
def _(features: Tensor, rois: Tensor, _scale: float, pooled_height: int, pooled_width: int, *_: Any) -> Tensor:
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
    require_nondeterminism_allowed("roi_align_backward")
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
        **on_stream(gradient),
    )
    return result.to(gradient.dtype)


@_roi_align_backward.register_fake
def _(gradient: Tensor, rois: Tensor, images: int, height: int, width: int, channels_last: bool, *_: Any) -> Tensor:
    check_types(gradient, rois)
    return empty_features(gradient, [images, gradient.shape[1], height, width], channels_last, gradient.dtype)


def _save_roi_align(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, rois, spatial_scale, _, _, sampling_ratio, aligned = inputs
    ctx.save_for_backward(rois)
    images, _, height, width = features.shape
    ctx.shape = images, height, width, is_channels_last(features)
    ctx.sampling = spatial_scale, sampling_ratio, aligned


def _backward_of_roi_align(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (rois,) = ctx.saved_tensors
    return _roi_align_backward(gradient, rois, *ctx.shape, *ctx.sampling), *[None] * 6


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gradient, rois, _, _, _, _, ctx.spatial_scale, ctx.sampling_ratio, ctx.aligned = inputs
    ctx.save_for_backward(rois)
    ctx.pooled_height, ctx.pooled_width = gradient.shape[2:]


def _double_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The backward pass is linear in the gradient, so its own gradient is the pooling again."""
    (rois,) = ctx.saved_tensors
    pooled = _roi_align(
        gradient, rois, ctx.spatial_scale, ctx.pooled_height, ctx.pooled_width, ctx.sampling_ratio, ctx.aligned
    )
    return pooled, *[None] * 8


_roi_align.register_autograd(_backward_of_roi_align, setup_context=_save_roi_align)
_roi_align_backward.register_autograd(_double_backward, setup_context=_save_backward)


# ----------------------------------------------------------------------------------------------------
# RoIAlign over the levels of a pyramid: each roi is pooled from the level given for it.
#
# The number of rois of a level is only known on the device. The operator takes levels as data, and no shape depends on
# them: the host never waits, and the step can be compiled and captured.


def roi_align_levels(
    levels: Sequence[Tensor],
    rois: Tensor,
    level_of: Tensor,
    output_size: int | tuple[int, int],
    spatial_scales: Sequence[float],
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Levels (N, C, h, w) and (K, 5) rois -> (K, C, height, width), as roi_align() pools roi k from its level.

    The rest is as in roi_align().

    Args:
        levels: all of one type, number of images and number of channels. On a GPU at most 8, and all are copied to one
            memory format if theirs differ.
        level_of: (K,) int64, the position in `levels` of each roi's level.
        spatial_scales: for each level, feature pixels per input pixel.

    Raises:
        ValueError: as roi_align(); or levels differ; or (on a CPU) a level does not exist, which gives NaN on a GPU.
        TypeError: as roi_align(), or `level_of` is not int64.
    """
    height, width = (output_size, output_size) if isinstance(output_size, int) else output_size
    scales = [float(scale) for scale in spatial_scales]
    return _pool(list(levels), rois, level_of, scales, height, width, sampling_ratio, aligned)  # type: ignore[no-any-return]


def _check_levels(levels: Sequence[Tensor], rois: Tensor, level_of: Tensor, scales: Sequence[float]) -> None:
    if not levels or len(levels) != len(scales):
        raise ValueError(f"expected a spatial scale for each level, got {len(levels)} levels and {len(scales)} scales")
    for features in levels:
        check_types(features, rois)
        if features.dtype != levels[0].dtype or features.shape[:2] != levels[0].shape[:2]:
            raise ValueError("levels must have one type, one number of images and one number of channels")
    if level_of.dtype != torch.int64:
        raise TypeError(f"level_of must be int64, got {level_of.dtype}")
    if level_of.shape != rois.shape[:1]:
        raise ValueError(f"level_of must have shape ({rois.shape[0]},), got {tuple(level_of.shape)}")


def _empty_pooled(levels: Sequence[Tensor], rois: Tensor, height: int, width: int) -> Tensor:
    return levels[0].new_empty((rois.shape[0], levels[0].shape[1], height, width))


def _rows_of_levels(level_of: Tensor, levels: int) -> list[Tensor]:
    numbers = level_of.numpy()
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < levels):
        raise ValueError(f"level_of must be in [0, {levels}), got {numbers.min()} to {numbers.max()}")
    return [torch.from_numpy(np.flatnonzero(numbers == level)) for level in range(levels)]


@torch.library.custom_op("hpcai500::roi_align_levels", mutates_args=(), device_types="cpu")
def _pool(
    levels: Sequence[Tensor],
    rois: Tensor,
    level_of: Tensor,
    scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    _check_levels(levels, rois, level_of, scales)
    pooled = _empty_pooled(levels, rois, pooled_height, pooled_width)
    places = coordinates(rois, pooled.dtype)
    for features, rows, scale in zip(levels, _rows_of_levels(level_of, len(levels)), scales, strict=True):
        of_level = _empty_pooled(levels, rows, pooled_height, pooled_width)
        _core.roi_align(
            bits(packed(features)).numpy(),
            places[rows].numpy(),
            bits(of_level).numpy(),
            spatial_scale=scale,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
            threads=torch.get_num_threads(),
        )
        pooled[rows] = of_level
    return pooled


@_pool.register_kernel("cuda")
def _pool_on_cuda(
    levels: Sequence[Tensor],
    rois: Tensor,
    level_of: Tensor,
    scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    require_cuda_build()
    _check_levels(levels, rois, level_of, scales)
    pooled = _empty_pooled(levels, rois, pooled_height, pooled_width)
    _core.roi_align_levels_cuda(
        [bits(features) for features in _in_one_format(levels)],
        coordinates(rois, pooled.dtype),
        level_of.contiguous(),
        bits(pooled),
        spatial_scales=scales,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        **on_stream(pooled),
    )
    return pooled


def _in_one_format(levels: Sequence[Tensor]) -> list[Tensor]:
    """All levels in channels_last if one of them is, else channels first: one kernel takes them all."""
    return [features.contiguous(memory_format=_format(any(map(is_channels_last, levels)))) for features in levels]


def _format(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format


@_pool.register_fake
def _(
    levels: Sequence[Tensor],
    rois: Tensor,
    level_of: Tensor,
    scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    *_: Any,
) -> Tensor:
    _check_levels(levels, rois, level_of, scales)
    return _empty_pooled(levels, rois, pooled_height, pooled_width)


@torch.library.custom_op("hpcai500::roi_align_levels_backward", mutates_args=(), device_types="cpu")
def _spread(
    gradient: Tensor,
    rois: Tensor,
    level_of: Tensor,
    images: int,
    heights: Sequence[int],
    widths: Sequence[int],
    channels_last: Sequence[bool],
    scales: Sequence[float],
    sampling_ratio: int,
    aligned: bool,
) -> list[Tensor]:
    check_types(gradient, rois)
    results = _empty_levels(gradient, images, heights, widths, channels_last, gradient.dtype)
    places = coordinates(rois, gradient.dtype)
    gradient = gradient.contiguous()
    for result, rows, scale in zip(results, _rows_of_levels(level_of, len(results)), scales, strict=True):
        _core.roi_align_backward(
            bits(gradient[rows]).numpy(),
            places[rows].numpy(),
            bits(result).numpy(),
            spatial_scale=scale,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
            threads=torch.get_num_threads(),
        )
    return results


@_spread.register_kernel("cuda")
def _spread_on_cuda(
    gradient: Tensor,
    rois: Tensor,
    level_of: Tensor,
    images: int,
    heights: Sequence[int],
    widths: Sequence[int],
    channels_last: Sequence[bool],
    scales: Sequence[float],
    sampling_ratio: int,
    aligned: bool,
) -> list[Tensor]:
    require_cuda_build()
    require_nondeterminism_allowed("roi_align_levels_backward")
    check_types(gradient, rois)
    places = coordinates(rois, gradient.dtype)
    # Half precision is summed in float32 and rounded once.
    formats = [any(channels_last)] * len(scales)
    results = _empty_levels(gradient, images, heights, widths, formats, places.dtype)
    _core.roi_align_levels_backward_cuda(
        bits(gradient.contiguous()),
        places,
        level_of.contiguous(),
        results,
        spatial_scales=scales,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        **on_stream(gradient),
    )
    return [
        result.to(gradient.dtype, memory_format=_format(last))
        for result, last in zip(results, channels_last, strict=True)
    ]


@_spread.register_fake
def _(
    gradient: Tensor,
    rois: Tensor,
    _level_of: Tensor,
    images: int,
    heights: Sequence[int],
    widths: Sequence[int],
    channels_last: Sequence[bool],
    *_: Any,
) -> list[Tensor]:
    check_types(gradient, rois)
    return _empty_levels(gradient, images, heights, widths, channels_last, gradient.dtype)


def _empty_levels(
    gradient: Tensor,
    images: int,
    heights: Sequence[int],
    widths: Sequence[int],
    channels_last: Sequence[bool],
    dtype: torch.dtype,
) -> list[Tensor]:
    return [
        empty_features(gradient, [images, gradient.shape[1], height, width], last, dtype)
        for height, width, last in zip(heights, widths, channels_last, strict=True)
    ]


def _save_levels(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    levels, rois, level_of, scales, _, _, sampling_ratio, aligned = inputs
    ctx.save_for_backward(rois, level_of)
    heights, widths = ([features.shape[axis] for features in levels] for axis in (2, 3))
    ctx.shapes = levels[0].shape[0], heights, widths, [is_channels_last(features) for features in levels]
    ctx.sampling = scales, sampling_ratio, aligned


def _backward_of_levels(ctx: Any, gradient: Tensor) -> tuple[list[Tensor] | None, ...]:
    rois, level_of = ctx.saved_tensors
    return _spread(gradient, rois, level_of, *ctx.shapes, *ctx.sampling), *[None] * 7


_pool.register_autograd(_backward_of_levels, setup_context=_save_levels)
