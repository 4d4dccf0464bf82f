"""Collectives made of others, for libraries that lack them or that send more bytes than needed."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator


class Scratch:
    """Memory that is kept from call to call: fresh pages for every large bucket would cost more than its copy."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def like(self, tensor: Tensor, count: int) -> Tensor:
        """`count` elements of the type and device of `tensor`, undefined; valid until the next call."""
        size = count * tensor.element_size()
        if self._bytes.numel() < size or self._bytes.device != tensor.device:
            self._bytes = torch.empty(size, dtype=torch.uint8, device=tensor.device)
        return self._bytes[:size].view(tensor.dtype)


def reduce_scatter_by_exchange(communicator: Communicator, source: Tensor, target: Tensor, scratch: Scratch) -> None:
    """`Communicator.reduce_scatter` by an all-to-all: each member sends (size - 1) / size of `source`, the least."""
    received = scratch.like(source, source.numel())
    communicator.all_to_all(source, received)
    sum_rows(received, target)


def sum_rows(received: Tensor, target: Tensor) -> None:
    """Put the sum of the parts of `received` (k * n,), one after the other, into `target` (n,).

    16-bit types are summed in fp32 and rounded once.
    """
    rows = received.view(-1, target.numel()) if target.numel() else received.view(1, 0)
    torch.sum(rows, dim=0, dtype=target.dtype, out=target)


def all_reduce_by_exchange(communicator: Communicator, tensor: Tensor, scratch: Scratch) -> None:
    """`Communicator.all_reduce` for types that a library can move but not add: an all-to-all, sums, an all-gather.

    Each member sends 2 (size - 1) / size of the tensor, as a ring does.
    """
    flat = tensor.view(-1)
    mine, whole = sum_of_own_part(communicator, flat, scratch)
    communicator.all_gather(mine, whole)
    flat.copy_(whole[: flat.numel()])


def sum_of_own_part(communicator: Communicator, flat: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The sum over all members of this one's part of `flat` (n,), padded so that all parts are alike.

    Returns the part (k,), and room for all of them (size * k,), size * k >= n; both in `scratch`.
    """
    size = communicator.size
    part = -(-flat.numel() // size)
    whole, received, mine = scratch.like(flat, (2 * size + 1) * part).split([size * part, size * part, part])
    whole[: flat.numel()] = flat
    whole[flat.numel() :] = 0
    communicator.all_to_all(whole, received)
    sum_rows(received, mine)
    return mine, whole
