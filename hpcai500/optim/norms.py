"""L2 norms of all layers at once, as LARS and LAMB need them, and the ratio of two of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcai500.comm import kernels


def layer_norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm of each float32 tensor, (n,), squared and summed in float64, on the device of the tensors.

    Raises:
        EnvironmentLacksError: tensors on a CUDA device, and a build without CUDA.
    """
    norms = torch.empty(len(tensors), dtype=torch.float64, device=tensors[0].device)
    kernels.layer_norms(tensors, norms)
    return norms


def ratios_of(numerators: Tensor, denominators: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Quotient of each pair as a tensor of no dimension, of the type of `like`; 1 where either is 0, and says nothing.

    They stay on the device: reading them would make a GPU wait.
    """
    known = (numerators > 0) & (denominators > 0)
    return list(torch.where(known, numerators / denominators, 1.0).to(like[0].dtype).unbind())
