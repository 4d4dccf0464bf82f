"""A second CUDA stream beside the one that computes: events order the two, the host never waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """Work that is launched inside `beside` runs in order on this stream, concurrently with other streams.

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
        """Launch the work of the calling thread on this stream, after `events`, while the context is open."""
        # The current device of a new thread is device 0.
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            for event in events:
                self.stream.wait_event(event)
            yield
