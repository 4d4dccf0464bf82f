"""Batches of images: normalised by channel, cast and laid out in one pass, on the CPU and on CUDA devices."""

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

class _ShownByDlpack(Protocol):
    @property
    def __dlpack_c_exchange_api__(self) -> object: ...

class _Described(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_CudaArray = _ShownByDlpack | _Described

def convert_images(
    images: NDArray[Any],
    out: NDArray[Any],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    threads: int,
) -> None:
    """Writes value * scale + bias of each value: scale is 1 / std and bias -mean / std of its channel as float32, the
    sum is rounded once to float32 and, for a short type, once more to nearest even. Without mean and std it casts.

    `images` (N, channels, height, width) is float32, float16, bfloat16 as uint16, or uint8; `out`, of the same shape,
    any of the first three. Each is contiguous with channels first or last (by its strides), whichever the other is. At
    most 256 channels. NaN stays NaN; what float16 cannot hold becomes infinite.

    Raises ValueError on another shape, type, layout, mean or std, and where both overlap.
    """

def convert_images_cuda(
    images: _CudaArray,
    out: _CudaArray,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: int,
    stream: int,
) -> None:
    """convert_images on a device: one kernel. Does not wait.

    Raises also ValueError for arrays that DLPack shows on another device, and RuntimeError, in a build without CUDA
    too.
    """
