"""RoIAlign over the levels of a pyramid, each roi pooled from the level that is named for it.

How many rois a level has is known on the device alone. The operator takes it as data: its shapes do not depend on it,
so a GPU is not asked, and the step can be compiled and captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
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

    Args:
        levels: all of one type, number of images and number of channels; as the features of roi_align(). On a GPU at
            most 8, and all are copied to one memory format where they have not.
        rois: as of roi_align().
        level_of: (K,) int64, the place in `levels` of each roi's level.
        output_size: as of roi_align().
        spatial_scales: of each level, feature pixels per input pixel.
        sampling_ratio: as of roi_align().
        aligned: as of roi_align().

    Raises:
        ValueError: as roi_align(); or levels that differ; or (on a CPU) a level that does not exist, which gives NaN on
            a GPU.
        TypeError: as roi_align(), or `level_of` of another type than int64.
    """
    height, width = (output_size, output_size) if isinstance(output_size, int) else output_size
    scales = [float(scale) for scale in spatial_scales]
    return _pool(list(levels), rois, level_of, scales, height, width, sampling_ratio, aligned)  # type: ignore[no-any-return]


def _check(levels: Sequence[Tensor], rois: Tensor, level_of: Tensor, scales: Sequence[float]) -> None:
    if not levels or len(levels) != len(scales):
        raise ValueError(f"expected a spatial scale for each level, got {len(levels)} levels and {len(scales)} scales")
    for features in levels:
        check_types(features, rois)
        if features.dtype != levels[0].dtype or features.shape[:2] != levels[0].shape[:2]:
            raise ValueError("levels must have one type, one number of images and one number of channels")
    _check_level_of(rois, level_of)


def _check_level_of(rois: Tensor, level_of: Tensor) -> None:
    if level_of.dtype != torch.int64:
        raise TypeError(f"level_of must be int64, got {level_of.dtype}")
    if level_of.shape != rois.shape[:1]:
        raise ValueError(f"level_of must have shape ({rois.shape[0]},), got {tuple(level_of.shape)}")


def _empty_pooled(levels: Sequence[Tensor], rois: Tensor, height: int, width: int) -> Tensor:
    return levels[0].new_empty((rois.shape[0], levels[0].shape[1], height, width))


def _rows_of_levels(level_of: Tensor, levels: int) -> list[Tensor]:
    """The rois of each level, on a CPU."""
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
    _check(levels, rois, level_of, scales)
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
    _check(levels, rois, level_of, scales)
    pooled = _empty_pooled(levels, rois, pooled_height, pooled_width)
    _core.roi_align_levels_cuda(
        [bits(features) for features in _alike(levels)],
        coordinates(rois, pooled.dtype),
        level_of.contiguous(),
        bits(pooled),
        spatial_scales=scales,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        device=pooled.get_device(),
        stream=torch.cuda.current_stream(pooled.device).cuda_stream,
    )
    return pooled


def _alike(levels: Sequence[Tensor]) -> list[Tensor]:
    """Levels with their channels last where one of them has, else first: one kernel takes them all."""
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
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    _check(levels, rois, level_of, scales)
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
    refuse_where_determinism_is_asked("roi_align_levels_backward")
    check_types(gradient, rois)
    places = coordinates(rois, gradient.dtype)
    # Half precision is summed in float32 and rounded once.
    alike = [any(channels_last)] * len(scales)
    results = _empty_levels(gradient, images, heights, widths, alike, places.dtype)
    _core.roi_align_levels_backward_cuda(
        bits(gradient.contiguous()),
        places,
        level_of.contiguous(),
        results,
        spatial_scales=scales,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
        device=gradient.get_device(),
        stream=torch.cuda.current_stream(gradient.device).cuda_stream,
    )
    return [
        result.to(gradient.dtype, memory_format=_format(last))
        for result, last in zip(results, channels_last, strict=True)
    ]


@_spread.register_fake
def _(
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


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    levels, rois, level_of, ctx.scales, _, _, ctx.sampling_ratio, ctx.aligned = inputs
    ctx.save_for_backward(rois, level_of)
    ctx.images = levels[0].shape[0]
    ctx.heights, ctx.widths = ([features.shape[axis] for features in levels] for axis in (2, 3))
    ctx.channels_last = [is_channels_last(features) for features in levels]


def _backward(ctx: Any, gradient: Tensor) -> tuple[list[Tensor] | None, ...]:
    rois, level_of = ctx.saved_tensors
    of_levels = _spread(
        gradient,
        rois,
        level_of,
        ctx.images,
        ctx.heights,
        ctx.widths,
        ctx.channels_last,
        ctx.scales,
        ctx.sampling_ratio,
        ctx.aligned,
    )
    return of_levels, *[None] * 7


_pool.register_autograd(_backward, setup_context=_save)
