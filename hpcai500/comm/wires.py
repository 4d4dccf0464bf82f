"""How gradients travel: packed into one flat buffer in a type of their own, summed, and unpacked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from hpcai500.comm import kernels
from hpcai500.comm.base import Communicator
from hpcai500.comm.traffic import Traffic, reduce_to, ring_all_reduce, ring_pass
from hpcai500.comm.working_memory import Buffers, Place, Residuals

TYPES = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Wire(Protocol):
    """A form of gradients and the arithmetic on it. One thread at a time uses it.

    Packed buffers are flat tensors; what methods return is valid until the next `pack`. All-gather and broadcast need
    no arithmetic: the communicator moves packed buffers as they are, which keeps them alike on all ranks to the bit.

    Attributes:
        grain: a packed buffer may be cut wherever a multiple of this many gradient elements ends.
    """

    grain: int

    def packed_bytes(self, elements: int) -> int:
        """Size of `elements` packed gradient elements, a multiple of `grain`."""

    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
        """`scale` times the gradients (float32), one after the other in memory order, then 0 up to `elements`.

        `norms` receives the L2 norm of each gradient, before the scale and without residuals.
        """

    def targets(self, gradients: Sequence[Tensor], bucket: int) -> Sequence[Tensor]:
        """Where the averages of packed `gradients` come to be: there, or in what takes their place."""

    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        """Write a packed buffer to its bucket's targets."""

    def forget(self) -> None:
        """Other buckets come: nothing kept for these is of use."""

    def all_reduce(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """The sum over `group`, on all its members the same bits."""

    def reduce(self, group: Communicator, packed: Tensor, root: int, place: Place) -> Tensor:
        """The sum over `group`, on member `root`; undefined elsewhere."""

    def reduce_scatter(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """This member's piece of the sum over `group`, which has a whole number of grains."""

    def all_reduce_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """What this rank sends in `all_reduce`."""

    def reduce_traffic(self, group: Communicator, packed_bytes: int, root: int) -> Traffic:
        """What this rank sends in `reduce`."""

    def reduce_scatter_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """What this rank sends in `reduce_scatter`."""


class PlainWire:
    """fp16 or bf16, and what they share with fp32: the library sums buffers in their own type.

    Gradients are multiplied by the scale before they are rounded, so that no sum of fp16 overflows where the average
    would not. With residuals, what the cast took away is added to the next step's gradients; what the sums take away in
    fp16 and bf16 is not.
    """

    grain = 1

    def __init__(self, name: str, buffers: Buffers, residuals: Residuals | None, threads: int | None) -> None:
        self._type = TYPES[name]
        self._buffers, self._residuals, self._threads = buffers, residuals, threads

    def packed_bytes(self, elements: int) -> int:
        """As the protocol."""
        return elements * self._type.itemsize

    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
        """As the protocol."""
        packed = self._buffers.take("packed", elements, self._type)
        count = sum(gradient.numel() for gradient in gradients)
        if self._residuals is None:
            kernels.pack(gradients, packed, scale=scale, norms=norms, threads=self._threads)
        else:
            residual = self._residuals.at((bucket, "pack"), count)
            self._pack_with_feedback(gradients, packed, scale, residual, norms)
        packed[count:].zero_()
        return packed

    def _pack_with_feedback(
        self, gradients: Sequence[Tensor], packed: Tensor, scale: float, residual: Tensor, norms: Tensor | None
    ) -> None:
        wanted = self._buffers.take("wanted", len(residual), torch.float32)
        kernels.pack(gradients, wanted, scale=scale, norms=norms, threads=self._threads)
        wanted += residual
        kernels.pack([wanted], packed, threads=self._threads)
        kernels.unpack(packed, [residual], threads=self._threads)
        torch.sub(wanted, residual, out=residual)
        # An overflow is seen by all ranks in the sum; remembered, it would never go away.
        residual.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def targets(self, gradients: Sequence[Tensor], bucket: int) -> Sequence[Tensor]:
        """As the protocol."""
        return gradients

    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        """As the protocol."""
        kernels.unpack(packed, targets, threads=self._threads)

    def forget(self) -> None:
        """As the protocol."""
        if self._residuals:
            self._residuals.forget()

    def all_reduce(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """As the protocol."""
        group.all_reduce(packed)
        return packed

    def reduce(self, group: Communicator, packed: Tensor, root: int, place: Place) -> Tensor:
        """As the protocol."""
        group.reduce(packed, root)
        return packed

    def reduce_scatter(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """As the protocol."""
        piece = self._buffers.take(f"piece {place[1]}", len(packed) // group.size, self._type)
        group.reduce_scatter(packed, piece)
        return piece

    def all_reduce_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """As the protocol."""
        return ring_all_reduce(group, packed_bytes)

    def reduce_traffic(self, group: Communicator, packed_bytes: int, root: int) -> Traffic:
        """As the protocol."""
        return reduce_to(group, packed_bytes, root)

    def reduce_scatter_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """As the protocol."""
        return ring_pass(group, packed_bytes)
