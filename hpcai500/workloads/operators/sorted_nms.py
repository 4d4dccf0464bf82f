"""Non-maximum suppression of many short lists at once, with as many results as boxes.

How many boxes stay is known on the device alone. A mask has the boxes' shape whatever it holds, so a GPU is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.workloads.operators.device import require_cuda_build


def sorted_nms(boxes: Tensor, segments: Sequence[int], iou_threshold: float) -> Tensor:
    """(N, n, 4) boxes in falling order of score within each segment -> (N, n) bool, which of them stay, as in nms().

    Boxes of different segments (pyramid levels, classes) or different rows (images) never suppress each other. A box
    with a NaN stays and suppresses nothing: what is to be left out can be given so, and dropped from the result.

    Args:
        boxes: rows x1 y1 x2 y2, floating point; half precision is compared in float32.
        segments: how many boxes each segment has, one after the other; n together.
        iou_threshold: in [0, 1].

    Raises:
        ValueError: another shape, threshold or number of boxes in the segments.
        TypeError: boxes that are not floating point.
    """
    return _sorted_nms(boxes, [int(count) for count in segments], iou_threshold)  # type: ignore[no-any-return]


def _check(boxes: Tensor, segments: Sequence[int]) -> None:
    if not boxes.is_floating_point():
        raise TypeError(f"boxes must be floating point, got {boxes.dtype}")
    if boxes.dim() != 3 or boxes.shape[2] != 4:
        raise ValueError(f"boxes must have shape (N, n, 4), got {tuple(boxes.shape)}")
    if min(segments, default=-1) < 0 or sum(segments) != boxes.shape[1]:
        raise ValueError(f"segments must add up to the {boxes.shape[1]} boxes, got {list(segments)}")


def _compared(boxes: Tensor) -> Tensor:
    """Packed, in float64 where they are, else in float32."""
    return boxes.detach().to(torch.promote_types(boxes.dtype, torch.float32)).contiguous()


@torch.library.custom_op("hpcai500::sorted_nms", mutates_args=(), device_types="cpu")
def _sorted_nms(boxes: Tensor, segments: Sequence[int], iou_threshold: float) -> Tensor:
    _check(boxes, segments)
    images, count = boxes.shape[:2]
    values = _compared(boxes).reshape(-1, 4).numpy()
    groups = np.arange(images)[:, None] * len(segments) + np.repeat(np.arange(len(segments)), segments)
    falling = np.broadcast_to(np.arange(count, 0, -1, dtype=values.dtype), (images, count))
    # Boxes that are left out cost nothing.
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
    _check(boxes, segments)
    of_all_images = list(segments) * boxes.shape[0]
    keep = torch.empty(boxes.shape[:2], dtype=torch.uint8, device=boxes.device)
    workspace = torch.empty(_core.nms_segments_cuda_workspace(of_all_images), dtype=torch.uint8, device=boxes.device)
    _core.nms_segments_cuda(
        _compared(boxes).reshape(-1, 4),
        of_all_images,
        keep.reshape(-1),
        workspace,
        iou_threshold=iou_threshold,
        device=boxes.get_device(),
        stream=torch.cuda.current_stream(boxes.device).cuda_stream,
    )
    return keep.bool()


@_sorted_nms.register_fake
def _(boxes: Tensor, segments: Sequence[int], iou_threshold: float) -> Tensor:
    _check(boxes, segments)
    return boxes.new_empty(boxes.shape[:2], dtype=torch.bool)
