"""Clocks, and the times that the run tells of itself."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.methodology.integrity.clocks import clock_faults, drift_seconds, pauses
from hpcai500.methodology.integrity.epoch_times import step_faults, time_faults, untold_times
from hpcai500.methodology.integrity.values import InitStop
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, warning
from hpcai500.results.verification.records.run import Run, judged

# A process takes its own time from before its first event on, by some milliseconds.
_SETUP_SECONDS = 5.0


def check_clock(run: Run) -> Iterator[Finding]:
    """Wall clock and machine clock; a run whose clock was set while it ran cannot be told from a forged one."""
    found = list(judged("clock", clock_faults(run.log), fail))
    yield from found
    yield from judged("pauses", pauses(run.log), warning)
    if not found:
        seconds = run.log.moments[-1].wall_s - run.log.moments[0].wall_s
        drift = drift_seconds(run.log)
        yield note("clock", f"wall clock and machine clock differ by {drift:+.3f} s over {seconds:.0f} s")


def check_times(run: Run) -> Iterator[Finding]:
    """Times of epochs, evaluations and steps with the clock and with each other."""
    epochs = run.epochs
    yield from judged("epoch-times", time_faults(epochs), fail)
    yield from judged("epoch-times", untold_times(epochs), warning)
    yield from judged("step-sums", step_faults(run.log, epochs), fail)
    yield from judged("setup-time", _setup_faults(run), fail)


def _setup_faults(run: Run) -> Iterator[str]:
    """What a process tells of its preparation with the clock."""
    for number, session in enumerate(run.log.sessions, 1):
        for stop in (moment for moment in session if moment.key == "init_stop"):
            told, elapsed = stop.told(InitStop).seconds, stop.clock_s - session[0].clock_s
            if not abs(told - elapsed) <= _SETUP_SECONDS:
                yield f"start {number}: prepared for {told:.1f} s within {elapsed:.1f} s by the clock"
