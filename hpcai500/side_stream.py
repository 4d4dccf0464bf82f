"""A stream of a CUDA device beside the one that computes: the two wait for each other by events, never the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """Work that is given inside `beside` is done in the order given, beside all other streams.

    Args:
        device: a CUDA device.
        first: whether its kernels go ahead of those of other streams that are ready too.

    Attributes:
        stream: torch's own.
    """

    def __init__(self, device: torch.device, *, first: bool = False) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device, priority=-1 if first else 0)

    def current(self) -> torch.cuda.Stream:
        """Where the work of the calling thread goes: this stream inside `beside`, else the one that computes."""
        return torch.cuda.current_stream(self._device)

    @contextmanager
    def beside(self, *events: torch.cuda.Event) -> Iterator[None]:
        """What the calling thread gives inside goes to this stream, after `events`."""
        # A thread begins with device 0 as its current one.
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            for event in events:
                self.stream.wait_event(event)
            yield
