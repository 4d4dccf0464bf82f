"""Which gradients travel together: tensor fusion, "grouping layers to overlap communication" (V2.0 section 5.1.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcai500.errors import UsageError

# Gradients travel from and to fp32, whatever lies between.
BYTES_AN_ELEMENT = 4


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together.

    Attributes:
        number: its place in the order of sending, from 0.
        members: indices of its parameters, in the order in which they lie in the buffer.
        elements: of all of them together.
    """

    number: int
    members: tuple[int, ...]
    elements: int

    @property
    def gradient_bytes(self) -> int:
        """Size of its gradients in fp32."""
        return self.elements * BYTES_AN_ELEMENT


def trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that get gradients, in the order of registration: shared ones once, empty and frozen ones not.

    Raises:
        UsageError: there is none, or one is not float32.
    """
    found = [parameter for parameter in dict.fromkeys(parameters) if parameter.requires_grad and parameter.numel()]
    if not found:
        raise UsageError("model: no parameter is trained: let at least one require a gradient")
    for index, parameter in enumerate(found):
        if parameter.dtype != torch.float32:
            raise UsageError(
                f"model: trained parameter {index} {list(parameter.shape)} is {parameter.dtype}, but gradients are "
                "summed over ranks from float32 only: keep weights in float32 (accelerator.precision mixes the rest)"
            )
    return found


def make_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[Bucket]:
    """Group parameters of `sizes` elements into buckets of at most `bucket_bytes` of fp32 gradients.

    The order is the reverse of registration, which is about the order in which a backward pass computes gradients; each
    bucket takes as many of the next parameters as fit. A parameter larger than `bucket_bytes` has a bucket of its own.
    """
    assert bucket_bytes > 0
    groups: list[list[int]] = []
    room = 0
    for index in reversed(range(len(sizes))):
        size = sizes[index] * BYTES_AN_ELEMENT
        if not groups or size > room:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(index)
        room -= size
    return [Bucket(number, tuple(group), sum(sizes[index] for index in group)) for number, group in enumerate(groups)]


class Readiness:
    """Which buckets of one update may leave.

    Buckets leave strictly in order: ranks whose gradients become ready in different orders then still send the same
    bucket at the same time, without asking each other first (what Horovod calls negotiation).
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._bucket_of = {index: bucket for bucket in buckets for index in bucket.members}
        self._missing = [set(bucket.members) for bucket in buckets]
        self._next = 0

    def bucket_of(self, index: int) -> Bucket:
        """The bucket of parameter `index`."""
        return self._bucket_of[index]

    def awaits(self, index: int) -> bool:
        """Whether the gradient of parameter `index` has not arrived yet."""
        return index in self._missing[self._bucket_of[index].number]

    def complete(self, bucket: Bucket) -> bool:
        """Whether all gradients of `bucket` have arrived."""
        return not self._missing[bucket.number]

    def arrive(self, index: int) -> list[Bucket]:
        """The gradient of parameter `index` is there; returns the buckets that leave now, in order."""
        self._missing[self._bucket_of[index].number].remove(index)
        leaving = []
        while self._next < len(self._buckets) and not self._missing[self._next]:
            leaving.append(self._buckets[self._next])
            self._next += 1
        return leaving

    def rest(self) -> list[Bucket]:
        """No more gradients come; returns the buckets that have not left, in order."""
        leaving = list(self._buckets[self._next :])
        self._next = len(self._buckets)
        return leaving
