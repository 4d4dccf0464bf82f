"""Gradients into one communication buffer and back, and their norms, on the CPU and on CUDA devices."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

_Wire = Literal["float32", "float16", "bfloat16"]

class _ShownByDlpack(Protocol):
    """Memory that the type's table of functions shows (DLPack 1.3), as torch's does; its type is not known here."""

    @property
    def __dlpack_c_exchange_api__(self) -> object: ...

_HostTensor = NDArray[np.float32] | _ShownByDlpack

# Sources, targets and tensors are NumPy arrays, or tensors in the processor's memory that DLPack shows: float32, dense
# in any order of their axes (channels_last is). What is packed is their memory, in its order. Buffers are NumPy arrays,
# one-dimensional, without gaps, and at least as long as needed. Each function raises ValueError that names the array
# whose type, density, alignment, size or overlap is wrong, or that is read-only, and TypeError for what is no array, or
# elsewhere. The results do not depend on `threads`, on the instruction set, or on how the caller's own arithmetic
# treats subnormal numbers.

def pack(
    sources: Sequence[_HostTensor],
    out: NDArray[Any],
    *,
    wire: _Wire,
    scale: float,
    threads: int,
    norms: NDArray[np.float64] | None = None,
) -> None:
    """Write cast(scale * source) of each source, one after the other, to `out`, in one pass.

    `out` is of the wire's type, bfloat16 as uint16. Rounded to float32, then to the wire's type, to nearest even; what
    float16 cannot hold becomes infinite, subnormal numbers are kept, NaN stays NaN. With `norms` (len(sources),), also
    the L2 norm of each source before the scale, as of layer_norms.
    """

def unpack(
    source: NDArray[Any],
    targets: Sequence[_HostTensor],
    *,
    wire: _Wire,
    scale: float,
    threads: int,
    norms: NDArray[np.float64] | None = None,
) -> None:
    """Write scale * float32(source) to the targets, one after the other; `norms` are those of what was written."""

def quantised_bytes(count: int) -> int:
    """Bytes of the int8 form of `count` values: 4160 for each 4096 of them, the last begun ones included.

    Each 4096 values are a chunk: 16 scales (float32), then 16 blocks of 256 codes (int8). A buffer can be cut at any
    multiple of 4160 bytes. Raises ValueError unless count is in [0, 2**48].
    """

def quantise(
    sources: Sequence[_HostTensor],
    out: NDArray[np.uint8],
    *,
    scale: float,
    threads: int,
    residual: NDArray[np.float32] | None = None,
    norms: NDArray[np.float64] | None = None,
) -> None:
    """Write the int8 form of scale * source + residual to `out`, and what rounding took away to `residual`.

    The sources, one after the other, are cut into blocks of 256 values, whatever tensor they are of. A block whose
    largest magnitude is a has the scale a / 127 and codes to nearest even; below 2**-119, scale and codes are 0; with
    an infinite or NaN value (or the largest float) in it, its scale is NaN, its residual 0. `norms` as of pack. Error
    feedback: Seide et al. 2014, section 3; Karimireddy et al. 2019, algorithm 2.
    """

def dequantise(
    source: NDArray[np.uint8],
    targets: Sequence[_HostTensor],
    *,
    scale: float,
    threads: int,
    accumulate: bool = False,
    norms: NDArray[np.float64] | None = None,
) -> None:
    """Write scale * (code * its block's scale) to the targets, or add it; `norms` are those of what was written."""

def layer_norms(tensors: Sequence[_HostTensor], out: NDArray[np.float64], *, threads: int) -> None:
    """Write the L2 norm of each tensor to `out` (len(tensors),), in one pass over all.

    Squared and summed in float64: relative error below 1e-10, and no value overflows or vanishes when squared. Infinite
    and NaN values give what they give in NumPy.
    """

def stream_copy(source: NDArray[np.uint8], out: NDArray[np.uint8], *, threads: int) -> None:
    """Copy past the cache: what this machine's memory does, for what it bounds to be judged by.

    Both are whole lines of 64 bytes and begin at a multiple of 64; ValueError otherwise.
    """

def stream_read(source: NDArray[np.uint8], *, threads: int) -> int:
    """Read whole lines as stream_copy does; returns the largest 32-bit word in them without its highest bit."""

class _Described(Protocol):
    """Memory of a CUDA device, with its shape, type, strides and pointer."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

# DLPack is asked first: torch's dictionary takes microseconds, and does not tell the device. It shows bfloat16, for
# which a dictionary has uint16.
_CudaArray = _ShownByDlpack | _Described

def compression_cuda_workspace(tensors: int, elements: int) -> int:
    """Bytes of device memory that the functions below need for a bucket: 12 for each tensor, 8 for each 4096 values.

    Those functions are the twins on a device of those above, with their arguments in its memory. They start one kernel
    on the stream of the number `stream` and return before it is done. Values are those of the CPU to the bit, norms to
    1e-12. They raise ValueError as their twins do, for tensors that DLPack shows on another device, for buffers of
    quantise_cuda and dequantise_cuda that begin at no multiple of 4, and for more tensors than
    compression_cuda_most_tensors(); RuntimeError in a build without CUDA, where there is no device, and with CUDA's
    message where a kernel cannot be started.
    """

def compression_cuda_most_tensors() -> int:
    """Tensors that a bucket on a device may have: 1600 from CUDA 12.1 and driver 530 on, else 192.

    layer_norms_cuda takes any number, in several kernels.
    """

def pack_cuda(
    sources: Sequence[_CudaArray],
    out: _CudaArray,
    workspace: _CudaArray,
    *,
    wire: _Wire,
    scale: float,
    device: int,
    stream: int,
    norms: _CudaArray | None = None,
) -> None:
    """As pack."""

def unpack_cuda(
    source: _CudaArray,
    targets: Sequence[_CudaArray],
    workspace: _CudaArray,
    *,
    wire: _Wire,
    scale: float,
    device: int,
    stream: int,
    norms: _CudaArray | None = None,
) -> None:
    """As unpack."""

def quantise_cuda(
    sources: Sequence[_CudaArray],
    out: _CudaArray,
    workspace: _CudaArray,
    *,
    scale: float,
    device: int,
    stream: int,
    residual: _CudaArray | None = None,
    norms: _CudaArray | None = None,
) -> None:
    """As quantise."""

def dequantise_cuda(
    source: _CudaArray,
    targets: Sequence[_CudaArray],
    workspace: _CudaArray,
    *,
    scale: float,
    device: int,
    stream: int,
    accumulate: bool = False,
    norms: _CudaArray | None = None,
) -> None:
    """As dequantise."""

def layer_norms_cuda(
    tensors: Sequence[_CudaArray], out: _CudaArray, workspace: _CudaArray, *, device: int, stream: int
) -> None:
    """As layer_norms."""

class SharedSum:
    """One rank's view of a file in memory through which the processes of a host add up float32 values.

    Rank 0 makes the file at `path`; the others must come later. Raises ValueError, and RuntimeError where memory is
    short or the file cannot be had. Does not survive fork(): in the child `all_reduce` raises RuntimeError.
    """

    def __init__(self, path: str, rank: int, ranks: int) -> None: ...
    def all_reduce(self, values: _HostTensor) -> None:
        """Replace `values` by their sum over all ranks, the same on each to the bit.

        All ranks call it with as many values. Raises RuntimeError when a rank has ended, or has closed, and in every
        later call.
        """

    def close(self) -> None:
        """The other ranks no longer wait for this one."""
