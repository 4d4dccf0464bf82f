"""No log was pasted as a second trial: two runs never take the same times, nor do two seeds give the same losses."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from hpcai500.record import Record
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_NAME = "copied-runs"
# Times are written in microseconds and losses in full: a coincidence once is chance, in every second epoch it is none.
_MOST_SHARED = 0.5
# Two lists of so many numbers that are equal but for a factor and an offset were not both measured.
_LEAST_EPOCHS = 6
_SAME_SHAPE = 1e-4
_LOOKED_AT = (
    ("losses", "epoch_stop", "loss"),
    ("times", "epoch_stop", "seconds"),
    ("weights", "replicas", "digest"),
)


def check_copies(context: Context) -> Iterator[Finding]:
    """Losses, times and weights of epochs, one by one and in their shape, each record's with those of all others."""
    found = []
    for what, key, field in _LOOKED_AT:
        series = {name: _series(record, key, field) for name, record in context.records.items()}
        # Two attempts at one trial have one seed: a machine that computes alike gives them the same losses.
        runs = {name: context.attempts[name].trial for name in series}
        for (name, other), shared in _shared(series, runs).items():
            least = min(len(series[name]), len(series[other]))
            if shared > _MOST_SHARED * least:
                found.append(fail(_NAME, f"{name} and {other}: {shared} of {least} {what} of epochs are the same"))
        if what == "times" and not found:
            found += _of_one_shape(series)
    yield from found
    if not found and len(context.records) > 1:
        yield note(_NAME, f"{len(context.records)} records: no two have losses, times or weights in common")


def _shared(series: Mapping[str, Sequence[object]], runs: Mapping[str, int]) -> Counter[tuple[str, str]]:
    """How many values each series has in common with the first one that has them at the same place."""
    first: dict[tuple[int, object], str] = {}
    shared: Counter[tuple[str, str]] = Counter()
    for name, told in series.items():
        for place, value in enumerate(told):
            other = first.setdefault((place, value), name)
            if runs[other] != runs[name]:
                shared[name, other] += 1
    return shared


def _of_one_shape(series: Mapping[str, Sequence[object]]) -> Iterator[Finding]:
    shapes = {name: _standardised(told) for name, told in series.items() if len(told) >= _LEAST_EPOCHS}
    for (name, one), (other, two) in combinations(shapes.items(), 2):
        if len(one) == len(two) and all(abs(a - b) < _SAME_SHAPE for a, b in zip(one, two, strict=True)):
            yield fail(_NAME, f"{name} and {other}: the times of their epochs are the same but for a scale")
            return


def _series(record: Record, key: str, field: str) -> list[object]:
    """One value an epoch, as it was last told, in the order of epochs."""
    told = {value["epoch"]: value.get(field) for value in values(record, key)}
    return [told[epoch] for epoch in sorted(told) if told[epoch] is not None]


def _standardised(series: Sequence[object]) -> list[float]:
    numbers = [float(str(value)) for value in series]
    mean, deviation = statistics.fmean(numbers), statistics.stdev(numbers)
    return [(number - mean) / deviation if deviation else 0.0 for number in numbers]
