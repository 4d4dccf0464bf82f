"""No log, and no part of one, was pasted into a second trial: two seeds give no losses, weights or times in common."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from hpcai500.record import Record
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import IMPLAUSIBLE, Finding
from hpcai500.results.verification.guard import fail, note, warning
from hpcai500.results.verification.records.quality import FINE_GRID

_NAME = "copied-runs"
# Two lists of so many numbers that are equal but for a factor and an offset were not both measured.
_LEAST_EPOCHS = 6
_SAME_SHAPE = 1e-4


@dataclass(frozen=True)
class Fact:
    """Something that an epoch tells of itself.

    Attributes:
        what: in words.
        key: the event.
        field: of it.
        most: so many epochs of two runs may tell the same.
        most_share: as many as this share of their epochs may, too.
    """

    what: str
    key: str
    field: str
    most: int = 0
    most_share: float = 0.0

    def copied(self, shared: int, epochs: int) -> bool:
        """Whether two runs, of which the shorter one has `epochs` of them, tell the same in too many epochs."""
        return shared > max(self.most, self.most_share * epochs)


FACTS = (
    # Means of thousands of numbers in full precision: one that is equal is chance, a second one is none.
    Fact("losses", "epoch_stop", "loss", most=1),
    # Written in microseconds; those of short epochs meet now and then.
    Fact("times", "epoch_stop", "seconds", most_share=0.5),
    # Hashes of all weights: not even one.
    Fact("weights", "replicas", "digest"),
    Fact("checkpoints", "checkpoint", "sha256"),
)


def check_copies(context: Context) -> Iterator[Finding]:
    """What epochs tell, one by one, and the shape of their times, each record's with those of all others."""
    found = []
    # Two attempts at one trial have one seed: a machine that computes alike gives them the same losses.
    runs = {name: context.attempts[name].trial for name in context.records}
    for fact in FACTS:
        series = {name: series_of(record, fact) for name, record in context.records.items()}
        for (name, other), shared in _shared(series, runs).items():
            least = min(len(series[name]), len(series[other]))
            if fact.copied(shared, least):
                found.append(fail(_NAME, f"{name} and {other}: {shared} of {least} {fact.what} of epochs are the same"))
        if fact.what == "times" and not found:
            found += _of_one_shape(series)
    qualities = {name: _qualities(record) for name, record in context.records.items()}
    for (name, other), shared in _shared(qualities, runs).items():
        least = min(len(qualities[name]), len(qualities[other]))
        if least >= _LEAST_EPOCHS and shared > least / 2:
            yield warning(IMPLAUSIBLE, f"{name} and {other}: {shared} of {least} evaluations gave the same quality")
    yield from found
    if not found and len(context.records) > 1:
        yield note(_NAME, f"{len(context.records)} records: no two have losses, times or weights in common")


def _shared(series: Mapping[str, Mapping[int, object]], runs: Mapping[str, int]) -> Counter[tuple[str, str]]:
    """How many values each series has in common with the first one that has them at the same epoch."""
    first: dict[tuple[int, object], str] = {}
    shared: Counter[tuple[str, str]] = Counter()
    for name, told in series.items():
        for epoch, value in told.items():
            other = first.setdefault((epoch, value), name)
            if runs[other] != runs[name]:
                shared[name, other] += 1
    return shared


def _qualities(record: Record) -> dict[int, object]:
    """The quality of each epoch, where so many samples were judged that two runs seldom have as many right."""
    told = values(record, "eval_accuracy")
    fine = all(value["samples"] >= FINE_GRID for value in told)
    return {value["epoch"]: value["value"] for value in told} if fine else {}


def _of_one_shape(series: Mapping[str, Mapping[int, object]]) -> Iterator[Finding]:
    shapes = {name: _standardised(list(told.values())) for name, told in series.items() if len(told) >= _LEAST_EPOCHS}
    for (name, one), (other, two) in combinations(shapes.items(), 2):
        if len(one) == len(two) and all(abs(a - b) < _SAME_SHAPE for a, b in zip(one, two, strict=True)):
            yield fail(_NAME, f"{name} and {other}: the times of their epochs are the same but for a scale")
            return


def series_of(record: Record, fact: Fact) -> dict[int, object]:
    """The value of each epoch that has one, as it was last told, in the order of epochs."""
    told = {value["epoch"]: value.get(fact.field) for value in values(record, fact.key)}
    return {epoch: told[epoch] for epoch in sorted(told) if _says_something(told[epoch])}


def _says_something(value: object) -> bool:
    """A loss of 0, or none, is that of any model that has learnt its set by heart, or of a plug-in that counts none."""
    return value is not None and (not isinstance(value, int | float) or (value != 0 and math.isfinite(value)))


def _standardised(series: Sequence[object]) -> list[float]:
    numbers = [float(str(value)) for value in series]
    mean, deviation = statistics.fmean(numbers), statistics.stdev(numbers)
    return [(number - mean) / deviation if deviation else 0.0 for number in numbers]
