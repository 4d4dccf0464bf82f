"""The fastest way to compute, of many shapes and library calls: all are tried, the best measured well and verified."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.measure.micro.crew import Crew
from hpcai500.measure.micro.memory import available_bytes
from hpcai500.measure.micro.precisions import Precision, arithmetic
from hpcai500.measure.micro.problem import Call, Problem
from hpcai500.measure.micro.stopwatch import stopwatch
from hpcai500.measure.repetition import Effort, Timing
from hpcai500.progress import Progress

# Of the ways that were tried, so many are measured well: what is fastest twice need not be the fastest.
FINALISTS = 3
_TRIES = 3
# Budget of the search, in measurements: slow processors need as long for few shapes as fast ones for all.
_SEARCH = 4
# A way that was predicted to take this many times the time of a repetition is not even tried: the prediction is rough.
_DOUBT = 4.0
# On a device, the first call of a convolution tries all algorithms of its library, as training does once.
_TUNING_SECONDS = 10.0


@dataclass(frozen=True)
class Way:
    """A problem's place in the list, and the name of a call that solves it."""

    problem: int
    call: str


@dataclass(frozen=True)
class _Measured:
    entry: dict[str, Any]
    way: Way


def fastest(
    problems: Sequence[Problem], precision: Precision, crew: Crew, seconds: float, bar: Progress
) -> dict[str, Any] | None:
    """The document's entry of the fastest way to solve one of `problems`; None where none ends in time on all ranks.

    Args:
        problems: of growing size, so that each tells what the next one will take.
        precision: of operands and results.
        crew: all ranks; they compute at once.
        seconds: of measuring a finalist; trying all of them takes twice that, or a little more.
        bar: told once this is done.

    Raises:
        WrongAnswerError: a rank's result is wrong.
    """
    effort = Effort(seconds=seconds)
    with arithmetic(precision):
        tried = _tried_by_all(crew, _try_all(problems, precision, crew, seconds, effort))
        ways = sorted(tried, key=lambda way: -tried[way])[:FINALISTS]
        measured = [_measure(problems[way.problem], way, precision, crew, effort) for way in ways]
    bar.advance()
    if not measured:
        return None
    best = max(measured, key=lambda one: one.entry["value"])
    return {
        **best.entry,
        "shape": problems[best.way.problem].name,
        "call": best.way.call,
        "precision": precision.name,
        "verified": True,
        "tried": _best_of_each(problems, tried),
    }


def _try_all(
    problems: Sequence[Problem], precision: Precision, crew: Crew, seconds: float, effort: Effort
) -> dict[Way, float]:
    """FLOPS of every way on this rank, roughly."""
    room = available_bytes(crew.device, crew.ranks_here) // precision.dtype.itemsize
    longest = seconds / effort.least
    rates: dict[Way, float] = {}
    crew.world.barrier()
    limit = time.monotonic() + _SEARCH * seconds + (_TUNING_SECONDS if crew.device.type == "cuda" else 0.0)
    for number, problem in enumerate(problems):
        predicted = problem.flops / max(rates.values()) if rates else 0.0
        if problem.elements > room or predicted > _DOUBT * longest or (rates and time.monotonic() > limit):
            continue
        for call, taken in _try(problem, precision, crew, longest):
            rates[Way(number, call)] = problem.flops / taken
    return rates


def _try(problem: Problem, precision: Precision, crew: Crew, longest: float) -> Iterable[tuple[str, float]]:
    """Seconds of each call that is no longer than `longest`; where the first is much longer, no other is tried.

    Calls take turns and the fastest of each counts: what a neighbour takes meanwhile hits one as the other.
    """
    watch = stopwatch(crew.device)
    patience = _DOUBT * longest + (_TUNING_SECONDS if crew.device.type == "cuda" else 0.0)
    calls: dict[str, Call] = {}
    for name, call in problem.prepare(precision, crew.device).calls.items():
        try:
            # The first one also pays for making a kernel.
            if watch(call) <= patience:
                calls[name] = call
            elif not calls:
                return []
        except RuntimeError as error:
            # This build has no such product in this precision, or no memory for it.
            crew.say(f"{problem.name} in {precision.name}: not by {name}: {str(error).partition(chr(10))[0][:200]}")
    taken = [{name: watch(call) for name, call in calls.items()} for _ in range(_TRIES)]
    best = {name: min(times[name] for times in taken) for name in calls}
    return [(name, seconds) for name, seconds in best.items() if seconds <= longest]


def _tried_by_all(crew: Crew, mine: dict[Way, float]) -> dict[Way, float]:
    """FLOPS of all ranks together, of the ways that all of them have."""
    everyone = crew.gather(mine)
    return {way: sum(rates[way] for rates in everyone) for way in mine if all(way in rates for rates in everyone)}


def _measure(problem: Problem, way: Way, precision: Precision, crew: Crew, effort: Effort) -> _Measured:
    prepared = problem.prepare(precision, crew.device)
    call, watch = prepared.calls[way.call], stopwatch(crew.device)
    timing: Timing = crew.time(lambda: watch(call), effort)
    crew.require(f"{problem.name} in {precision.name} by {way.call}", prepared.complaint(call()))
    return _Measured(crew.entry("FLOPS", problem.flops, timing), way)


def _best_of_each(problems: Sequence[Problem], tried: dict[Way, float]) -> list[dict[str, Any]]:
    """Of every shape that was tried, roughly, its fastest call: for whoever wants to know which shapes are slow."""
    best: dict[int, Way] = {}
    for way, rate in tried.items():
        if way.problem not in best or rate > tried[best[way.problem]]:
            best[way.problem] = way
    return [
        {"shape": problems[number].name, "call": way.call, "value": tried[way]} for number, way in sorted(best.items())
    ]
