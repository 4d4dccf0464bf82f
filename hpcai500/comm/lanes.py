"""Where the work of the exchange is put: after the gradients that it needs, beside the rest of the backward pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcai500.side_stream import SideStream

# A moment of the work, before it is known when that was; made and read by the same lane.
Mark = Any
# One of the orders in which work is done: hashable; told and read by the same lane.
Queue = Any


class ExchangeLane(Protocol):
    """Orders the exchange against the computation, and tells when each was where."""

    def queue(self) -> Queue:
        """Where the work goes that the calling thread gives now: of one queue, a later mark is after an earlier one."""

    def mark(self, queue: Queue = None) -> Mark:
        """Now, in the work that was given to `queue`; by default to that of the calling thread."""

    @contextmanager
    def after(self, *marks: Mark) -> Iterator[None]:
        """What the calling thread does inside is done beside the computation, after all `marks`."""

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """The computation's `tensors`, which work given so far reads, may be freed from now on. Inside `after`."""

    def settle(self) -> None:
        """Wait until everything given is done. Called inside `after`; then `seconds` knows all marks."""

    def seconds(self, mark: Mark) -> float:
        """When `mark` was, by `time.perf_counter`."""


class HostExchangeLane:
    """On the processor, work is done when its call returns: the thread itself is the lane."""

    def queue(self) -> Queue:
        """As the protocol."""
        return 0

    def mark(self, queue: Queue = None) -> Mark:
        """As the protocol."""
        del queue
        return time.perf_counter()

    @contextmanager
    def after(self, *marks: Mark) -> Iterator[None]:
        """As the protocol."""
        del marks
        yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """As the protocol."""

    def settle(self) -> None:
        """As the protocol."""

    def seconds(self, mark: Mark) -> float:
        """As the protocol."""
        return float(mark)


class StreamExchangeLane:
    """On a CUDA device, work is put on a stream of its own, which waits for events of the streams that compute.

    Gradients belong to a computing stream: the allocator would give their memory away while this stream still reads
    it. So they are held by their parameters until `settle` has returned, or let go by name.
    """

    def __init__(self, device: torch.device) -> None:
        # Ahead of the computation's kernels: what others wait for goes first.
        self._side = SideStream(device, first=True)
        self._anchor = torch.cuda.Event(enable_timing=True)
        self._anchor_seconds = 0.0

    def queue(self) -> Queue:
        """As the protocol."""
        return self._side.current()

    def mark(self, queue: Queue = None) -> Mark:
        """As the protocol."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(queue or self._side.current())
        return event

    @contextmanager
    def after(self, *marks: Mark) -> Iterator[None]:
        """As the protocol."""
        with self._side.beside(*marks):
            yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """As the protocol."""
        for tensor in tensors:
            tensor.record_stream(self._side.stream)

    def settle(self) -> None:
        """As the protocol."""
        self._anchor.record(self._side.stream)
        self._anchor.synchronize()
        self._anchor_seconds = time.perf_counter()

    def seconds(self, mark: Mark) -> float:
        """As the protocol."""
        return self._anchor_seconds - float(mark.elapsed_time(self._anchor)) / 1e3


def make_exchange_lane(device: torch.device) -> ExchangeLane:
    """The lane of gradients on `device`."""
    return StreamExchangeLane(device) if device.type == "cuda" else HostExchangeLane()
