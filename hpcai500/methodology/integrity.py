"""Whether the events of a run contradict each other: clocks, times of epochs, rates (docs/verification.md).

Pure functions of a record's log. Each fault is a sentence with the line in the log, the epoch or the rank.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from hpcai500.methodology.events import (
    NOTES,
    Ceilings,
    Communication,
    EpochStop,
    Evaluation,
    InitStart,
    Log,
    Moment,
    ParallelEfficiency,
    Place,
    Steps,
)

# ----------------------------------------------------------------------------------------------------
# The time of each epoch by the clock of its events, next to the times that the epoch reports.


# After these, other ranks may already train while rank 0, which writes the events, is busy with a checkpoint.
_SYNCHRONISED = ("eval_stop", "run_start", "run_resume")


@dataclass(frozen=True)
class Pass:
    """One epoch, without the parts that a restart has lost.

    Attributes:
        line: line of its `epoch_stop` in the log.
        done: value of its `epoch_stop`.
        elapsed_seconds: from `epoch_start` to `epoch_stop`, over all processes that worked on it.
        head_start_seconds: time before that in which other ranks may already have trained.
        evaluation: value of its `eval_accuracy`; None if there was none.
        evaluation_elapsed_seconds: from `eval_start` to `eval_accuracy`.
    """

    line: int
    done: EpochStop
    elapsed_seconds: float
    head_start_seconds: float
    evaluation: Evaluation | None = None
    evaluation_elapsed_seconds: float = 0.0

    @property
    def trained(self) -> int:
        """Samples that went through the model, including those that pad the last batch."""
        return self.done.samples + self.done.padded_samples


class _Part(NamedTuple):
    """The time spent on an epoch up to a step, by this process and earlier ones; times in seconds."""

    step: int
    seconds: float = 0.0
    head_start: float = 0.0


def last_passes(log: Log) -> dict[int, Pass]:
    """Each epoch (from 1) as it was last trained."""
    passes: dict[int, Pass] = {}
    parts: dict[int, list[_Part]] = {}
    synchronised = begun = evaluating = log.moments[0]
    is_open = False
    for moment in log.moments:
        if moment.key in _SYNCHRONISED:
            synchronised = moment
        elif moment.key == "epoch_start":
            begun, is_open, place = moment, True, moment.value_as(Place)
            done_before = parts.setdefault(place.epoch, [])
            # Drop what a restart at this step has lost; steps only grow within an epoch.
            while done_before and (place.step == 0 or done_before[-1].step > place.step):
                done_before.pop()
        elif moment.key == "interrupted" and is_open:
            is_open, place = False, moment.value_as(Place)
            _add(parts.setdefault(place.epoch, []), place.step, synchronised, begun, moment)
        elif moment.key == "epoch_stop":
            is_open, done = False, moment.value_as(EpochStop)
            whole = _add(parts.setdefault(done.epoch, []), done.steps, synchronised, begun, moment)
            passes[done.epoch] = Pass(moment.line, done, whole.seconds, whole.head_start)
        elif moment.key == "eval_start":
            evaluating = moment
        elif moment.key == "eval_accuracy":
            evaluation, seconds = moment.value_as(Evaluation), moment.clock_s - evaluating.clock_s
            if trained := passes.get(evaluation.epoch):
                passes[evaluation.epoch] = replace(trained, evaluation=evaluation, evaluation_elapsed_seconds=seconds)
        elif moment.key == "init_start":
            is_open = False
    return passes


def _add(parts: list[_Part], step: int, synchronised: Moment, begun: Moment, ended: Moment) -> _Part:
    before = parts[-1] if parts else _Part(0)
    seconds, ahead = ended.clock_s - begun.clock_s, max(0.0, begun.clock_s - synchronised.clock_s)
    parts.append(_Part(step, before.seconds + seconds, before.head_start + ahead))
    return parts[-1]


# ----------------------------------------------------------------------------------------------------
# Whether the two clocks of a run's events agree: the machine's own, which cannot be set, and the wall clock.


# As in `passes.Timeline`: a time server corrects a clock by less.
MOST_LEAP_SECONDS = 5.0
# A time server may slew by at most 500 ppm (adjtimex); a clock without a time server is off by less.
_MOST_SLEW = 0.001
# Pairs of events between which nothing happens, and a time longer than any file system takes to write a line.
_QUIET = {("run_start", "epoch_start"), ("run_resume", "epoch_start"), ("eval_accuracy", "eval_stop")}
_QUIET |= {("checkpoint", "epoch_start"), ("checkpoint", "run_stop"), ("replicas", "eval_start")}
_LONG_SECONDS = 30.0


def clock_faults(log: Log) -> Iterator[str]:
    """Yield a sentence, with the line in the log, for each place where the clocks cannot both be right."""
    boot: str | None = None
    for session in log.sessions:
        before, boot = boot, session[0].value_as(InitStart).boot_id
        yield from _within(session)
        if session[0].line > 1:
            last = log.moments[session[0].line - 2]
            yield from _between(last, session[0], same_clock=boot is not None and boot == before)


def pauses(log: Log) -> Iterator[str]:
    """Long times in which a running process did nothing. They count in the score."""
    for session in log.sessions:
        for before, moment in pairwise(moment for moment in session if moment.key not in NOTES):
            seconds = moment.clock_s - before.clock_s
            if (before.key, moment.key) in _QUIET and seconds > _LONG_SECONDS:
                yield f"line {moment.line}: {seconds:.1f} s from {before.key} to {moment.key}: nothing there takes long"


def drift_seconds(log: Log) -> float:
    """By how much the wall clock ran ahead of the machine's clock, summed over all processes."""
    return sum(_drift(session[0], session[-1]) for session in log.sessions)


def _within(session: tuple[Moment, ...]) -> Iterator[str]:
    for before, moment in pairwise(session):
        yield from _between(before, moment, same_clock=True)
    first, last = session[0], session[-1]
    drift, seconds = _drift(first, last), last.clock_s - first.clock_s
    if not abs(drift) <= MOST_LEAP_SECONDS + _MOST_SLEW * abs(seconds):
        yield (
            f"lines {first.line} to {last.line}: the machine's clock advanced by {seconds:.3f} s, the wall clock by "
            f"{seconds + drift:.3f} s"
        )


def _between(before: Moment, moment: Moment, *, same_clock: bool) -> Iterator[str]:
    wall = moment.wall_s - before.wall_s
    # Wall clocks of two machines are never quite equal.
    if not same_clock:
        if not wall >= -MOST_LEAP_SECONDS:
            yield f"line {moment.line}: the wall clock went back by {-wall:.3f} s"
        return
    machine = moment.clock_s - before.clock_s
    if not machine >= 0:
        yield f"line {moment.line}: the machine's clock went back by {-machine:.3f} s"
    elif not abs(wall - machine) <= MOST_LEAP_SECONDS:
        yield f"line {moment.line}: the machine's clock advanced by {machine:.3f} s, the wall clock by {wall:.3f} s"


def _drift(first: Moment, last: Moment) -> float:
    return (last.wall_s - first.wall_s) - (last.clock_s - first.clock_s)


# ----------------------------------------------------------------------------------------------------
# Whether the times that epochs report fit the clock of their events.


# Two clocks of one machine are read one after the other, and each rank has its own.
_TOLERANCE_SECONDS, _TOLERANCE = 0.02, 0.001
_PARTS = {
    "seconds": "steps",
    "data_wait_seconds": "waiting for data",
    "compute_seconds": "computing",
    "communication_wait_seconds": "waiting for communication",
}
# How much of an epoch may be outside of its steps.
_MOST_UNACCOUNTED_SECONDS, _MOST_UNACCOUNTED = 10.0, 0.1
# As in `result.step_split`: clocks are read one after the other.
_STEP_SECONDS = 2e-6


def time_faults(passes: Iterable[Pass]) -> Iterator[str]:
    """Epochs and evaluations that report more time than the clock shows, or parts that exceed the whole."""
    for one in passes:
        done, evaluation = one.done, one.evaluation
        elapsed = one.elapsed_seconds + one.head_start_seconds
        if not done.seconds <= _at_most(elapsed):
            yield f"epoch {done.epoch}: reports {done.seconds:.3f} s of training, the clock {elapsed:.3f} s"
        parts = done.data_wait_seconds + done.compute_seconds + done.communication_wait_seconds
        if not parts <= _at_most(done.seconds) + _STEP_SECONDS * done.steps:
            yield f"epoch {done.epoch}: parts of its steps add up to {parts:.3f} s, the steps to {done.seconds:.3f} s"
        if evaluation and not evaluation.seconds <= _at_most(one.evaluation_elapsed_seconds):
            seconds = one.evaluation_elapsed_seconds
            yield f"epoch {done.epoch}: reports {evaluation.seconds:.3f} s of evaluation, the clock {seconds:.3f} s"


def unreported_times(passes: Iterable[Pass]) -> Iterator[str]:
    """Epochs and evaluations with much unaccounted time. It counts in the score."""
    for one in passes:
        yield from _unaccounted(f"epoch {one.done.epoch}: training", one.done.seconds, one.elapsed_seconds)
        if one.evaluation:
            seconds = one.evaluation_elapsed_seconds
            yield from _unaccounted(f"epoch {one.done.epoch}: evaluation", one.evaluation.seconds, seconds)


def step_faults(log: Log, passes: Iterable[Pass]) -> Iterator[str]:
    """Where the sums over each rank's steps since the last start differ from those over epochs."""
    begun = next((one for one in log.named("epoch_start") if one.line > log.trained[-1][0].line), None)
    reported = log.values(Steps, "steps")
    if not reported or begun is None:
        return
    first = log.trained[-1][0].line
    here = [one.done for one in passes if one.line > first]
    counted = sum(done.steps for done in here) - begun.value_as(Place).step
    # Upper bounds: those of the first epoch include what an earlier process trained of it.
    seconds = {name: math.fsum(getattr(done, name) for done in here) for name in _PARTS}
    rows = reported[-1].ranks
    for row in rows:
        if row.steps != counted:
            yield f"rank {row.rank} reports {row.steps} steps, its epochs {counted}"
    is_whole = len(log.trained) == 1
    for name, what in _PARTS.items():
        mean = sum(getattr(row, name) for row in rows) / len(rows) if rows else 0.0
        low = seconds[name] / (1 + _TOLERANCE) - _TOLERANCE_SECONDS if is_whole else 0.0
        if not low <= mean <= _at_most(seconds[name]):
            yield f"ranks report {mean:.3f} s of {what} on average, the epochs {seconds[name]:.3f} s"
    for costs in log.values(Communication, "communication")[-1:]:
        if costs.steps != counted:
            yield f"the event communication reports {costs.steps} steps, the epochs {counted}"


def _unaccounted(what: str, reported: float, elapsed: float) -> Iterator[str]:
    if elapsed - reported > max(_MOST_UNACCOUNTED_SECONDS, _MOST_UNACCOUNTED * elapsed):
        yield f"{what}: reports {reported:.1f} s of the {elapsed:.1f} s by the clock"


def _at_most(seconds: float) -> float:
    return seconds * (1 + _TOLERANCE) + _TOLERANCE_SECONDS


# ----------------------------------------------------------------------------------------------------
# Whether the devices of a run could have done the reported work in the reported time.


# How far a convolution may seem to exceed the ceiling. Winograd's F(4x4, 3x3) needs 36 multiplications instead of 144
# for 16 outputs (Lavin and Gray 2015), 4 times fewer, less what its transforms cost; F(2x2, 3x3), which libraries use
# in training, needs 2.25 times fewer.
MOST_OF_CEILING = 2.25
_LEAST_EPOCHS = 5
_MUCH_FASTER = 0.8
_FASTER_SECONDS = 1.0
# A step of the warm-up has its input in memory and no loop around it: a real step is hardly ever faster.
_LEAST_OF_WARM_UP = 0.5
_LEAST_STEP_SECONDS = 0.01


def training_rate(one: Pass, flops_per_sample: float) -> float:
    """Operations a second of an epoch's training, by the clock of its events."""
    return _rate(one.trained * flops_per_sample, one.elapsed_seconds)


def evaluation_rate(one: Pass, forward_flops: float) -> float:
    """Operations a second of the epoch's evaluation; 0 if there was none."""
    samples = one.evaluation.samples if one.evaluation else 0
    return _rate(samples * forward_flops, one.evaluation_elapsed_seconds)


def ceiling(measured: Sequence[Ceilings]) -> float | None:
    """The rate that all ranks reach together, in the best of the run's processes; None if none was measured."""
    return max((one.flops for one in measured), default=None)


# With repetitions further apart than this, or threads that waited longer for a core, the machine was busy.
_MOST_SPREAD, _MOST_WAITED = 0.1, 0.05


def why_not_idle(spread: float | None, waited: float | None) -> str | None:
    """Why the machine was busy while its ceiling was measured, so that it is too low; None if it was idle.

    `spread` and `waited` are those of the event; None if they were not measured.
    """
    if spread is None:
        return "whether the machine was idle is not in the record"
    if waited is not None and waited > _MOST_WAITED:
        return f"other programs used the cores: threads waited {waited:.0%} of their time for one"
    if spread > _MOST_SPREAD:
        return f"the machine was busy: the times of equal products differed by {spread:.0%}"
    return None


def ceiling_faults(measured: Sequence[Ceilings], precision: str) -> Iterator[str]:
    """Ceilings in another precision than the run's, or lower than the slowest rank's times the number of ranks."""
    for one in measured:
        if one.precision != precision:
            yield f"ceilings were measured in {one.precision}, the run computes in {precision}"
        if not one.flops >= one.slowest_flops * one.ranks * (1 - 1e-9):
            yield (
                f"the ceiling of {one.ranks} ranks is reported as {one.flops:.4g} FLOPS, less than {one.ranks} x the "
                f"slowest rank's {one.slowest_flops:.4g}"
            )


def fast_epochs(passes: Sequence[Pass]) -> Iterator[str]:
    """Epochs whose steps were much faster than the median of the run."""
    if len(passes) < _LEAST_EPOCHS:
        return
    usual = statistics.median(one.elapsed_seconds / max(one.done.steps, 1) for one in passes)
    for one in passes:
        seconds, expected = one.elapsed_seconds, usual * one.done.steps
        if seconds < _MUCH_FASTER * expected and expected - seconds > _FASTER_SECONDS:
            yield f"epoch {one.done.epoch} took {seconds:.1f} s; the median of the run is {expected:.1f} s"


def fast_steps(passes: Sequence[Pass], warm_ups: Sequence[ParallelEfficiency]) -> Iterator[str]:
    """A run whose steps took less than half of what they took in the warm-up before the clock."""
    steps = sum(one.done.steps for one in passes)
    if not warm_ups or not steps:
        return
    mean = sum(one.elapsed_seconds for one in passes) / steps
    before = warm_ups[-1].step_seconds
    if mean < _LEAST_OF_WARM_UP * before and before > _LEAST_STEP_SECONDS:
        yield f"a step took {mean:.4g} s on average; in the warm-up, without reading data, {before:.4g} s"


def _rate(flops: float, seconds: float) -> float:
    return flops / seconds if seconds > 0 else (float("inf") if flops else 0.0)
