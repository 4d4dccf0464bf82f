"""Group norm on CUDA devices, of images whose channels are last."""

from hpcai500._core._conversion import _CudaArray

def group_norm_cuda_workspace(images: int, pixels: int, channels: int, groups: int, is_float32: bool) -> int:
    """Bytes of device memory that group_norm_cuda and group_norm_backward_cuda need.

    Raises ValueError for channels that are no multiple of 8 and of the groups, RuntimeError in a build without CUDA.
    """

def group_norm_cuda(
    images: _CudaArray,
    weight: _CudaArray,
    bias: _CudaArray,
    out: _CudaArray,
    moments: _CudaArray,
    workspace: _CudaArray,
    *,
    groups: int,
    epsilon: float,
    device: int,
    stream: int,
) -> None:
    """Writes (images - mean) * inverse * weight + bias, and moments: each group's mean, then its inverse.

    `images` (N, C, H, W) and `out` are float32, float16, or bfloat16 as its bits, contiguous with channels last, at
    multiples of 16 bytes; C is a multiple of 8. `weight` and `bias` (C,), `moments` (2 * N * groups,) are float32,
    `workspace` uint8. Does not wait.

    Raises ValueError on another type, shape, layout or device, and RuntimeError, in a build without CUDA too.
    """

def group_norm_backward_cuda(
    images: _CudaArray,
    gradient: _CudaArray,
    weight: _CudaArray,
    moments: _CudaArray,
    out: _CudaArray,
    sums: _CudaArray,
    workspace: _CudaArray,
    *,
    groups: int,
    device: int,
    stream: int,
) -> None:
    """Writes the gradient of `images`, and sums (2 * N * C,): over each image's pixels, of the gradient and of the
    gradient times the normalised image. Summed over images, they are the gradients of bias and weight.

    All else as in group_norm_cuda, which wrote `moments`.
    """
