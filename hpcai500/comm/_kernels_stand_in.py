"""Until comm/kernels.py is here: the same functions in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

QUANTISED_CHUNK = 4096
QUANTISED_CHUNK_BYTES = 4160
_BLOCK = 256


def _flat(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def pack(sources: Sequence[Tensor], out: Tensor, *, scale: float = 1.0, threads: int | None = None) -> None:
    at = 0
    for source in sources:
        out[at : at + source.numel()] = _flat(source) * scale
        at += source.numel()


def unpack(source: Tensor, targets: Sequence[Tensor], *, scale: float = 1.0, threads: int | None = None) -> None:
    at = 0
    for target in targets:
        _flat(target).copy_(source[at : at + target.numel()].float() * scale)
        at += target.numel()


def quantised_bytes(count: int) -> int:
    return -(-count // QUANTISED_CHUNK) * (QUANTISED_CHUNK + 64)


def quantise(
    sources: Sequence[Tensor],
    out: Tensor,
    *,
    scale: float = 1.0,
    threads: int | None = None,
    residual: Tensor | None = None,
) -> None:
    values = torch.cat([_flat(source) for source in sources]) * scale
    count = len(values)
    if residual is not None:
        values += residual[:count]
    chunks = -(-count // QUANTISED_CHUNK)
    padded = torch.nn.functional.pad(values, (0, chunks * QUANTISED_CHUNK - count)).view(-1, _BLOCK)
    largest = padded.abs().amax(1, keepdim=True)
    bad = ~(largest < torch.finfo(torch.float32).max)
    scales = torch.where(bad, torch.nan, largest / 127)
    tiny = largest < 2.0**-119
    scales = torch.where(tiny, 0.0, scales)
    codes = torch.where(bad | tiny, 0.0, (padded * (127 / largest)).round()).to(torch.int8)
    bytes_ = out[: quantised_bytes(count)].view(chunks, QUANTISED_CHUNK + 64)
    bytes_[:, :64] = scales.view(chunks, 16).contiguous().view(torch.uint8)
    bytes_[:, 64:] = codes.view(chunks, QUANTISED_CHUNK).view(torch.uint8)
    if residual is not None:
        left = torch.where(bad, 0.0, padded - codes.float() * scales.nan_to_num())
        residual[:count] = left.view(-1)[:count]


def dequantise(
    source: Tensor,
    targets: Sequence[Tensor],
    *,
    scale: float = 1.0,
    threads: int | None = None,
    accumulate: bool = False,
) -> None:
    count = sum(target.numel() for target in targets)
    rows = source[: quantised_bytes(count)].view(-1, QUANTISED_CHUNK + 64)
    scales = rows[:, :64].contiguous().view(torch.float32).view(-1, 1)
    codes = rows[:, 64:].contiguous().view(torch.int8).view(-1, _BLOCK)
    values = (codes.float() * scales * scale).view(-1)
    at = 0
    for target in targets:
        part = values[at : at + target.numel()]
        if accumulate:
            _flat(target).add_(part)
        else:
            _flat(target).copy_(part)
        at += target.numel()
