"""A second CUDA stream beside the one that computes: the two wait for each other by events, never the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """Work that is launched inside `beside` is done in that order, beside all other streams.

    `first` gives its kernels priority over those of other streams.
    """

    def __init__(self, device: torch.device, *, first: bool = False) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device, priority=-1 if first else 0)

    def current(self) -> torch.cuda.Stream:
        """The stream of the calling thread's work: this one inside `beside`, else the one that computes."""
        return torch.cuda.current_stream(self._device)

    @contextmanager
    def beside(self, *events: torch.cuda.Event) -> Iterator[None]:
        """Send the work that the calling thread launches inside to this stream, after `events`."""
        # A thread begins with device 0 as its current device.
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            for event in events:
                self.stream.wait_event(event)
            yield
