"""The compiled core's bucket kernels on torch tensors: gradients into a buffer of another type and back, and norms.

Tensors are float32 and dense in any order of their axes (like channels_last): they are packed in memory order, so a
tensor must have the same layout on both ends. All are on one device. CPU work is done on return, CUDA work is put on
the current stream. docs/communication.md describes overflow, NaN and subnormal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError

# Values and bytes of the smallest part of a quantised buffer that can be decoded separately.
QUANTISED_CHUNK: Final = 4096
QUANTISED_CHUNK_BYTES: Final = 4160

Wire = Literal["float32", "float16", "bfloat16"]
_WIRES: Final[dict[torch.dtype, Wire]] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


def most_tensors(device: torch.device) -> int | None:
    """Tensors that the functions below take on `device`, except `layer_norms`; None: any number.

    Raises:
        EnvironmentLacksError: `device` is a CUDA device, but this build lacks CUDA.
    """
    if device.type != "cuda":
        return None
    _require_cuda()
    return _core.compression_cuda_most_tensors()


def pack(
    sources: Sequence[Tensor],
    out: Tensor,
    *,
    scale: float = 1.0,
    norms: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """Write the scaled sources, one after the other, to `out` in its type, in one pass.

    Args:
        sources: float32.
        out: (n,), float32, float16 or bfloat16, at least as long as the sources together.
        norms: (len(sources),) float64, receives the L2 norm of each source before the scale.
        threads: CPU threads; None is torch's number.

    Raises:
        ValueError: a wrong type, shape, layout, size or overlap, with the tensor's name.
        EnvironmentLacksError: tensors are on a CUDA device, but this build lacks CUDA.
    """
    wire = _wire(out, "out")
    if out.is_cuda:
        on_device = _on_device(out, len(sources), out.numel())
        _core.pack_cuda(sources, out, wire=wire, scale=scale, norms=norms, **on_device)
        return
    _core.pack(
        _checked(sources), _array(out), wire=wire, scale=scale, norms=_maybe_array(norms), threads=_threads(threads)
    )


def unpack(
    source: Tensor,
    targets: Sequence[Tensor],
    *,
    scale: float = 1.0,
    norms: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """Write the scaled values of a packed buffer to the targets; arguments as in `pack`, norms of the targets."""
    wire = _wire(source, "source")
    if source.is_cuda:
        on_device = _on_device(source, len(targets), source.numel())
        _core.unpack_cuda(source, targets, wire=wire, scale=scale, norms=norms, **on_device)
        return
    _core.unpack(
        _array(source), _checked(targets), wire=wire, scale=scale, norms=_maybe_array(norms), threads=_threads(threads)
    )


def quantised_bytes(count: int) -> int:
    """Bytes of the int8 form of `count` values: QUANTISED_CHUNK_BYTES for each full or partial QUANTISED_CHUNK."""
    return _core.quantised_bytes(count)


def quantise(
    sources: Sequence[Tensor],
    out: Tensor,
    *,
    scale: float = 1.0,
    residual: Tensor | None = None,
    norms: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """Write the int8 form of scale * source + residual to `out`, and the rounding error to `residual`.

    Args (others and errors as in `pack`):
        out: (n,) uint8, n at least `quantised_bytes` of the sources together.
        residual: (n,) float32, at least as long as the sources together; zeros before the first step.
    """
    if out.is_cuda:
        on_device = _on_device(out, len(sources), _most_values(out))
        _core.quantise_cuda(sources, out, scale=scale, residual=residual, norms=norms, **on_device)
        return
    _core.quantise(
        _checked(sources),
        _array(out),
        scale=scale,
        residual=_maybe_array(residual),
        norms=_maybe_array(norms),
        threads=_threads(threads),
    )


def dequantise(
    source: Tensor,
    targets: Sequence[Tensor],
    *,
    scale: float = 1.0,
    accumulate: bool = False,
    norms: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """Write the scaled values of the int8 form to the targets, or add them; arguments as in `quantise`."""
    if source.is_cuda:
        on_device = _on_device(source, len(targets), _most_values(source))
        _core.dequantise_cuda(source, targets, scale=scale, accumulate=accumulate, norms=norms, **on_device)
        return
    _core.dequantise(
        _array(source),
        _checked(targets),
        scale=scale,
        accumulate=accumulate,
        norms=_maybe_array(norms),
        threads=_threads(threads),
    )


def layer_norms(tensors: Sequence[Tensor], out: Tensor, *, threads: int | None = None) -> None:
    """Write the L2 norm of each tensor, squared and summed in float64, to `out` (len(tensors),) float64, in one pass.

    Raises as `pack`.
    """
    if out.is_cuda:
        on_device = _on_device(out, len(tensors), sum(map(Tensor.numel, tensors)))
        _core.layer_norms_cuda(tensors, out, **on_device)
        return
    _core.layer_norms(_checked(tensors), _array(out), threads=_threads(threads))


def _threads(threads: int | None) -> int:
    return torch.get_num_threads() if threads is None else threads


def _wire(buffer: Tensor, name: str) -> Wire:
    wire = _WIRES.get(buffer.dtype)
    if wire is None:
        raise ValueError(f"{name} must be float32, float16 or bfloat16, got {buffer.dtype}")
    return wire


def _most_values(buffer: Tensor) -> int:
    return buffer.numel() // QUANTISED_CHUNK_BYTES * QUANTISED_CHUNK


def _array(tensor: Tensor) -> Any:
    """A NumPy view; bfloat16, which NumPy lacks, as uint16."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _maybe_array(tensor: Tensor | None) -> Any:
    return None if tensor is None else _array(tensor)


def _checked(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """CPU tensors for the core, which takes tensors: converting hundreds to arrays would cost more than packing.

    Raises:
        ValueError: a tensor has its negative bit set, which is not visible in its memory.
    """
    if any(map(Tensor.is_neg, tensors)):
        raise ValueError("a tensor has its negative bit set: pass tensor.resolve_neg()")
    return tensors


def _on_device(buffer: Tensor, tensors: int, elements: int) -> dict[str, Any]:
    """Workspace for at most `elements` values, device and stream of a call."""
    _require_cuda()
    size = _core.compression_cuda_workspace(tensors, elements)
    return {
        "workspace": torch.empty(size, dtype=torch.uint8, device=buffer.device),
        "device": buffer.get_device(),
        "stream": torch.cuda.current_stream(buffer.device).cuda_stream,
    }


def _require_cuda() -> None:
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "hpcai500 is built without CUDA, but a buffer is on a CUDA device: put nvcc on PATH (or set CUDACXX) and"
            " run make build again, or use CPU tensors"
        )
