"""Whether the times that epochs tell of themselves fit the clock of their events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from hpcai500.methodology.integrity.log import Log
from hpcai500.methodology.integrity.passes import Pass
from hpcai500.methodology.integrity.values import Communication, Steps

# Two clocks of one machine, read one after the other; each rank has its own.
_TOLERANCE_SECONDS, _TOLERANCE = 0.02, 0.001
_SHARE_TOLERANCE, _SHARE_ROUNDING = 0.05, 0.002
_PARTS = {
    "seconds": "steps",
    "data_wait_seconds": "waiting for data",
    "compute_seconds": "computing",
    "communication_wait_seconds": "waiting for communication",
}
# Time within an epoch that is in no step.
_MOST_UNTOLD_SECONDS, _MOST_UNTOLD = 10.0, 0.1
# As StepSplit has it: clocks are read one after the other.
_STEP_SECONDS = 2e-6


def time_faults(passes: Iterable[Pass]) -> Iterator[str]:
    """Epochs and evaluations that took longer than there was time, or whose parts are longer than the whole."""
    for one in passes:
        done, evaluation = one.done, one.evaluation
        there_was = one.elapsed_seconds + one.head_start_seconds
        if not done.seconds <= _at_most(there_was):
            yield f"epoch {done.epoch}: trained for {done.seconds:.3f} s within {there_was:.3f} s by the clock"
        parts = done.data_wait_seconds + done.compute_seconds + done.communication_wait_seconds
        if not parts <= _at_most(done.seconds) + _STEP_SECONDS * done.steps:
            yield f"epoch {done.epoch}: the parts of its steps take {parts:.3f} s, the whole {done.seconds:.3f} s"
        if evaluation and not evaluation.seconds <= _at_most(one.evaluation_elapsed_seconds):
            seconds = one.evaluation_elapsed_seconds
            yield f"epoch {done.epoch}: evaluated for {evaluation.seconds:.3f} s within {seconds:.3f} s by the clock"


def untold_times(passes: Iterable[Pass]) -> Iterator[str]:
    """Epochs and evaluations with time in which nothing is told to have happened; it is in the score."""
    for one in passes:
        yield from _untold(f"epoch {one.done.epoch}: training", one.done.seconds, one.elapsed_seconds)
        if one.evaluation:
            seconds = one.evaluation_elapsed_seconds
            yield from _untold(f"epoch {one.done.epoch}: evaluation", one.evaluation.seconds, seconds)


def step_faults(log: Log, passes: Iterable[Pass]) -> Iterator[str]:
    """Where the sums over each rank's steps since the last start are not those of the epochs."""
    resumed = [moment for moment in log.named("epoch_start") if moment.line > log.trained[-1][0].line][:1]
    told = log.values(Steps, "steps")
    if not told or not resumed:
        return
    epochs = {one.done.epoch: one for one in passes}
    counted, seconds = _since(log, epochs)
    rows = told[-1].ranks
    for row in rows:
        if row.steps != counted:
            yield f"rank {row.rank} tells {row.steps} steps, its epochs {counted}"
    is_whole = len(log.trained) == 1
    for name, what in _PARTS.items():
        mean = sum(getattr(row, name) for row in rows) / len(rows) if rows else 0.0
        low = seconds[name] / (1 + _TOLERANCE) - _TOLERANCE_SECONDS if is_whole else 0.0
        if not low <= mean <= _at_most(seconds[name]):
            yield f"ranks tell {mean:.3f} s of {what} on average, the epochs {seconds[name]:.3f} s"
    for costs in log.values(Communication, "communication")[-1:]:
        if costs.steps != counted:
            yield f"the communication of {costs.steps} steps is told, the epochs have {counted}"
        # It is a share of the steps without what surrounds them, and so no less than that of the whole time.
        share = sum(row.communication_wait_seconds / row.seconds for row in rows if row.seconds) / max(1, len(rows))
        told = costs.communication_fraction
        if isinstance(told, float) and told < (1 - _SHARE_TOLERANCE) * share - _SHARE_ROUNDING:
            yield f"a communication fraction of {told:.4f} is told, the ranks' waits make {share:.4f}"


def _since(log: Log, epochs: dict[int, Pass]) -> tuple[int, dict[str, float]]:
    """Steps of the epochs since the last process began, and at most how many seconds they and their parts took."""
    first = log.trained[-1][0].line
    here = [one for one in epochs.values() if one.line > first]
    begun = next(moment for moment in log.named("epoch_start") if moment.line > first)
    already = getattr(begun.value, "step", 0)
    seconds = {name: math.fsum(getattr(one.done, name) for one in here) for name in _PARTS}
    return sum(one.done.steps for one in here) - already, seconds


def _untold(what: str, told: float, elapsed: float) -> Iterator[str]:
    if elapsed - told > max(_MOST_UNTOLD_SECONDS, _MOST_UNTOLD * elapsed):
        yield f"{what}: {told:.1f} s are told of {elapsed:.1f} s by the clock"


def _at_most(seconds: float) -> float:
    return seconds * (1 + _TOLERANCE) + _TOLERANCE_SECONDS
