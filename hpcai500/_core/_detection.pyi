"""Non-maximum suppression and RoIAlign, on the CPU and on CUDA devices."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

def nms(
    boxes: NDArray[Any],
    scores: NDArray[Any],
    groups: NDArray[np.int64] | None,
    *,
    iou_threshold: float,
    threads: int,
) -> NDArray[np.int64]:
    """Indices of the boxes that stay, in falling order of score; hpcai500.workloads.operators tells the rule.

    `boxes` (n, 4), rows x1 y1 x2 y2, and `scores` (n,) are both float32 or both float64; with `groups` (n,), boxes
    suppress only boxes of their own. C-contiguous. Raises ValueError on another shape, type or threshold.
    """

def roi_align(
    features: NDArray[Any],
    rois: NDArray[Any],
    out: NDArray[Any],
    *,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    threads: int,
) -> None:
    """Pools each roi of the features to `out`; hpcai500.workloads.operators tells the rule.

    `features` (images, channels, height, width): float32, float16, bfloat16 as uint16, or float64, contiguous with
    channels first or last (by their strides). `rois` (k, 5): float32, or float64 where the features are. `out`
    (k, channels, pooled_height, pooled_width): of the features' type, C-contiguous.

    Raises ValueError on another shape or type, and where a roi's image does not exist.
    """

def roi_align_backward(
    gradient: NDArray[Any],
    rois: NDArray[Any],
    out: NDArray[Any],
    *,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    threads: int,
) -> None:
    """Writes the gradient by the features, of their shape and layout, to `out`; `gradient` is shaped as pooled."""

class _CudaArray(Protocol):
    """Memory of a CUDA device, with its shape, type, strides and pointer."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

def cuda_device_count() -> int:
    """CUDA devices that can be used; 0 without a driver, and in a build without CUDA."""

def cuda_architectures() -> list[str]:
    """What the CUDA kernels were compiled for, such as "90-real"; empty in a build without CUDA.

    The functions below are the twins on a device of those above, with their arguments in its memory; `stream` is the
    number of the stream that they work on, and they return before it is done. They raise RuntimeError in a build
    without CUDA, and with CUDA's message where a kernel cannot be started.
    """

def nms_cuda_workspace(count: int) -> int:
    """Bytes of device memory that nms_cuda needs for `count` boxes: about half a kilobyte a box, or less."""

def nms_cuda(
    boxes: _CudaArray,
    groups: _CudaArray | None,
    keep: _CudaArray,
    workspace: _CudaArray,
    *,
    iou_threshold: float,
    device: int,
    stream: int,
) -> None:
    """Sets `keep` (n,) uint8 to 1 or 0 for `boxes` (n, 4), and `groups` (n,), in falling order of score."""

def nms_segments_cuda_workspace(segments: Sequence[int]) -> int:
    """Bytes of device memory that nms_segments_cuda needs: at most 256 MiB, or what its largest segment does."""

def nms_segments_cuda(
    boxes: _CudaArray,
    segments: Sequence[int],
    keep: _CudaArray,
    workspace: _CudaArray,
    *,
    iou_threshold: float,
    device: int,
    stream: int,
) -> None:
    """nms_cuda of many segments at once, whose `boxes` (n, 4) lie one segment after the other.

    `segments` are on the host: how many boxes each has, n together. Boxes suppress only boxes of their segment. Two
    kernels are started for up to 128 segments of up to 4096 boxes, and two more for each 4096 more of the largest.
    """

def roi_align_cuda(
    features: _CudaArray,
    rois: _CudaArray,
    out: _CudaArray,
    *,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    device: int,
    stream: int,
) -> None:
    """As roi_align; a roi whose image does not exist gives NaN."""

def roi_align_backward_cuda(
    gradient: _CudaArray,
    rois: _CudaArray,
    out: _CudaArray,
    *,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    device: int,
    stream: int,
) -> None:
    """As roi_align_backward, but `out` is float32 (float64 for float64), and its last bits differ from run to run."""

def roi_align_levels_cuda(
    levels: Sequence[_CudaArray],
    rois: _CudaArray,
    level_of: _CudaArray,
    out: _CudaArray,
    *,
    spatial_scales: Sequence[float],
    sampling_ratio: int,
    aligned: bool,
    device: int,
    stream: int,
) -> None:
    """As roi_align_cuda, roi k from levels[level_of[k]], by one kernel; a roi whose level does not exist gives NaN.

    1 to 8 levels, alike but for their height and width, with one spatial scale each; `level_of` (k,) int64.
    """

def roi_align_levels_backward_cuda(
    gradient: _CudaArray,
    rois: _CudaArray,
    level_of: _CudaArray,
    out: Sequence[_CudaArray],
    *,
    spatial_scales: Sequence[float],
    sampling_ratio: int,
    aligned: bool,
    device: int,
    stream: int,
) -> None:
    """As roi_align_backward_cuda, to the gradients of all levels, by one kernel; all of `out` is written."""
