"""Gradients as int8 with a scale for each block of 256, which no library can sum: the sums are made here, in fp32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcai500.comm import kernels
from hpcai500.comm.base import Communicator
from hpcai500.comm.traffic import Traffic, direct_all_to_all, ring_pass
from hpcai500.comm.working_memory import Buffers, Place, Residuals


class QuantisedWire:
    """int8: pieces of packed buffers are exchanged, summed in fp32 where they arrive, and quantised again.

    Values are rounded when they are packed and once in each sum after that; between the sums, they travel unchanged. A
    rounding changes a value by at most 0.501 / 127 of the largest magnitude in its block of 256. A block with a value
    that is no number becomes NaN whole, on every rank. With residuals, each place that rounds adds what it took away to
    its values of the next step.

    A reduce is a reduce-scatter and a gather of the pieces (Rabenseifner 2004, "Optimization of collective reduction
    operations"), so that all members share the arithmetic; for want of a gather it is an all-gather.
    """

    grain = kernels.QUANTISED_CHUNK

    def __init__(self, buffers: Buffers, residuals: Residuals | None, threads: int | None) -> None:
        self._buffers, self._residuals, self._threads = buffers, residuals, threads

    def packed_bytes(self, elements: int) -> int:
        """As the protocol."""
        return kernels.quantised_bytes(elements)

    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
        """As the protocol."""
        packed = self._buffers.take("packed", self.packed_bytes(elements), torch.uint8)
        count = sum(gradient.numel() for gradient in gradients)
        residual = self._residuals.at((bucket, "pack"), count) if self._residuals else None
        kernels.quantise(gradients, packed, scale=scale, residual=residual, norms=norms, threads=self._threads)
        packed[self.packed_bytes(count) :].zero_()
        return packed

    def targets(self, gradients: Sequence[Tensor], bucket: int) -> Sequence[Tensor]:
        """As the protocol."""
        return gradients

    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        """As the protocol."""
        kernels.dequantise(packed, targets, threads=self._threads)

    def forget(self) -> None:
        """As the protocol."""
        if self._residuals:
            self._residuals.forget()

    def all_reduce(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """As the protocol."""
        padded = self._padded(packed, group.size, place)
        piece = self.reduce_scatter(group, padded, place)
        gathered = self._buffers.take(f"gathered {place[1]}", len(padded), torch.uint8)
        group.all_gather(piece, gathered)
        return gathered[: len(packed)]

    def reduce(self, group: Communicator, packed: Tensor, root: int, place: Place) -> Tensor:
        """As the protocol."""
        return self.all_reduce(group, packed, place)

    def reduce_scatter(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """As the protocol."""
        received = self._buffers.take(f"received {place[1]}", len(packed), torch.uint8)
        group.all_to_all(packed, received)
        pieces = received.view(group.size, -1)
        elements = pieces.shape[1] // kernels.QUANTISED_CHUNK_BYTES * self.grain
        total = self._buffers.take("total", elements, torch.float32)
        for member, piece in enumerate(pieces):
            kernels.dequantise(piece, [total], threads=self._threads, accumulate=member > 0)
        mine = self._buffers.take(f"piece {place[1]}", pieces.shape[1], torch.uint8)
        residual = self._residuals.at(place, elements) if self._residuals else None
        kernels.quantise([total], mine, threads=self._threads, residual=residual)
        return mine

    def _padded(self, packed: Tensor, pieces: int, place: Place) -> Tensor:
        """`packed` with zeros behind it, so that it can be cut into `pieces`; itself where it can."""
        length = self._padded_bytes(len(packed), pieces)
        if length == len(packed):
            return packed
        padded = self._buffers.take(f"padded {place[1]}", length, torch.uint8)
        padded[: len(packed)] = packed
        padded[len(packed) :].zero_()
        return padded

    def _padded_bytes(self, packed_bytes: int, pieces: int) -> int:
        unit = pieces * kernels.QUANTISED_CHUNK_BYTES
        return -(-packed_bytes // unit) * unit

    def all_reduce_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """As the protocol."""
        padded = self._padded_bytes(packed_bytes, group.size)
        return direct_all_to_all(group, padded) + ring_pass(group, padded)

    def reduce_traffic(self, group: Communicator, packed_bytes: int, root: int) -> Traffic:
        """As the protocol."""
        return self.all_reduce_traffic(group, packed_bytes)

    def reduce_scatter_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """As the protocol."""
        return direct_all_to_all(group, packed_bytes)
