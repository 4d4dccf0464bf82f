"""Ring slots that the consumer is done asking about, but whose copy to a device may still be under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import torch


class Event(Protocol):
    """A point on a device's stream, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Tell whether the device has passed the point."""

    def synchronize(self) -> None:
        """Wait until it has."""


# Records a point behind everything that was given to a device so far and reads the slot in hand.
Mark = Callable[[], Event]


def stream_mark() -> Event:
    """The mark of what is queued on the current CUDA stream: of the computation, or of a lane of copies inside it."""
    return cast(Event, torch.cuda.current_stream().record_event())


class HeldSlots:
    """Gives each slot back as soon as the device has passed the event that was recorded when its batch was done with.

    A `non_blocking` copy reads pinned memory after Python has moved on: a slot that is refilled too early would mix
    two batches without any error. At most `most_held` slots wait; beyond that the oldest is waited for, so that the
    ring keeps slots to fill.
    """

    def __init__(self, release: Callable[[int], None], most_held: int) -> None:
        self._release = release
        self._most_held = most_held
        self._held: deque[tuple[int, Event]] = deque()

    def add(self, slot: int, event: Event) -> None:
        """Hold `slot` until `event` has passed; give back all slots that need not wait any longer."""
        self._held.append((slot, event))
        while self._held and self._held[0][1].query():
            self._release_oldest()
        while len(self._held) > self._most_held:
            self._held[0][1].synchronize()
            self._release_oldest()

    def flush(self) -> None:
        """Wait for all events and give all slots back."""
        while self._held:
            self._held[0][1].synchronize()
            self._release_oldest()

    def _release_oldest(self) -> None:
        slot, _ = self._held.popleft()
        self._release(slot)
