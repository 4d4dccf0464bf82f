"""Whether the two clocks of a run's events agree: the machine's own, which nobody can set, and the wall clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hpcai500.methodology.integrity.log import Log, Moment
from hpcai500.methodology.integrity.values import InitStart

# As Timeline has it: a time server steers, it does not leap.
MOST_LEAP_SECONDS = 5.0
# A time server may slew by 500 millionths at most (adjtimex); a clock that nothing steers is off by less.
_MOST_SLEW = 0.001
# Where nothing happens between two events: longer than any file system needs for a line.
_QUIET = {("run_start", "epoch_start"), ("run_resume", "epoch_start"), ("eval_accuracy", "eval_stop")}
_QUIET |= {("checkpoint", "epoch_start"), ("checkpoint", "run_stop"), ("replicas", "eval_start")}
_LONG_SECONDS = 30.0


def clock_faults(log: Log) -> Iterator[str]:
    """Where the clocks cannot both be right, a sentence each, with the line in the log."""
    boot: str | None = None
    for session in log.sessions:
        before, boot = boot, session[0].told(InitStart).boot_id
        yield from _within(session)
        last = _last_before(log, session[0])
        if last:
            yield from _between(last, session[0], same_clock=boot is not None and boot == before)


def pauses(log: Log) -> Iterator[str]:
    """Where a process that ran did nothing for long; the time is in the score."""
    for session in log.sessions:
        for before, moment in pairwise(session):
            seconds = moment.clock_s - before.clock_s
            if (before.key, moment.key) in _QUIET and seconds > _LONG_SECONDS:
                yield f"line {moment.line}: {seconds:.1f} s from {before.key} to {moment.key}, where nothing takes long"


def drift_seconds(log: Log) -> float:
    """By how much the wall clock went ahead of the machine's, over all processes."""
    return sum(_drift(session[0], session[-1]) for session in log.sessions)


def _within(session: tuple[Moment, ...]) -> Iterator[str]:
    for before, moment in pairwise(session):
        yield from _between(before, moment, same_clock=True)
    first, last = session[0], session[-1]
    drift, seconds = _drift(first, last), last.clock_s - first.clock_s
    if not abs(drift) <= MOST_LEAP_SECONDS + _MOST_SLEW * abs(seconds):
        yield (
            f"lines {first.line} to {last.line}: the machine's clock went on by {seconds:.3f} s, the wall clock by "
            f"{seconds + drift:.3f} s"
        )


def _between(before: Moment, moment: Moment, *, same_clock: bool) -> Iterator[str]:
    wall = moment.wall_s - before.wall_s
    # Two machines' wall clocks are never quite equal.
    if not same_clock:
        if not wall >= -MOST_LEAP_SECONDS:
            yield f"line {moment.line}: the wall clock went back by {-wall:.3f} s"
        return
    machine = moment.clock_s - before.clock_s
    if not machine >= 0:
        yield f"line {moment.line}: the machine's clock went back by {-machine:.3f} s"
    elif not abs(wall - machine) <= MOST_LEAP_SECONDS:
        yield f"line {moment.line}: the machine's clock went on by {machine:.3f} s, the wall clock by {wall:.3f} s"


def _drift(first: Moment, last: Moment) -> float:
    return (last.wall_s - first.wall_s) - (last.clock_s - first.clock_s)


def _last_before(log: Log, moment: Moment) -> Moment | None:
    return log.moments[moment.line - 2] if moment.line > 1 else None
