"""Where the work of the exchange is put: after the gradients that it needs, beside the rest of the backward pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

# A moment of the work, before it is known when that was; made and read by the same lane.
Mark = Any


class Lane(Protocol):
    """Orders the exchange against the computation, and tells when each was where."""

    def mark(self) -> Mark:
        """Now, in the work that the calling thread gives."""

    @contextmanager
    def after(self, mark: Mark) -> Iterator[None]:
        """What the calling thread does inside is done beside the computation, after `mark`."""

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """The computation's `tensors`, which work given so far reads, may be freed from now on. Inside `after`."""

    def settle(self) -> None:
        """Wait until everything given is done. Called inside `after`; then `seconds` knows all marks."""

    def seconds(self, mark: Mark) -> float:
        """When `mark` was, by `time.perf_counter`."""


class HostLane:
    """On the processor, work is done when its call returns: the thread itself is the lane."""

    def mark(self) -> Mark:
        """As the protocol."""
        return time.perf_counter()

    @contextmanager
    def after(self, mark: Mark) -> Iterator[None]:
        """As the protocol."""
        yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """As the protocol."""

    def settle(self) -> None:
        """As the protocol."""

    def seconds(self, mark: Mark) -> float:
        """As the protocol."""
        return float(mark)


class StreamLane:
    """On a CUDA device, work is put on a stream of its own, which waits for events of the stream that computes.

    Gradients belong to the computing stream: the allocator would give their memory away while this stream still reads
    it. So they are held by their parameters until `settle` has returned, or let go by name.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Ahead of the computation's kernels: what others wait for goes first.
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._anchor = torch.cuda.Event(enable_timing=True)
        self._anchor_seconds = 0.0

    def mark(self) -> Mark:
        """As the protocol."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def after(self, mark: Mark) -> Iterator[None]:
        """As the protocol."""
        # A thread begins with device 0 as its current one.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(mark)
            yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """As the protocol."""
        for tensor in tensors:
            tensor.record_stream(self._stream)

    def settle(self) -> None:
        """As the protocol."""
        self._anchor.record(self._stream)
        self._anchor.synchronize()
        self._anchor_seconds = time.perf_counter()

    def seconds(self, mark: Mark) -> float:
        """As the protocol."""
        return self._anchor_seconds - float(mark.elapsed_time(self._anchor)) / 1e3


def make_lane(device: torch.device) -> Lane:
    """The lane of gradients on `device`."""
    return StreamLane(device) if device.type == "cuda" else HostLane()
