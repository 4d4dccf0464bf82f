"""Ranks hold equal replicas of one model: made equal at the start, looked at after each epoch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpcai500.comm.base import Communicator
from hpcai500.errors import RunError


def make_equal(model: nn.Module, ranks: Communicator, root: int = 0) -> None:
    """Give every rank the weights and buffers of rank `root`, for whatever made them differ."""
    tensors = _tensors(model)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.flatten() for tensor in alike])
        ranks.broadcast(flat, root)
        for tensor, value in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
            tensor.copy_(value.view(tensor.shape))


def average_statistics(model: nn.Module, ranks: Communicator) -> None:
    """Replace running statistics by their mean over all ranks: each has seen other samples.

    Without it the quality would be that of whatever rank happens to evaluate a sample.
    """
    if ranks.size == 1:
        return
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not statistics:
        return
    flat = torch.cat([buffer.flatten().double() for buffer in statistics])
    ranks.all_reduce(flat)
    flat /= ranks.size
    for buffer, mean in zip(statistics, flat.split([buffer.numel() for buffer in statistics]), strict=True):
        buffer.copy_(mean.view_as(buffer))


def require_equal(model: nn.Module, ranks: Communicator) -> str | None:
    """Make sure that all ranks hold the same weights, bit for bit; returns their digest, None for one rank.

    Raises:
        RunError: they differ: a sum was not the same everywhere, or a rank's memory or arithmetic is faulty.
    """
    if ranks.size == 1:
        return None
    digests = ranks.gather_objects(_digest(model))
    odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if odd:
        named = ", ".join(f"{rank} on {ranks.hosts[rank]}" for rank in odd[:8])
        raise RunError(
            f"the replicas have drifted apart: the weights of rank {named} differ from those of rank 0: a sum was not "
            "the same on all ranks, or a host computes wrongly; try another communication.backend, then check the host"
        )
    return f"{digests[0]:016x}"


def _digest(model: nn.Module) -> int:
    """Sum of all bit patterns, each weighted by its place, modulo 2**64: cheap where the weights are."""
    digest = 0
    for tensor in _tensors(model):
        bits = tensor.detach().flatten().view(torch.uint8).to(torch.int64)
        places = torch.arange(1, bits.numel() + 1, dtype=torch.int64, device=bits.device)
        digest = (digest * 1_000_003 + int((bits * places).sum())) % 2**64
    return digest


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
