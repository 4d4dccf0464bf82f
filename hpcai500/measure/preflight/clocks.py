"""Whether the clocks of all hosts agree: wall clocks, which records and power meters are joined by, and the others."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcai500.comm.base import Communicator
from hpcai500.comm.timeline.clocks import ClockAlignment, align_clocks
from hpcai500.measure.preflight.everyone import listed
from hpcai500.system.checks import Check
from hpcai500.system.preflight import CLOCKS

MOST_APART_SECONDS = 1.0
# Beyond that a timeline does not tell which rank came last.
MOST_ERROR_SECONDS = 0.01


def measure_clocks(world: Communicator) -> tuple[list[float], ClockAlignment]:
    """For each rank how far its wall clock is ahead of rank 0's (seconds), and how its monotonic clock is aligned.

    Called by all ranks.
    """
    alignment = align_clocks(world)
    return wall_offsets(world.gather_objects(time.time() - time.perf_counter()), alignment), alignment


def wall_offsets(walls: Sequence[float], alignment: ClockAlignment) -> list[float]:
    """How far each wall clock is ahead of that of rank 0.

    Args:
        walls: for each rank, its wall clock minus its monotonic one.
        alignment: what is added to each monotonic clock to get that of rank 0.
    """
    return [wall - offset - walls[0] for wall, offset in zip(walls, alignment.offsets_seconds, strict=True)]


def judge_clocks(walls: Sequence[float], errors: Sequence[float], hosts: Sequence[str]) -> Check:
    """Whether wall clocks that are ahead by `walls`, and monotonic ones known to `errors` (seconds), will do."""
    if len(set(hosts)) == 1:
        return Check(CLOCKS, "pass", "one host, one clock")
    # Half of the hosts are right: rank 0's need not be among them.
    middle = sorted(walls)[len(walls) // 2]
    apart = {host: wall - middle for host, wall in zip(hosts, walls, strict=True)}
    wrong = [f"{host} by {seconds:+.3g} s" for host, seconds in apart.items() if abs(seconds) > MOST_APART_SECONDS]
    if wrong:
        fix = "have chrony or ntpd running on these hosts (`chronyc tracking`, `timedatectl`)"
        return Check(
            CLOCKS, "warn", f"wall clocks are wrong on {listed(wrong)}: times of records and meters disagree", fix
        )
    vague = [host for host, error in zip(hosts, errors, strict=True) if error > MOST_ERROR_SECONDS]
    if vague:
        return Check(
            CLOCKS,
            "warn",
            f"the clocks of {listed(vague)} can be aligned to {max(errors):.3g} s only: a barrier takes that long",
            "see `all-reduce`: hosts that answer each other so slowly will not train well",
        )
    widest = max(walls) - min(walls)
    return Check(CLOCKS, "pass", f"wall clocks within {widest:.3g} s, aligned to {max(errors):.2g} s")
