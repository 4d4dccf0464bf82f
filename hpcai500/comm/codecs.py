"""Wires by the names of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcai500.comm import kernels
from hpcai500.comm.communicator import Communicator, Traffic, direct_all_to_all, reduce_to, ring_all_reduce, ring_pass

# ----------------------------------------------------------------------------------------------------
# Tensors that the exchange of gradients keeps from step to step: buffers to work in, and what compression lost.


# Of which bucket, and at which of the places where values are rounded.
Place = tuple[int, str]


class Buffers:
    """Flat buffers by purpose. They are kept, because fresh pages cost more than the copies that fill them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, purpose: str, length: int, dtype: torch.dtype) -> Tensor:
        """`length` elements with undefined content, valid until the next call with the same purpose and type."""
        key = purpose, dtype
        if key not in self._kept or len(self._kept[key]) < length:
            self._kept[key] = torch.empty(length, dtype=dtype, device=self._device)
        return self._kept[key][:length]


class Residuals:
    """What rounding took away at each place, to be added to the next step's values there.

    Error feedback: Seide et al. 2014, "1-bit stochastic gradient descent", section 3; at every place that rounds, as
    Tang et al. 2019, "DoubleSqueeze", does it for worker and server.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[Place, Tensor] = {}

    def at(self, place: Place, length: int) -> Tensor:
        """The residual of `place`: `length` float32 values, 0 at first, to be changed in place."""
        if place not in self._kept:
            self._kept[place] = torch.zeros(length, device=self._device)
        residual = self._kept[place]
        assert len(residual) == length
        return residual

    def forget(self) -> None:
        """Begin again with zeros."""
        self._kept.clear()

    def state(self) -> dict[str, Any]:
        """Copies on the host, for a checkpoint."""
        return {f"{bucket}.{name}": residual.cpu().clone() for (bucket, name), residual in self._kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what `state` returned."""
        self._kept.clear()
        for key, residual in state.items():
            bucket, _, name = key.partition(".")
            self._kept[int(bucket), name] = residual.to(self._device, copy=True)


# ----------------------------------------------------------------------------------------------------
# How gradients travel: packed into one flat buffer in a type of their own, summed, and unpacked again.


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


# ----------------------------------------------------------------------------------------------------
# Gradients as they are: summed in the very memory where the optimizer then reads them.


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


# ----------------------------------------------------------------------------------------------------
# Gradients as int8 with a scale for each block of 256, which no library can sum: the sums are made here, in fp32.


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


# ----------------------------------------------------------------------------------------------------
# Wires by the names of a recipe.


def make_wire(compression: str, buffers: Buffers, residuals: Residuals | None, threads: int | None) -> Wire:
    """The wire of `communication.compression`.

    Args:
        compression: the recipe's word.
        buffers: to work in.
        residuals: error feedback, if any.
        threads: of the processor for the kernels; torch's number by default.
    """
    if compression == "none":
        return Fp32Wire(buffers, threads)
    if compression == "int8":
        return QuantisedWire(buffers, residuals, threads)
    return PlainWire(compression, buffers, residuals, threads)
