"""The spread of a metric over runs, as lines of text: a mark for each run between the lowest and the highest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcai500.methodology.trials import summarise

_WIDTH = 41
KEPT, DROPPED, MEAN = "o", "x", "|"


def spread_lines(runs: Sequence[tuple[str, float]]) -> Iterator[str]:
    """A line for each of `runs` = (its name, its value); a run that the mean leaves out has another mark.

    All lines have one scale, from the lowest value to the highest, with the mean on each.
    """
    values = [value for _, value in runs]
    low, high, mean = min(values), max(values), summarise(values).mean
    dropped = dropped_places(values)
    widest = max(len(name) for name, _ in runs)
    for place, (name, value) in enumerate(runs):
        cells = ["-"] * _WIDTH
        cells[_cell(mean, low, high)] = MEAN
        cells[_cell(value, low, high)] = DROPPED if place in dropped else KEPT
        yield f"  {name:{widest}}  {''.join(cells)}"


def dropped_places(values: Sequence[float]) -> set[int]:
    """Which of `values` the mean leaves out: one lowest and one highest, of three or more."""
    if len(values) < 3:
        return set()
    order = sorted(range(len(values)), key=lambda place: values[place])
    return {order[0], order[-1]}


def _cell(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * (_WIDTH - 1)) if high > low else _WIDTH // 2
