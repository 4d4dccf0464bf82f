"""What all members come to: percentiles, who is slow, who is silent, and when the last one will be done. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcai500.ensemble.member_status import MemberStatus

# Silence of so many epochs is no epoch any more; and below the least, it is nothing.
_SILENT_EPOCHS = 3.0
_LEAST_SILENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Percentiles:
    """Of a number over so many members: the least, the 10th of a hundred, the median, the 90th, the greatest."""

    count: int
    least: float
    p10: float
    p50: float
    p90: float
    greatest: float

    def document(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Those of `values`: the median, of an even number the mean of the two in the middle, and others that there are.

    These are of the nearest rank. None where there is none.
    """
    if not values:
        return None
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Percentiles(len(ordered), ordered[0], rank(0.1), statistics.median(ordered), rank(0.9), ordered[-1])


def usual_pace(rows: Sequence[MemberStatus]) -> float | None:
    """Median seconds of an epoch, over all members that have told; None where none has."""
    paces = [row.pace_seconds for row in rows if row.pace_seconds is not None]
    return statistics.median(paces) if paces else None


def is_stuck(row: MemberStatus, usual: float | None, now_s: float) -> bool:
    """Whether a member should have told something by now: it is silent for longer than three epochs take.

    Args:
        row: the member.
        usual: median seconds of an epoch.
        now_s: UNIX seconds.
    """
    age = row.age_seconds(now_s)
    if row.state != "running" or age is None or usual is None:
        return False
    return age > max(_LEAST_SILENCE_SECONDS, _SILENT_EPOCHS * max(usual, row.pace_seconds or 0.0))


def left_seconds(row: MemberStatus, epochs: int, usual: float | None, now_s: float) -> float | None:
    """About how long a running member still takes, at the pace of its last epoch, or else of the others'.

    None where no member has told a pace.
    """
    pace = usual if row.pace_seconds is None else row.pace_seconds
    if pace is None:
        return None
    # What it has done since it told last is known by the clock alone, and is an epoch at most.
    since = min(row.age_seconds(now_s) or 0.0, pace)
    return max(0.0, (epochs - row.progress) * pace - since)


def eta_seconds(rows: Sequence[MemberStatus], epochs: int, usual: float | None, now_s: float) -> float | None:
    """About when the last member will be done, if as many go on running as run now; None where nobody can say.

    Those that wait take the place of those that end: all cannot be done before the work is, spread evenly over as many
    as run now, nor before the slowest of these.
    """
    running = [row for row in rows if row.state == "running"]
    if usual is None or not running:
        return None
    left = [left_seconds(row, epochs, usual, now_s) or 0.0 for row in running]
    waiting = sum((epochs - row.progress) * usual for row in rows if row.state == "waiting")
    return max(*left, (sum(left) + waiting) / len(running))
