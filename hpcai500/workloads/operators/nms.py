"""Greedy non-maximum suppression, as torchvision's `nms` defines it, also within groups."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.workloads.operators.device import require_cuda_build


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes that stay, int64, in falling order of score; of equal scores the earlier comes first.

    A box goes when its intersection over union with a box that stays is above `iou_threshold`. A NaN counts as the
    highest score, as in torch.sort. A ratio that is not a number (two boxes without area, a coordinate that is NaN or
    infinite) is not above anything: such boxes stay, and suppress nothing.

    Args:
        boxes: (n, 4), rows x1 y1 x2 y2, floating point. Half precision is compared in float32, under autocast too.
        scores: (n,), floating point.
        iou_threshold: in [0, 1].

    Raises:
        ValueError: another shape or threshold.
        TypeError: boxes or scores that are not floating point.
    """
    return _nms(boxes, scores, None, iou_threshold)  # type: ignore[no-any-return]


def batched_nms(boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float) -> Tensor:
    """nms() within each group: boxes of different groups (classes, pyramid levels) never suppress each other.

    Groups are compared as numbers; no offset is added to coordinates, which would cost them precision.

    Args:
        boxes: as in nms().
        scores: as in nms().
        groups: (n,), integers.
        iou_threshold: as in nms().

    Raises:
        ValueError: as nms().
        TypeError: as nms(), or groups that are not integers.
    """
    return _nms(boxes, scores, groups, iou_threshold)  # type: ignore[no-any-return]


def _compared_type(boxes: Tensor, scores: Tensor, groups: Tensor | None) -> torch.dtype:
    """float64 where a tensor is, else float32."""
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
        device=boxes.get_device(),
        stream=torch.cuda.current_stream(boxes.device).cuda_stream,
    )
    # The only wait: the host has to learn how many stay.
    return order[keep.bool()]


@_nms.register_fake
def _(boxes: Tensor, scores: Tensor, groups: Tensor | None, iou_threshold: float) -> Tensor:
    _compared_type(boxes, scores, groups)
    # How many stay is known from the values only.
    kept = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty((kept,), dtype=torch.int64)
