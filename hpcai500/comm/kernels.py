"""Torch's face of the bucket kernels: gradients into one buffer of another type and back, and the norms of all layers.

Tensors are float32 and dense in any order of their axes (channels_last is): what is packed is their memory, in its
order, so that both ends must lay a tensor out alike. All are on one device. The CPU's work is done on return, a CUDA
device's on its current stream. docs/compression.md tells what happens to overflow, NaN and subnormal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.errors import EnvironmentLacksError

# Values in the smallest part of a quantised buffer that means something by itself, and its bytes.
QUANTISED_CHUNK: Final = 4096
QUANTISED_CHUNK_BYTES: Final = 4160

Wire = Literal["float32", "float16", "bfloat16"]
_WIRES: Final[dict[torch.dtype, Wire]] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


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
        scale: a factor, as of the loss scaler.
        norms: (len(sources),) float64, receives the L2 norm of each source before the scale.
        threads: of the CPU; torch's number by default.

    Raises:
        ValueError: a wrong type, shape, layout, size or overlap, with the tensor's name.
        EnvironmentLacksError: tensors on a CUDA device, and a build without CUDA.
    """
    wire = _wire(out, "out")
    if out.is_cuda:
        on_device = _on_device(out, sources, norms)
        _core.pack_cuda(_shown(sources), _bits(out), wire=wire, scale=scale, norms=norms, **on_device)
        return
    _core.pack(
        _arrays(sources), _array(out), wire=wire, scale=scale, norms=_maybe_array(norms), threads=_threads(threads)
    )


def unpack(
    source: Tensor,
    targets: Sequence[Tensor],
    *,
    scale: float = 1.0,
    norms: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """Write the scaled values of a packed buffer to the targets; arguments as of pack(), norms of what was written."""
    wire = _wire(source, "source")
    if source.is_cuda:
        on_device = _on_device(source, targets, norms)
        _core.unpack_cuda(_bits(source), _shown(targets), wire=wire, scale=scale, norms=norms, **on_device)
        return
    _core.unpack(
        _array(source), _arrays(targets), wire=wire, scale=scale, norms=_maybe_array(norms), threads=_threads(threads)
    )


def quantised_bytes(count: int) -> int:
    """Bytes of the int8 form of `count` values: QUANTISED_CHUNK_BYTES for each begun QUANTISED_CHUNK of them."""
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
    """Write the int8 form of scale * source + residual to `out`, and what rounding took away to `residual`.

    Args:
        sources: float32.
        out: (n,) uint8, n at least quantised_bytes(the sources together).
        scale: as of pack().
        residual: (n,) float32, at least as long as the sources together; zeros before the first step.
        norms: as of pack().
        threads: as of pack().

    Raises:
        ValueError: as pack().
        EnvironmentLacksError: as pack().
    """
    if out.is_cuda:
        on_device = _on_device(out, sources, norms, residual)
        _core.quantise_cuda(_shown(sources), out.detach(), scale=scale, residual=residual, norms=norms, **on_device)
        return
    _core.quantise(
        _arrays(sources),
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
    """Write the scaled values of the int8 form to the targets, or add them; arguments as of quantise()."""
    if source.is_cuda:
        on_device = _on_device(source, targets, norms)
        _core.dequantise_cuda(
            source.detach(), _shown(targets), scale=scale, accumulate=accumulate, norms=norms, **on_device
        )
        return
    _core.dequantise(
        _array(source),
        _arrays(targets),
        scale=scale,
        accumulate=accumulate,
        norms=_maybe_array(norms),
        threads=_threads(threads),
    )


def layer_norms(tensors: Sequence[Tensor], out: Tensor, *, threads: int | None = None) -> None:
    """Write the L2 norm of each tensor, squared and summed in float64, to `out` (len(tensors),) float64, in one pass.

    Raises:
        ValueError: as pack().
        EnvironmentLacksError: as pack().
    """
    if out.is_cuda:
        _core.layer_norms_cuda(_shown(tensors), out.detach(), **_on_device(out, tensors))
        return
    _core.layer_norms(_arrays(tensors), _array(out), threads=_threads(threads))


def _threads(threads: int | None) -> int:
    return torch.get_num_threads() if threads is None else threads


def _wire(buffer: Tensor, name: str) -> Wire:
    wire = _WIRES.get(buffer.dtype)
    if wire is None:
        raise ValueError(f"{name} must be float32, float16 or bfloat16, got {buffer.dtype}")
    return wire


def _bits(buffer: Tensor) -> Tensor:
    """The buffer for the core: bfloat16, which arrays lack, as uint16."""
    buffer = buffer.detach()
    return buffer.view(torch.uint16) if buffer.dtype == torch.bfloat16 else buffer


def _array(tensor: Tensor) -> Any:
    return _bits(tensor).numpy()


def _maybe_array(tensor: Tensor | None) -> Any:
    return None if tensor is None else _array(tensor)


def _arrays(tensors: Sequence[Tensor]) -> list[Any]:
    # Without a detach() that changes nothing: a bucket has hundreds of tensors, and gradients want no gradient.
    return [tensor.detach().numpy() if tensor.requires_grad else tensor.numpy() for tensor in tensors]


def _shown(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach() if tensor.requires_grad else tensor for tensor in tensors]


def _on_device(buffer: Tensor, tensors: Sequence[Tensor], *others: Tensor | None) -> dict[str, Any]:
    """Workspace, device and stream of a call. Raises what keeps tensors and core from one CUDA device."""
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "hpcai500 is built without CUDA, but a buffer is on a CUDA device: put nvcc on PATH (or set CUDACXX) and"
            " run make build again, or use CPU tensors"
        )
    for tensor in (*tensors, *others):
        if tensor is not None and tensor.device != buffer.device:
            raise ValueError(f"a tensor is on {tensor.device}, but its buffer is on {buffer.device}")
    elements = sum(tensor.numel() for tensor in tensors)
    size = _core.compression_cuda_workspace(len(tensors), elements)
    return {
        "workspace": torch.empty(size, dtype=torch.uint8, device=buffer.device),
        "device": buffer.get_device(),
        "stream": torch.cuda.current_stream(buffer.device).cuda_stream,
    }
