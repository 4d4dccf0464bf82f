"""The checks of `hpcai500 doctor` that measure: their names, and what becomes of those that could not end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.system.check_log import Told
from hpcai500.system.checks import Check

RANKS = "ranks"
VERSIONS = "versions"
NODES = "nodes"
CLOCKS = "clocks"
DEVICES = "devices"
GEMM = "GEMM"
CONVOLUTIONS = "convolutions"
ALL_REDUCE = "all-reduce"
READING = "reading"
DISK = "disk"
POWER = "power"
# What one check may take, and the start of all ranks: torch is imported, perhaps from a busy file system.
CHECK_SECONDS, START_SECONDS = 180.0, 300.0
# In the order in which they run, and in which people should mend what they find.
MEASURED = (RANKS, VERSIONS, NODES, CLOCKS, DEVICES, GEMM, CONVOLUTIONS, ALL_REDUCE, READING, DISK, POWER)

# Where one of these has failed, no rank can begin to work.
_NEEDED = ("temporary", "backend", "launcher", "accelerator")
# What the check on the left has found wrong, the one on the right would only say again.
_FOR_ONE = {"data": READING, "out": DISK}


@dataclass(frozen=True)
class Plan:
    """What there is to measure.

    Attributes:
        names: the checks that can be made.
        skipped: the others, with the reason.
    """

    names: tuple[str, ...]
    skipped: tuple[Check, ...]


def plan(looked_at: Sequence[Check]) -> Plan:
    """What to measure, after what was `looked_at` without measuring."""
    failed = [check.name for check in looked_at if check.status == "fail"]
    if in_the_way := [name for name in failed if name in _NEEDED]:
        return Plan((), skipped(MEASURED, f"not measured: first mend what `{in_the_way[0]}` says"))
    given_up = {_FOR_ONE[name]: name for name in failed if name in _FOR_ONE}
    return Plan(
        tuple(name for name in MEASURED if name not in given_up),
        tuple(Check(name, "skip", f"not measured: first mend what `{cause}` says") for name, cause in given_up.items()),
    )


def skipped(names: Sequence[str], reason: str) -> tuple[Check, ...]:
    """The checks `names` that were not made."""
    return tuple(Check(name, "skip", reason) for name in names)


def concluded(told: Told, names: Sequence[str], ended_by: str | None) -> list[Check]:
    """All checks `names` after the ranks have ended: what they told, what broke, and what was then not made.

    Args:
        told: their log.
        names: what they were to check.
        ended_by: how they ended, in words, where it was no good end; None otherwise.
    """
    checks = list(told.checks)
    missing = [name for name in names if name not in {check.name for check in checks}]
    if not missing:
        return checks
    if told.stopped:
        # What nobody looked at must not end in a verdict that says that all is well.
        again = Check(missing[0], "fail", f"stopped by {told.stopped} before it ended", "let doctor come to its end")
        return [*checks, again, *skipped(missing[1:], f"not measured: stopped by {told.stopped}")]
    broken = told.running or missing[0]
    # The monitor speaks to whoever trains.
    reason = (told.reason or ended_by or "its processes ended without a word").removesuffix("; go on with --resume")
    fix = "see what the ranks said above; docs/doctor.md has what helps, or try again without that host"
    rest = [name for name in missing if name != broken]
    return [*checks, Check(broken, "fail", reason, fix), *skipped(rest, f"not measured: `{broken}` came to no end")]


def in_order(checks: Sequence[Check]) -> list[Check]:
    """Those that were looked at as they come, then the measured ones in their usual order."""
    place = {name: number for number, name in enumerate(MEASURED)}
    return sorted(checks, key=lambda check: place.get(check.name, -1))
