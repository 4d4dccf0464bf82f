"""Codecs of gradients (`Codec`): packed into one flat buffer as fp32, fp16, bf16 or int8, summed, and unpacked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from hpcai500.comm import kernels
from hpcai500.comm.communicator import Communicator, Traffic, direct_all_to_all, reduce_to, ring_all_reduce, ring_pass
from hpcai500.methodology.roofline import Compression

# ----------------------------------------------------------------------------------------------------
# Tensors that are kept between steps: working buffers, and the residuals of compression.


# A bucket's number, and the name of a place where its values are rounded.
Place = tuple[int, str]


class Buffers:
    """Flat buffers by purpose. They are reused, because new pages cost more than the copies that fill them."""

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
    """The rounding error at each place, which is added to the next step's values there (error feedback).

    Seide et al. 2014, "1-bit stochastic gradient descent", section 3; at every place that rounds, as for worker and
    server in Tang et al. 2019, "DoubleSqueeze".
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
        """Reset all residuals to zero."""
        self._kept.clear()


# ----------------------------------------------------------------------------------------------------
# The interface of a codec, and the codecs that the library can sum: fp16 and bf16.


class Codec(ABC):
    """A codec: a packed form of gradients, and how it is summed. One thread at a time may use it.

    Packed buffers are flat tensors; returned tensors are valid until the next `pack`. All-gather and broadcast need no
    arithmetic: the communicator moves packed buffers unchanged, which keeps them bitwise equal on all ranks.

    A packed buffer may be cut after every multiple of `grain` gradient elements. Without `residuals` there is no error
    feedback; `threads` are CPU threads for the kernels, None is torch's number.
    """

    grain: int

    def __init__(self, buffers: Buffers, residuals: Residuals | None, threads: int | None) -> None:
        self._buffers, self._residuals, self._threads = buffers, residuals, threads

    def targets(self, gradients: Sequence[Tensor], bucket: int) -> Sequence[Tensor]:
        """The tensors to which `unpack` must write averages: `gradients` themselves, or tensors that replace them."""
        return gradients

    def forget(self) -> None:
        """Forget the state of each bucket, because the buckets change."""
        if self._residuals:
            self._residuals.forget()

    @abstractmethod
    def packed_bytes(self, elements: int) -> int:
        """Bytes of `elements` packed gradient elements, a multiple of `grain`."""

    @abstractmethod
    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
        """Pack `scale` times the gradients (float32), one after the other in memory order, then 0 up to `elements`.

        `norms` receives the L2 norm of each gradient, before the scale and without residuals.
        """

    @abstractmethod
    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        """Write a packed buffer to the `targets` of its bucket."""

    @abstractmethod
    def all_reduce(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """The sum over `group`, bitwise equal on all its members."""

    @abstractmethod
    def reduce(self, group: Communicator, packed: Tensor, root: int, place: Place) -> Tensor:
        """The sum over `group`, on member `root`; undefined elsewhere."""

    @abstractmethod
    def reduce_scatter(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        """This member's piece of the sum over `group`, a multiple of the grain."""

    @abstractmethod
    def all_reduce_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """Bytes this rank sends in `all_reduce`."""

    @abstractmethod
    def reduce_traffic(self, group: Communicator, packed_bytes: int, root: int) -> Traffic:
        """Bytes this rank sends in `reduce`."""

    @abstractmethod
    def reduce_scatter_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        """Bytes this rank sends in `reduce_scatter`."""


class PlainCodec(Codec):
    """fp16 or bf16, and the common part with fp32: the library sums buffers in their own type.

    Gradients are multiplied by the scale before they are rounded, so that a sum of fp16 overflows only if the average
    would. With residuals, the rounding error of the cast is added to the next step's gradients; that of the sums in
    fp16 and bf16 is not.
    """

    grain = 1

    def __init__(self, dtype: torch.dtype, buffers: Buffers, residuals: Residuals | None, threads: int | None) -> None:
        super().__init__(buffers, residuals, threads)
        self._type = dtype

    def packed_bytes(self, elements: int) -> int:
        return elements * self._type.itemsize

    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
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
        exact = self._buffers.take("exact", len(residual), torch.float32)
        kernels.pack(gradients, exact, scale=scale, norms=norms, threads=self._threads)
        exact += residual
        kernels.pack([exact], packed, threads=self._threads)
        kernels.unpack(packed, [residual], threads=self._threads)
        torch.sub(exact, residual, out=residual)
        # All ranks see an overflow in the sum; in the residual it would stay for ever.
        residual.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        kernels.unpack(packed, targets, threads=self._threads)

    def all_reduce(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        group.all_reduce(packed)
        return packed

    def reduce(self, group: Communicator, packed: Tensor, root: int, place: Place) -> Tensor:
        group.reduce(packed, root)
        return packed

    def reduce_scatter(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        piece = self._buffers.take(f"piece {place[1]}", len(packed) // group.size, self._type)
        group.reduce_scatter(packed, piece)
        return piece

    def all_reduce_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        return ring_all_reduce(group, packed_bytes)

    def reduce_traffic(self, group: Communicator, packed_bytes: int, root: int) -> Traffic:
        return reduce_to(group, packed_bytes, root)

    def reduce_scatter_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        return ring_pass(group, packed_bytes)


# ----------------------------------------------------------------------------------------------------
# fp32: gradients are summed in the memory from which the optimizer reads them.


class Fp32Codec(PlainCodec):
    """No compression. Each bucket has its own buffer, and its gradients become views of it.

    That saves a pass over memory, and autograd's tensors are freed during the backward pass, as with
    `gradient_as_bucket_view` of torch's DistributedDataParallel.
    """

    def __init__(self, buffers: Buffers, threads: int | None) -> None:
        super().__init__(torch.float32, buffers, None, threads)
        self._kept: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
        if bucket not in self._kept:
            packed = torch.zeros(elements, device=gradients[0].device)
            self._kept[bucket] = packed, _views(packed, gradients)
        packed, views = self._kept[bucket]
        # A gradient that was kept from the last update is still a view, and the kernel cannot work in place.
        sources = [
            gradient.clone() if gradient is view else gradient for gradient, view in zip(gradients, views, strict=True)
        ]
        kernels.pack(sources, packed, scale=scale, norms=norms, threads=self._threads)
        return packed

    def targets(self, gradients: Sequence[Tensor], bucket: int) -> Sequence[Tensor]:
        return self._kept[bucket][1]

    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        if packed.data_ptr() != targets[0].data_ptr():
            super().unpack(packed, targets)

    def forget(self) -> None:
        self._kept.clear()


def _views(packed: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    starts = accumulate((gradient.numel() for gradient in gradients), initial=0)
    return [
        packed[start:].as_strided(gradient.shape, gradient.stride())
        for start, gradient in zip(starts, gradients, strict=False)
    ]


# ----------------------------------------------------------------------------------------------------
# int8 with a scale for each block of 256 values: no library can sum it, so it is summed here, in fp32.


class QuantisedCodec(Codec):
    """int8: pieces of packed buffers are exchanged, summed in fp32 by the receiver, and quantised again.

    Values are rounded when they are packed and once in each later sum; between the sums they do not change. Rounding
    changes a value by at most 0.501 / 127 of the largest magnitude in its block of 256. A block with a value that is
    not finite becomes NaN as a whole, on every rank. With residuals, each place that rounds adds its rounding error to
    its values of the next step.

    A reduce is a reduce-scatter and a gather of the pieces (Rabenseifner 2004, "Optimization of collective reduction
    operations"), so that all members share the arithmetic; communicators have no gather, so it is an all-gather.
    """

    grain = kernels.QUANTISED_CHUNK

    def packed_bytes(self, elements: int) -> int:
        return kernels.quantised_bytes(elements)

    def pack(
        self, gradients: Sequence[Tensor], elements: int, *, scale: float, bucket: int, norms: Tensor | None = None
    ) -> Tensor:
        packed = self._buffers.take("packed", self.packed_bytes(elements), torch.uint8)
        count = sum(gradient.numel() for gradient in gradients)
        residual = self._residuals.at((bucket, "pack"), count) if self._residuals else None
        kernels.quantise(gradients, packed, scale=scale, residual=residual, norms=norms, threads=self._threads)
        packed[self.packed_bytes(count) :].zero_()
        return packed

    def unpack(self, packed: Tensor, targets: Sequence[Tensor]) -> None:
        kernels.dequantise(packed, targets, threads=self._threads)

    def all_reduce(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
        padded = self._padded(packed, group.size, place)
        piece = self.reduce_scatter(group, padded, place)
        gathered = self._buffers.take(f"gathered {place[1]}", len(padded), torch.uint8)
        group.all_gather(piece, gathered)
        return gathered[: len(packed)]

    def reduce(self, group: Communicator, packed: Tensor, root: int, place: Place) -> Tensor:
        return self.all_reduce(group, packed, place)

    def reduce_scatter(self, group: Communicator, packed: Tensor, place: Place) -> Tensor:
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
        """`packed`, followed by zeros if needed to cut it into `pieces`."""
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
        padded = self._padded_bytes(packed_bytes, group.size)
        return direct_all_to_all(group, padded) + ring_pass(group, padded)

    def reduce_traffic(self, group: Communicator, packed_bytes: int, root: int) -> Traffic:
        return self.all_reduce_traffic(group, packed_bytes)

    def reduce_scatter_traffic(self, group: Communicator, packed_bytes: int) -> Traffic:
        return direct_all_to_all(group, packed_bytes)


def make_codec(compression: Compression, buffers: Buffers, residuals: Residuals | None, threads: int | None) -> Codec:
    """The codec for the recipe's `compression`."""
    match compression:
        case "none":
            return Fp32Codec(buffers, threads)
        case "fp16":
            return PlainCodec(torch.float16, buffers, residuals, threads)
        case "bf16":
            return PlainCodec(torch.bfloat16, buffers, residuals, threads)
        case "int8":
            return QuantisedCodec(buffers, residuals, threads)
