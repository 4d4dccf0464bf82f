"""Gradients as they are: summed in the very memory where the optimizer then reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from hpcai500.comm import kernels
from hpcai500.comm.wires import PlainWire
from hpcai500.comm.working_memory import Buffers


class Fp32Wire(PlainWire):
    """No compression. Each bucket has a buffer of its own, and its gradients become views of it.

    That spares a pass over memory, and what autograd allocated goes back while the backward pass still runs, as with
    `gradient_as_bucket_view` of torch's DistributedDataParallel.
    """

    def __init__(self, buffers: Buffers, threads: int | None) -> None:
        super().__init__("none", buffers, None, threads)
        self._kept: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
        """As the protocol."""
        if bucket not in self._kept:
            packed = torch.zeros(elements, device=gradients[0].device)
            self._kept[bucket] = packed, _views(packed, gradients)
        packed, views = self._kept[bucket]
        # A gradient that was kept from the last update is still a view; the kernel cannot write where it reads.
        sources = [
            gradient.clone() if gradient is view else gradient for gradient, view in zip(gradients, views, strict=True)
        ]
        kernels.pack(sources, packed, scale=scale, norms=norms, threads=self._threads)
        return packed

    def targets(self, gradients: Sequence[Tensor], bucket: int) -> Sequence[Tensor]:
        """As the protocol."""
        return self._kept[bucket][1]

    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        """As the protocol."""
        if packed.data_ptr() != targets[0].data_ptr():
            super().unpack(packed, targets)

    def forget(self) -> None:
        """As the protocol."""
        self._kept.clear()


def _views(packed: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Views of `packed` that have shape and layout of `gradients`, one after the other."""
    starts = accumulate((gradient.numel() for gradient in gradients), initial=0)
    return [
        packed[start:].as_strided(gradient.shape, gradient.stride())
        for start, gradient in zip(starts, gradients, strict=False)
    ]
