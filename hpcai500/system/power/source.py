"""What tells the power of this node, whatever it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hpcai500.errors import RunError

# What is measured: devices of a node (accelerators, processors), the whole node, or all that a distribution unit feeds.
Scope = Literal["device", "node", "pdu"]


class ReadingError(RunError):
    """A source gave no reading this time; it may the next time."""


@dataclass(frozen=True)
class Reading:
    """What a source tells at a moment.

    Attributes:
        watts: power of each device, by name; None before it can be known. One nameless device is the node itself.
        joules: what all devices have used since the count began; 0 begins a new count. None where nothing counts.
    """

    watts: Mapping[str, float | None] = field(default_factory=dict)
    joules: float | None = None

    @property
    def total_watts(self) -> float | None:
        """Power of all devices together."""
        known = [value for value in self.watts.values() if value is not None]
        return sum(known) if known and len(known) == len(self.watts) else None


class PowerSource(Protocol):
    """Tells the power of this node, or of its devices.

    Attributes:
        name: `nvml`, `rapl`, `ipmi`.
        scope: what is measured.
        covers: the same in words, for people.
        devices: names of what is measured, if that has parts; the keys of `Reading.watts`.
        interval_seconds: how often it is worth asking; a second at most.
        patience_seconds: how long it may take to answer.
    """

    name: str
    scope: Scope
    covers: str
    devices: tuple[str, ...]
    interval_seconds: float
    patience_seconds: float

    def read(self) -> Reading:
        """Ask now.

        Raises:
            ReadingError: no answer this time.
        """

    def close(self) -> None:
        """Let go of whatever was opened."""


def machine_seconds() -> float:
    """The machine's clock: it never jumps, and runs on while the machine sleeps; the same as in the record's events."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
