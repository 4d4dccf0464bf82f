"""The interface of a source of power, and the count of energy from counters that wrap around."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from hpcai500.errors import RunError
from hpcai500.methodology.energy import unwrapped

# What is measured: devices of a node (accelerators, processors), the whole node, or all that a power distribution unit
# (PDU) supplies.
Scope = Literal["device", "node", "pdu"]
# Which parts of the node. Sources of one scope can be compared only if they measure the same parts.
Parts = Literal["accelerators", "processors", "node"]


class ReadingError(RunError):
    """A source gave no reading this time; the next one may succeed."""


@dataclass(frozen=True)
class Reading:
    """A reading of a source.

    Attributes:
        watts: power of each device, by name; None while unknown. The name "" stands for the node itself.
        joules: energy of all devices since the count began; 0 begins a new count. None if the source has no counter.
        node_watts: power of the whole node, of which `watts` are parts. None: `watts` add up to the total.
    """

    watts: Mapping[str, float | None] = field(default_factory=dict)
    joules: float | None = None
    node_watts: float | None = None

    @property
    def total_watts(self) -> float | None:
        """Power of all together; None if it is unknown."""
        if self.node_watts is not None:
            return self.node_watts
        known = [value for value in self.watts.values() if value is not None]
        return sum(known) if known and len(known) == len(self.watts) else None


class PowerSource(Protocol):
    """Reads the power of this node, or of its devices.

    Attributes:
        name: its key in `SOURCES`.
        scope: the same on every node, which verification relies on.
        parts: which parts it measures; None if only the site knows.
        covers: what is measured, for people.
        devices: names of the measured parts, if any; the keys of `Reading.watts`.
        interval_seconds: between two readings; 1 s at most.
        patience_seconds: time limit of a reading.
    """

    name: str
    scope: Scope
    parts: Parts | None
    covers: str
    devices: tuple[str, ...]
    interval_seconds: float
    patience_seconds: float

    def read(self) -> Reading:
        """Take a reading.

        Raises:
            ReadingError: no answer this time.
        """

    def caps(self) -> Mapping[str, float]:
        """Power limits now in force, in watts, by device; "" is the node. Without those that are unknown or off.

        Raises:
            ReadingError: no answer this time.
        """

    def close(self) -> None:
        """Close whatever was opened."""


def used(kept: int, count: int) -> str:
    """What a source of `count` accelerators covers that measures `kept` of them."""
    return f"{kept} of {count} accelerators, used by this run"


@runtime_checkable
class DeviceSource(PowerSource, Protocol):
    """A source that measures each accelerator of the node by itself."""

    def keep(self, uuids: Collection[str]) -> None:
        """Measure only the accelerators with these UUIDs (lower case, without `GPU-`); all, if one is unknown.

        Called before the first reading. CUDA_VISIBLE_DEVICES hides nothing from the driver.
        """


def machine_seconds() -> float:
    """CLOCK_BOOTTIME, the clock of a record's events: it never jumps and includes time in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# ----------------------------------------------------------------------------------------------------
# The sum of several energy counters, which may wrap around.


class EnergyCount:
    """Adds up the energy of counters since the first look at them.

    Args:
        sizes: joules at which each counter, by device, wraps to 0; None for one that never does.
        longest_pause_seconds: after a longer pause a counter may have wrapped more than once, so the count restarts.
    """

    def __init__(self, sizes: Mapping[str, float | None], longest_pause_seconds: float = math.inf) -> None:
        self._sizes = sizes
        self._longest_pause_seconds = longest_pause_seconds
        self._before: tuple[float, Mapping[str, float]] | None = None
        self._joules = 0.0

    def look(self, now_s: float, joules: Mapping[str, float]) -> Reading:
        """Add the counters' values at the time `now_s`.

        The power of each device is the mean since the last call. At the first call it is unknown, and the count is 0.
        """
        before, self._before = self._before, (now_s, joules)
        used = self._used(before, now_s, joules)
        if used is None or before is None:
            self._joules = 0.0
            return Reading(dict.fromkeys(joules), 0.0)
        self._joules += math.fsum(used.values())
        seconds = now_s - before[0]
        return Reading({device: value / seconds for device, value in used.items()}, self._joules)

    def _used(
        self, before: tuple[float, Mapping[str, float]] | None, now_s: float, joules: Mapping[str, float]
    ) -> dict[str, float] | None:
        if before is None or not 0 < now_s - before[0] <= self._longest_pause_seconds:
            return None
        used = {name: unwrapped(before[1][name], value, self._sizes[name]) for name, value in joules.items()}
        known = {name: value for name, value in used.items() if value is not None}
        return known if len(known) == len(used) else None
