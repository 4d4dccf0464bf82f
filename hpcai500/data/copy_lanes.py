"""Where copies to a device are put: beside the computation. The two wait for each other by events, never the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, cast

import torch

from hpcai500.data.held_slots import Event
from hpcai500.side_stream import SideStream


class CopyLane(Protocol):
    """Orders copies, and what is done to them on the device, against the computation."""

    def mark(self) -> Event:
        """The end of what the calling thread has given so far: to the lane inside `beside`, else to the computation."""

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        """What the calling thread gives inside is done beside the computation, after `marks`."""

    def follow(self, mark: Event) -> None:
        """What the calling thread gives to the computation from now on is done after `mark`."""


class HostCopyLane:
    """On the processor, work is done when its call returns: nothing needs to wait."""

    def mark(self) -> Event:
        """As the protocol."""
        return _Passed()

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        """As the protocol."""
        del marks
        yield

    def follow(self, mark: Event) -> None:
        """As the protocol."""


class StreamCopyLane:
    """On a CUDA device, a stream of its own. Copies out of pinned memory and kernels run there in the order given.

    What is allocated inside `beside` is of this stream: it is given away again in the order of this stream, so that
    whoever lets go of it while the computation still reads it calls `beside` with the computation's mark before.
    """

    def __init__(self, device: torch.device) -> None:
        self._side = SideStream(device)

    def mark(self) -> Event:
        """As the protocol."""
        return cast(Event, self._side.current().record_event())

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        """As the protocol."""
        with self._side.beside(*(cast(torch.cuda.Event, mark) for mark in marks)):
            yield

    def follow(self, mark: Event) -> None:
        """As the protocol."""
        self._side.current().wait_event(cast(torch.cuda.Event, mark))


class _Passed:
    """A point that is behind."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


def make_copy_lane(device: torch.device) -> CopyLane:
    """The lane of copies to `device`."""
    return StreamCopyLane(device) if device.type == "cuda" else HostCopyLane()
