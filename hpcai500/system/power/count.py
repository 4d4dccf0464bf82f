"""A count of joules over several counters, some of which start at 0 again when they are full."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpcai500.methodology.energy import unwrapped
from hpcai500.system.power.source import Reading


class EnergyCount:
    """Adds up what counters have counted since the first look at them.

    Args:
        sizes: joules at which each counter, by device, starts at 0 again; None for one that never does.
        longest_pause_seconds: after a longer one, a counter may have turned over more than once: the count begins anew.
    """

    def __init__(self, sizes: Mapping[str, float | None], longest_pause_seconds: float = math.inf) -> None:
        self._sizes = sizes
        self._longest_pause_seconds = longest_pause_seconds
        self._before: tuple[float, Mapping[str, float]] | None = None
        self._joules = 0.0

    def look(self, now_s: float, joules: Mapping[str, float]) -> Reading:
        """What has been counted, when the counters stand at `joules` at the moment `now_s`.

        The power of each device is the mean since the last look; unknown at the first, when the count begins at 0.
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
