"""Finds copied runs, within a submission and between submissions, whatever their names, journals and signatures.

Two real runs never have the same losses, times or weights in more epochs than chance allows, and never use the same
machine or accelerator at the same time (`dates`). For comparisons between submissions, all of this is kept as hashes of
8 bytes, which a site can publish.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from hpcai500.record import Record
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.dates import SKEW_MS, Stretch, are_apart, stretches_of
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import IMPLAUSIBLE, Finding, fail, note, warning
from hpcai500.results.verification.run_numbers import FINE_GRID

# ----------------------------------------------------------------------------------------------------
# Within a submission: runs with two seeds have no losses, weights or times in common.


_COPIES = "copied-runs"
# Of two lists with at least so many numbers that differ only by a factor and an offset, one was not measured.
_LEAST_EPOCHS = 6
_SAME_SHAPE = 1e-4


@dataclass(frozen=True)
class Fact:
    """A value of each epoch: `field` of the event `key`.

    Attributes:
        what: its name in sentences.
        most: number of epochs in which two runs may have the same value.
        most_share: the same as a share of their epochs; the larger limit counts.
    """

    what: str
    key: str
    field: str
    most: int = 0
    most_share: float = 0.0

    def copied(self, shared: int, epochs: int) -> bool:
        """Whether two runs have too many equal values; `epochs` is the number of values of the shorter run."""
        return shared > max(self.most, self.most_share * epochs)


FACTS = (
    # Means of thousands of numbers in full precision: one may be equal by chance, two may not.
    Fact("losses", "epoch_stop", "loss", most=1),
    # Written in microseconds; those of short epochs are sometimes equal.
    Fact("times", "epoch_stop", "seconds", most_share=0.5),
    # Hashes of all weights: not even one may be equal.
    Fact("weights", "replicas", "digest"),
    Fact("checkpoints", "checkpoint", "sha256"),
)


def check_copies(context: Context) -> Iterator[Finding]:
    """Compare losses, times, weights and checkpoints of epochs between all records."""
    found = []
    # Attempts at one trial have the same seed: a deterministic machine gives them the same losses.
    runs = {name: context.attempts[name].trial for name in context.records}
    for fact in FACTS:
        series = {name: series_of(record, fact) for name, record in context.records.items()}
        for (name, other), shared in _shared(series, runs).items():
            least = min(len(series[name]), len(series[other]))
            if fact.copied(shared, least):
                found.append(
                    fail(_COPIES, f"{name} and {other}: {shared} of {least} {fact.what} of epochs are the same")
                )
        if fact.what == "times" and not found:
            found += _scaled_times(series)
    qualities = {name: _qualities(record) for name, record in context.records.items()}
    for (name, other), shared in _shared(qualities, runs).items():
        least = min(len(qualities[name]), len(qualities[other]))
        if least >= _LEAST_EPOCHS and shared > least / 2:
            yield warning(IMPLAUSIBLE, f"{name} and {other}: {shared} of {least} evaluations gave the same quality")
    yield from found
    if not found and len(context.records) > 1:
        yield note(_COPIES, f"{len(context.records)} records: no two have losses, times or weights in common")


def _shared(series: Mapping[str, Mapping[int, object]], runs: Mapping[str, int]) -> Counter[tuple[str, str]]:
    """Count the values that each series shares with the first one that has them at the same epoch."""
    first: dict[tuple[int, object], str] = {}
    shared: Counter[tuple[str, str]] = Counter()
    for name, by_epoch in series.items():
        for epoch, value in by_epoch.items():
            other = first.setdefault((epoch, value), name)
            if runs[other] != runs[name]:
                shared[name, other] += 1
    return shared


def _qualities(record: Record) -> dict[int, object]:
    """The quality of each epoch; empty with so few samples that two runs often have equally many right answers."""
    evaluations = values(record, "eval_accuracy")
    fine = all(value["samples"] >= FINE_GRID for value in evaluations)
    return {value["epoch"]: value["value"] for value in evaluations} if fine else {}


def _scaled_times(series: Mapping[str, Mapping[int, object]]) -> Iterator[Finding]:
    """Find epoch times that equal those of another run except for a factor and an offset."""
    shapes = [(name, _standardised(list(own.values()))) for name, own in series.items() if len(own) >= _LEAST_EPOCHS]
    # Only those with like last epochs, which are few, are compared. First epochs, which warm up, are alike in all runs.
    places = sorted(range(len(shapes)), key=lambda place: shapes[place][1][-1])
    lasts = [shapes[place][1][-1] for place in places]
    for place, (name, one) in enumerate(shapes):
        lowest, highest = one[-1] - 2 * _SAME_SHAPE, one[-1] + 2 * _SAME_SHAPE
        near = sorted(places[bisect_left(lasts, lowest) : bisect_right(lasts, highest)])
        for other, two in (shapes[after] for after in near if after > place):
            if len(one) == len(two) and all(abs(a - b) < _SAME_SHAPE for a, b in zip(one, two, strict=True)):
                yield fail(_COPIES, f"{name} and {other}: the times of their epochs are the same except for a scale")
                return


def series_of(record: Record, fact: Fact) -> dict[int, object]:
    """The last value of each epoch that has one, in the order of epochs."""
    found = {value["epoch"]: value.get(fact.field) for value in values(record, fact.key)}
    return {epoch: found[epoch] for epoch in sorted(found) if _is_distinctive(found[epoch])}


def _is_distinctive(value: object) -> bool:
    """Whether equal values suggest a copy. Overfitted models have a loss of 0, plug-ins may have no loss."""
    return value is not None and (not isinstance(value, int | float) or (value != 0 and math.isfinite(value)))


def _standardised(series: Sequence[object]) -> list[float]:
    numbers = [float(str(value)) for value in series]
    mean, deviation = statistics.fmean(numbers), statistics.stdev(numbers)
    return [(number - mean) / deviation if deviation else 0.0 for number in numbers]


# ----------------------------------------------------------------------------------------------------
# Between submissions.


_DIGITS = 16
# Of more accelerators, those with the lowest hashes are kept: two runs on all of them keep the same ones.
_MOST_DEVICES = 64
_AT_ONCE = "moments on one machine"
_KINDS = (*(fact.what for fact in FACTS), _AT_ONCE)
# With the same seed, a deterministic machine repeats losses and weights, but neither times nor moments.
_MEASURED = frozenset({"times", _AT_ONCE})

Digest = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{_DIGITS}}}$")]


class Part(BaseModel):
    """Part of one of our JSON documents: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Job(Part):
    """Where and when a run ran, from one of its starts to the next."""

    start_ms: int
    stop_ms: int
    boot: Digest | None
    boot_start_ms: float
    boot_stop_ms: float


class RunFacts(Part):
    """What identifies a run: for each `Fact` a hash of each epoch (`told`), hashes of accelerators, and jobs."""

    told: dict[str, list[Digest]]
    devices: list[Digest]
    jobs: list[Job]


Runs = Mapping[str, RunFacts]


@dataclass(frozen=True)
class Shared:
    """What one submission has in common with another one.

    Attributes:
        runs: names of its runs that the other one has, too.
        every: whether these are all of its runs.
        what: names of the equal facts.
    """

    runs: frozenset[str]
    every: bool
    what: tuple[str, ...]

    @property
    def measured(self) -> bool:
        """Whether times or moments are equal, which no machine repeats, even with the same seed."""
        return not _MEASURED.isdisjoint(self.what)


@dataclass(frozen=True)
class _Use:
    """Use of a machine or a device by the run at index `place`, on a clock that all its users share."""

    place: int
    devices: frozenset[str]
    start_ms: float
    stop_ms: float


def run_facts(record: Record) -> RunFacts:
    """Compute the facts of one run.

    Raises:
        KeyError, TypeError: an event was not written by hpcai500.
    """
    hashes = {
        fact.what: [_digest(fact.what, epoch, value) for epoch, value in series_of(record, fact).items()]
        for fact in FACTS
    }
    stretches = [*stretches_of(record.path.name, record)]
    # All stretches of one record have the same devices.
    devices = sorted(_digest("device", device) for device in stretches[0].devices) if stretches else []
    return RunFacts(told=hashes, devices=devices[:_MOST_DEVICES], jobs=[_job(one) for one in stretches])


def shared_runs(submissions: Sequence[Runs]) -> dict[int, dict[int, Shared]]:
    """For each submission, by index: what it shares with each other submission, by index."""
    owners = [(number, name) for number, runs in enumerate(submissions) for name in runs]
    facts = [one for runs in submissions for one in runs.values()]
    same: dict[tuple[int, int], set[str]] = defaultdict(set)
    for what, (one, other) in (*_equal_facts(facts), *((_AT_ONCE, pair) for pair in _simultaneous(facts))):
        # Verification compares the runs of one submission.
        if owners[one][0] != owners[other][0]:
            same[one, other].add(what)
            same[other, one].add(what)
    runs: dict[tuple[int, int], set[str]] = defaultdict(set)
    kinds: dict[tuple[int, int], set[str]] = defaultdict(set)
    for (one, other), what_is_same in same.items():
        pair = owners[one][0], owners[other][0]
        runs[pair].add(owners[one][1])
        kinds[pair] |= what_is_same
    found: dict[int, dict[int, Shared]] = {number: {} for number in range(len(submissions))}
    for (number, other), names in runs.items():
        alike = tuple(kind for kind in _KINDS if kind in kinds[number, other])
        found[number][other] = Shared(frozenset(names), len(names) == len(submissions[number]), alike)
    return found


def _equal_facts(facts: Sequence[RunFacts]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each fact that is equal in too many epochs of two runs, with the indices of the runs."""
    for fact in FACTS:
        hashes = [run.told.get(fact.what, []) for run in facts]
        holders: dict[str, list[int]] = defaultdict(list)
        for place, digests in enumerate(hashes):
            for digest in digests:
                holders[digest].append(place)
        equal = Counter(pair for places in holders.values() for pair in combinations(places, 2))
        for (one, other), number in equal.items():
            if fact.copied(number, min(len(hashes[one]), len(hashes[other]))):
                yield fact.what, (one, other)


def _simultaneous(facts: Sequence[RunFacts]) -> Iterator[tuple[int, int]]:
    """Yield pairs of runs that used one machine (by its own clock) or one accelerator (by wall clock) at one time."""
    uses: dict[str, list[_Use]] = defaultdict(list)
    for place, run in enumerate(facts):
        # A list of this length was cut, so that it cannot show that two jobs used different devices.
        devices = frozenset(run.devices if len(run.devices) < _MOST_DEVICES else ())
        for job in run.jobs:
            for device in run.devices:
                uses[device].append(_Use(place, devices, job.start_ms, job.stop_ms))
            if job.boot:
                uses[job.boot].append(_Use(place, devices, job.boot_start_ms, job.boot_stop_ms))
    for of_one in uses.values():
        running: list[_Use] = []
        for one in sorted(of_one, key=lambda one: one.start_ms):
            running = [before for before in running if before.stop_ms > one.start_ms]
            for before in running:
                if _is_long(before, one) and not are_apart(before.devices, one.devices):
                    yield before.place, one.place
            running.append(one)


def _is_long(before: _Use, one: _Use) -> bool:
    """Whether both last longer than the difference of clocks, or half of the shorter job."""
    both = min(before.stop_ms, one.stop_ms) - one.start_ms
    shorter = min(before.stop_ms - before.start_ms, one.stop_ms - one.start_ms)
    return both > min(SKEW_MS, shorter / 2)


def _job(stretch: Stretch) -> Job:
    return Job(
        start_ms=stretch.start_ms,
        stop_ms=stretch.stop_ms,
        boot=None if stretch.boot is None else _digest("boot", stretch.boot),
        boot_start_ms=float(stretch.boot_start_ms),
        boot_stop_ms=float(stretch.boot_stop_ms),
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_DIGITS]
