"""Which ranks hold the others up, told by the time that each needs for itself."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence

# A rank is slow when it is both: by a tenth, and further off than chance would put it.
LEAST_SLOWDOWN = 1.1
DEVIATIONS = 3.0
# A median absolute deviation of normally distributed values, times this, estimates their standard deviation.
_PER_DEVIATION = 1.4826
# The median of fewer steps says little about a rank.
LEAST_STEPS = 5


def stragglers(own_seconds: Sequence[float]) -> list[int]:
    """Positions of the ranks that are slow.

    Args:
        own_seconds: for each rank the median, over steps, of the time that it needs for itself: waiting for input, and
            computing. Waiting for the others is not in it: in a synchronous step that is large on every rank but the
            slow one.

    A rank is a straggler if its time is above 1.1 times the median of all other ranks' and above that median plus three
    standard deviations of theirs (estimated by the median absolute deviation, which a few slow ranks do not change). Of
    two ranks, or where all others agree exactly, the first condition decides. One rank alone has nobody to hold up.
    """
    ordered = sorted(own_seconds)
    return [rank for rank, seconds in enumerate(own_seconds) if _is_slow(seconds, ordered)]


def _is_slow(seconds: float, ordered: Sequence[float]) -> bool:
    if len(ordered) < 2:
        return False
    place = bisect_left(ordered, seconds)
    middle = median_without(ordered, place)
    if seconds <= LEAST_SLOWDOWN * middle:
        return False
    # Only for the few that come this far: it takes a pass over all ranks.
    deviation = statistics.median(abs(other - middle) for index, other in enumerate(ordered) if index != place)
    return seconds > middle + DEVIATIONS * _PER_DEVIATION * deviation


def median_without(ordered: Sequence[float], place: int) -> float:
    """Median of two or more sorted values without the one at `place`."""
    rest = len(ordered) - 1
    low, high = (rest - 1) // 2, rest // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
