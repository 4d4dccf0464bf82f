"""The fastest way to compute, of many shapes and library calls: all are tried, the best measured well and verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcai500.measure.micro.crew import Crew
from hpcai500.measure.micro.memory import available_bytes
from hpcai500.measure.micro.precisions import Precision, arithmetic
from hpcai500.measure.micro.problem import Problem
from hpcai500.measure.micro.stopwatch import stopwatch
from hpcai500.measure.repetition import Effort, Timing
from hpcai500.progress import Progress

# Of the ways that were tried, so many are measured well: what is fastest twice need not be the fastest.
FINALISTS = 3
_TRIES = 3
# Budget of the search, in measurements: slow processors need as long for few shapes as fast ones for all.
_SEARCH = 4
# Of the finalists, in measurements: those that would begin later are left out.
_FINAL = 6.0
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
    problems: Sequence[Problem],
    precision: Precision,
    crew: Crew,
    seconds: float,
    bar: Progress,
    probes: Sequence[Problem] = (),
) -> dict[str, Any] | None:
    """The document's entry of the fastest way to solve one of `problems`; None where none ends in time on all ranks.

    Args:
        problems: of growing size, so that each tells what the next one will take.
        precision: of operands and results.
        crew: all ranks; they compute at once.
        seconds: of measuring a finalist; trying all of them takes twice that, or a little more.
        bar: told once this is done.
        probes: smaller ones, which only tell how fast this machine is: nothing large is begun without an estimate.

    Raises:
        WrongAnswerError: a rank's result is wrong.
    """
    effort = Effort(seconds=seconds, most_seconds=2 * seconds)
    with arithmetic(precision):
        search = _Search(precision, crew, seconds, effort)
        tried = _tried_by_all(crew, search.try_all(problems, probes))
        slow = crew.gather(search.check_seconds)
        ways = _finalists(problems, tried, max(slow), seconds)
        measured: list[_Measured] = []
        begun = time.monotonic()
        for way in ways:
            # One counts, however slow it is.
            if measured and any(crew.gather(time.monotonic() - begun > _FINAL * seconds)):
                break
            measured.append(_measure(problems[way.problem], way, precision, crew, effort))
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


def _finalists(problems: Sequence[Problem], tried: dict[Way, float], check_seconds: float, seconds: float) -> list[Way]:
    """The fastest ways, of those whose results can be checked in time; the quickest to check where none can.

    Args:
        problems: all.
        tried: FLOPS of each way.
        check_seconds: of an operation of a check.
        seconds: of measuring.
    """
    quick = [way for way in tried if problems[way.problem].check_flops * check_seconds <= _FINAL * seconds]
    if tried and not quick:
        quick = [min(tried, key=lambda way: problems[way.problem].check_flops)]
    return sorted(quick, key=lambda way: -tried[way])[:FINALISTS]


class _Search:
    """Tries shapes and calls on this rank, the small ones first, and begins nothing that would not end in time.

    Attributes:
        check_seconds: of an operation of a check (`Problem.check_flops`); 0 while unknown.
    """

    def __init__(self, precision: Precision, crew: Crew, seconds: float, effort: Effort) -> None:
        self._precision, self._crew = precision, crew
        self._watch = stopwatch(crew.device)
        self._longest = seconds / effort.least
        tuning = _TUNING_SECONDS if crew.device.type == "cuda" else 0.0
        self._patience = _DOUBT * self._longest + tuning
        self._budget = _SEARCH * seconds + tuning
        # FLOPS of each call at the largest problem that it has solved.
        self._rates: dict[str, float] = {}
        # Of making a problem's operands, for each of its elements.
        self._prepare_seconds = 0.0
        self.check_seconds = 0.0

    def try_all(self, problems: Sequence[Problem], probes: Sequence[Problem]) -> dict[Way, float]:
        """FLOPS of every way of `problems` on this rank, roughly."""
        crew, found = self._crew, dict[Way, float]()
        crew.world.barrier()
        limit = time.monotonic() + self._budget
        for probe in probes:
            if self._fits(probe, limit):
                self._try(probe, limit, is_probe=True)
        for number, problem in enumerate(problems):
            room = available_bytes(crew.device, crew.ranks_here) // self._precision.dtype.itemsize
            if problem.elements <= room and self._fits(problem, limit):
                for call, taken in self._try(problem, limit).items():
                    if taken <= self._longest:
                        found[Way(number, call)] = problem.flops / taken
        return found

    def _fits(self, problem: Problem, limit: float) -> bool:
        """Whether `problem` can be tried before `limit`, and be measured in time by the fastest call."""
        if not self._rates:
            return True
        expected = problem.flops / max(self._rates.values())
        preparing = problem.elements * self._prepare_seconds
        return expected <= _DOUBT * self._longest and time.monotonic() + preparing + expected < limit

    def _may_call(self, name: str, problem: Problem) -> bool:
        """Whether the call `name` can be expected to end: one that has solved nothing smaller counts as the slowest."""
        if not self._rates:
            return True
        return problem.flops / self._rates.get(name, min(self._rates.values())) <= self._patience

    def _try(self, problem: Problem, limit: float, *, is_probe: bool = False) -> dict[str, float]:
        """Seconds of each call that ends in time; where the first is much longer, no other is tried.

        Calls take turns and the fastest of each counts: what a neighbour takes meanwhile hits one as the other.
        """
        what = f"{problem.name} in {self._precision.name}"
        self._crew.doing(what)
        begun = time.monotonic()
        prepared = problem.prepare(self._precision, self._crew.device)
        self._prepare_seconds = (time.monotonic() - begun) / problem.elements
        best: dict[str, float] = {}
        # What is tried first tells whether anything is measured at all: one disturbance must not decide that.
        patience = self._patience if self._rates else _DOUBT * self._patience
        for name, call in prepared.calls.items():
            if not self._may_call(name, problem) or (best and time.monotonic() > limit):
                continue
            self._crew.doing(f"{what} by {name}")
            try:
                # The first one also pays for making a kernel.
                best[name] = self._watch(call)
            except RuntimeError as error:
                # This build has no such product in this precision, or no memory for it.
                if not is_probe:
                    self._crew.say(f"{what}: not by {name}: {str(error).partition(chr(10))[0][:200]}")
                continue
            if best[name] > patience and len(best) == 1:
                break
        quick = [name for name, taken in best.items() if taken <= patience]
        for _ in range(_TRIES):
            for name in quick:
                if time.monotonic() < limit or not self._rates:
                    best[name] = min(best[name], self._watch(prepared.calls[name]))
        self._rates |= {name: problem.flops / taken for name, taken in best.items()}
        if is_probe and quick:
            begun = time.monotonic()
            prepared.complaint(prepared.calls[quick[0]]())
            self.check_seconds = (time.monotonic() - begun) / problem.check_flops
        return best


def _tried_by_all(crew: Crew, mine: dict[Way, float]) -> dict[Way, float]:
    """FLOPS of all ranks together, of the ways that all of them have."""
    everyone = crew.gather(mine)
    return {way: sum(rates[way] for rates in everyone) for way in mine if all(way in rates for rates in everyone)}


def _measure(problem: Problem, way: Way, precision: Precision, crew: Crew, effort: Effort) -> _Measured:
    prepared = problem.prepare(precision, crew.device)
    call, watch = prepared.calls[way.call], stopwatch(crew.device)
    what = f"{problem.name} in {precision.name} by {way.call}"
    crew.doing(f"{what}, measured well")
    timing: Timing = crew.time(lambda: watch(call), effort)
    crew.doing(f"{what}, checked in float64")
    crew.require(what, prepared.complaint(call()))
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
