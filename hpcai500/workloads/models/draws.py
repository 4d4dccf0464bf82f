"""Random numbers by which a step chooses what it trains on: of each image from a seed of its own."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def uniform(seeds: Tensor, count: int, device: torch.device) -> Tensor:
    """(N,) int64 seeds on the host -> (N, count) float32 in [0, 1) on `device`, row i from seed i alone.

    One operator, so that a compiler does not look into it: the seeds are data, and other ones need no other code.
    """
    return _uniform(seeds, count, device)  # type: ignore[no-any-return]


@torch.library.custom_op("hpcai500::uniform", mutates_args=(), device_types="cpu")
def _uniform(seeds: Tensor, count: int, device: torch.device) -> Tensor:
    numbers = torch.empty(len(seeds), count, device=device)
    generator = _generator(device)
    for row, seed in zip(numbers, seeds.tolist(), strict=True):
        row.uniform_(generator=generator.manual_seed(seed))
    return numbers


@_uniform.register_fake
def _(seeds: Tensor, count: int, device: torch.device) -> Tensor:
    return torch.empty(len(seeds), count, device=device)


@cache
def _generator(device: torch.device) -> torch.Generator:
    """One for all images of all steps, seeded anew for each: to make one takes longer."""
    return torch.Generator(device)
