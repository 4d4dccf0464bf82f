"""How far the clocks of ranks are apart, so that one trace can show them all.

`time.perf_counter` counts from another moment on each host. No rank leaves a barrier before the last has entered it:
that moment lies, by each rank's clock, between its own entering and leaving. Two ranks' intervals for the same moment
bound the offset between their clocks, and every further barrier bounds it again; what is left after some of them is
narrow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.comm.base import Communicator

_ROUNDS = 16
# Entering and leaving of each barrier, by the clock of one rank.
Passages = list[tuple[float, float]]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class ClockAlignment:
    """Offsets to the clock of rank 0.

    Attributes:
        offsets_seconds: for each rank, what is added to its clock to get that of rank 0.
        errors_seconds: for each rank, how far off that may be at most (at the time of measuring: clocks drift apart by
            some microseconds a second).
    """

    offsets_seconds: tuple[float, ...]
    errors_seconds: tuple[float, ...]


def align_clocks(communicator: Communicator, rounds: int = _ROUNDS) -> ClockAlignment:
    """Measure the offsets between all ranks' clocks; called by all of them, and known to all afterwards.

    Takes `rounds` barriers; the error is at most half the shortest of them, and mostly less. Ranks of one host read one
    clock: their offset is exactly 0 wherever the measurement allows it.

    Raises:
        RunError: another rank is lost.
    """
    communicator.barrier()
    passages: Passages = []
    for _ in range(rounds):
        entered = time.perf_counter()
        communicator.barrier()
        passages.append((entered, time.perf_counter()))
    return alignment(communicator.gather_objects(passages), communicator.hosts)


def alignment(passages: Sequence[Passages], hosts: Sequence[str]) -> ClockAlignment:
    """The offsets that the barriers' `passages` of all ranks tell, by rank."""
    bounds = [_bounds(passages[0], own) for own in passages]
    bounds[0] = (0.0, 0.0)
    shared = {host: _common([bounds[rank] for rank, other in enumerate(hosts) if other == host]) for host in set(hosts)}
    # Two machines of one name have no offset in common; then each rank's own bounds hold.
    taken = [shared[host] or own for host, own in zip(hosts, bounds, strict=True)]
    return ClockAlignment(
        tuple((low + high) / 2 for low, high in taken), tuple((high - low) / 2 for low, high in taken)
    )


def _bounds(reference: Passages, own: Passages) -> Bounds:
    """Lowest and highest offset that each of the barriers allows."""
    low = max(theirs[0] - ours[1] for theirs, ours in zip(reference, own, strict=True))
    high = min(theirs[1] - ours[0] for theirs, ours in zip(reference, own, strict=True))
    # Clocks drift while they are measured, which can leave an empty interval a fraction of a microsecond wide.
    return (low, high) if low <= high else (high, low)


def _common(bounds: Sequence[Bounds]) -> Bounds | None:
    """Where all of them hold, or None."""
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    return (low, high) if low <= high else None
