"""What tests of sums over ranks share: settings, values of many magnitudes, and how far from exact a sum may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcai500.layers import Communication
from hpcai500.recipe import reference_recipe

TOPOLOGIES = ("flat", "hierarchical", "torus", "parameter-server")
COMPRESSIONS = ("none", "fp16", "bf16", "int8")
BLOCK = 256
# Unit roundoff, and half of the smallest subnormal number.
_ROUNDING = {"none": (2.0**-24, 0.0), "fp16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 0.0)}


def settings(**changes: Any) -> Communication:
    """The reference's table, changed."""
    return reference_recipe("ic").communication.model_copy(update=changes)


def gradients_of(rank: int, lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    """A rank's gradients: magnitudes from 1e-4 to 10, as the layers of a network have them."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    magnitudes = 10 ** (5 * torch.rand(len(lengths), generator=generator) - 4)
    return [
        torch.randn(length, generator=generator) * magnitude
        for length, magnitude in zip(lengths, magnitudes.tolist(), strict=True)
    ]


def error_bound(everyones: Tensor, compression: str) -> Tensor:
    """How far each element of a computed average of `everyones` (ranks, n) may be from the exact one.

    fp32, fp16 and bf16 round each share once and each of at most n additions once. int8 rounds when it is packed and in
    at most two sums, each time by 0.501 / 127 of the largest magnitude in the block, which no sum makes larger than the
    sum of the shares' largest magnitudes.
    """
    ranks, length = everyones.shape
    shares = everyones.double().abs() / ranks
    if compression != "int8":
        unit, tiny = _ROUNDING[compression]
        return (ranks + 3) * (unit * shares.sum(0) + tiny)
    blocks = torch.nn.functional.pad(shares, (0, -length % BLOCK)).view(ranks, -1, BLOCK)
    largest = blocks.amax(2).sum(0)
    return (3 * 1.03 * 0.501 / 127 * largest).repeat_interleave(BLOCK)[:length] + 1e-30
