"""Finds when a series of few, noisy measurements changed, at a stated rate of false alarms (docs/methodology.md).

For each split of a series, and of overlapping windows of it, the Wilcoxon rank-sum test compares the values before with
those after. The statistic is the smallest of these p-values, as -log10 p. Its distribution without a change is
simulated: for independent values the ranks are a random permutation, whatever the distribution of the values; for
autocorrelated ones they are those of an AR(1) process, with the coefficient that the series shows when its best step is
removed. Over several series, p-values are corrected by Holm's method, which needs no assumption about how the series
depend on each other.

Only sizes depend on more than the ranks: neither units nor outliers matter. Random numbers are seeded, so that the same
series give the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcai500.errors import UsageError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Fewer values on a side of a split are too easily two outliers.
LEAST_SIDE = 3
# Fewer values cannot show a change: the most extreme order of 7 has a probability of 2 / C(7, 3) = 6 %.
LEAST_VALUES = 8
# The false-alarm rate of one look at all series of a folder.
FALSE_ALARMS = 0.01
CONFIDENCE = 0.95
_Z = 1.959964


@dataclass(frozen=True)
class Change:
    """A change in a series of values.

    Attributes:
        position: index of the first value after it.
        earliest: the first index of the 95 % interval of `position`.
        latest: the last index of it.
        before: median of the values from the change before (or the start) to this one.
        after: median of the values from this change to the next one (or the end).
        size: how much higher the values are afterwards: after / before - 1 if `relative`, else the difference.
        low: of the 95 % interval of `size`.
        high: of that interval.
        p: probability of such a change somewhere in the series without a change, not corrected for other series.
        autocorrelation: coefficient of the AR(1) process that `p` is computed with; 0 for independent values.
        shape: `trend` if a straight line fits the values better than a step, so that there is no moment of change.
    """

    position: int
    earliest: int
    latest: int
    before: float
    after: float
    size: float
    low: float
    high: float
    p: float
    autocorrelation: float
    shape: Literal["step", "trend"]


@dataclass(frozen=True)
class Candidate:
    """The best split of a series, and how likely one as good is without a change: see `Change`."""

    position: int
    p: float
    autocorrelation: float


# ----------------------------------------------------------------------------------------------------
# The statistic: the smallest p-value of the rank-sum tests of all splits.


# The rank sum of a side gets its exact distribution in series of at most so many values; in longer ones only that of a
# side of at most so many, which the normal one would give far too large a p-value.
_SHORT, _EXACT = 64, 10


class _Splits:
    """Rank-sum tests of all splits of series with the same ranks in another order.

    Args:
        ranks: twice the ranks (from 1), which are whole numbers also if values are equal and share a mean rank.
    """

    def __init__(self, ranks: tuple[int, ...]) -> None:
        doubled = np.array(ranks)
        self._count = len(doubled)
        self._total = int(doubled.sum())
        self._variance = float(((doubled - self._total / self._count) ** 2).sum()) / (self._count - 1)
        self._most = most = self._count // 2 if self._count <= _SHORT else _EXACT
        # Number of ways to choose so many (row) of the ranks with that sum (column).
        ways = np.zeros((most + 1, int(np.sort(doubled)[-most:].sum()) + 1))
        ways[0, 0] = 1.0
        for rank in doubled.tolist():
            ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
        share = ways / np.maximum(ways.sum(axis=1, keepdims=True), 1.0)
        below, above = np.cumsum(share, axis=1), np.cumsum(share[:, ::-1], axis=1)[:, ::-1]
        tail = np.clip(2 * np.minimum(below, above), 1e-300, 1.0)
        self._exact: Floats = -np.log10(tail)

    def scores(self, doubled: Integers) -> Floats:
        """-log10 p of each split (last axis) of each series in `doubled`, shape (series, values)."""
        from scipy.special import log_ndtr  # here, because most commands start without it

        count, places = self._count, np.arange(LEAST_SIDE, self._count - LEAST_SIDE + 1)
        sums = np.cumsum(doubled, axis=1)[:, LEAST_SIDE - 1 : count - LEAST_SIDE]
        # The rank sum of the shorter side.
        sums = np.where(places <= count // 2, sums, self._total - sums)
        sizes = np.minimum(places, count - places)
        found = np.empty(sums.shape)
        is_exact = sizes <= self._most
        found[:, is_exact] = self._exact[sizes[is_exact], sums[:, is_exact]]
        long = sizes[~is_exact]
        # Equal values have no variance; their ranks are exactly at the mean.
        deviation = np.maximum(np.sqrt(long * (count - long) / count * self._variance), 1e-9)
        apart = np.abs(sums[:, ~is_exact] - long * self._total / count)
        # Half a rank of continuity.
        found[:, ~is_exact] = -(np.log(2) + log_ndtr(-np.maximum(apart - 1, 0) / deviation)) / np.log(10)
        return np.maximum(found, 0.0)


@lru_cache(maxsize=64)
def _splits(ranks: tuple[int, ...]) -> _Splits:
    """As `_Splits`; most series have no equal values, and so the same ranks."""
    return _Splits(ranks)


def _doubled_ranks(values: Sequence[float] | Floats) -> Integers:
    """Twice the rank of each value, from 1; equal values share their mean rank."""
    found = np.asarray(values, dtype=float)
    ordered = np.sort(found)
    ranks: Integers = np.searchsorted(ordered, found, "left") + np.searchsorted(ordered, found, "right") + 1
    return ranks


def _windows(count: int) -> list[tuple[int, int]]:
    """The whole series, then halves, quarters, ... of it, each overlapping the next by half (start, end).

    In the whole series, a fault that was mended later would hide itself (Kovacs, Buehlmann, Li and Munk, "Seeded binary
    segmentation", Biometrika 110, 2023).
    """
    found, parts = [(0, count)], 2
    while count // parts >= 2 * LEAST_VALUES:
        length = count / parts
        found += [(round(half * length / 2), round((half / 2 + 1) * length)) for half in range(2 * parts - 1)]
        parts *= 2
    return found


# Steps that are removed before the autocorrelation is computed, in series of at least so many values: a fault that was
# mended has two.
_STEPS_REMOVED = ((LEAST_VALUES, 1), (24, 2), (48, 3))


def _autocorrelation(ranks: Integers, split: Integers) -> Floats:
    """The lag-1 autocorrelation of each series of ranks without its best steps, the first of which is at `split`.

    A step that is left would look like autocorrelation.
    """
    series, count = ranks.shape
    places, rows = np.arange(1, count), np.arange(series)
    steps = max(number for least, number in _STEPS_REMOVED if count >= least)
    is_start = np.zeros((series, count), dtype=bool)
    is_start[:, 0] = is_start[rows, split] = True
    rest = _without_means(ranks, is_start)
    for _ in range(steps - 1):
        sums = np.abs(np.cumsum(rest, axis=1)[:, :-1]) / np.sqrt(places * (count - places))
        is_start[rows, 1 + sums.argmax(axis=1)] = True
        rest = _without_means(ranks, is_start)
    power, found = (rest**2).sum(axis=1), np.zeros(series)
    # A perfect step of equal values leaves nothing that could be correlated.
    np.divide((rest[:, 1:] * rest[:, :-1]).sum(axis=1), power, out=found, where=power > 1e-9)
    return found


def _without_means(values: Integers, is_start: NDArray[np.bool_]) -> Floats:
    """`values` less the means of their stretches, which begin at `is_start`; the first column is such a start."""
    stretch = np.cumsum(is_start.ravel()) - 1
    flat = values.ravel().astype(float)
    means = np.bincount(stretch, flat) / np.bincount(stretch)
    rest: Floats = (flat - means[stretch]).reshape(values.shape)
    return rest


# ----------------------------------------------------------------------------------------------------
# Its distribution without a change, by simulation.


_SEED = 500
_SIMULATED = 10_000
# Values simulated at a time, which take some 50 bytes each.
_AT_ONCE = 1_000_000
_COEFFICIENTS = tuple(step / 10 for step in range(9))
# Longer series take the distribution of one of these lengths, at most 5 % away.
_LENGTHS = sorted({*range(LEAST_VALUES, 41), *(round(40 * 1.1**step) for step in range(1, 60))})
# A series gets the largest coefficient under which so small an autocorrelation has this probability: its estimate is
# uncertain, and too low a coefficient gives false alarms. Chosen in trials on simulated series; the rates that are
# stated were measured with it.
_UNLIKELY = 0.3


@dataclass(frozen=True)
class _Null:
    """Simulated series without a change: their statistics and autocorrelations, both sorted."""

    statistics: Floats
    autocorrelations: Floats

    def p(self, statistic: float) -> float:
        """The probability of `statistic` or more; beyond the simulated ones, -log10 p goes on in a straight line."""
        count = len(self.statistics)
        reached = count - int(np.searchsorted(self.statistics, statistic - 1e-9))
        tail = count // 200
        if reached >= tail:
            return (1 + reached) / (1 + count)
        near, far = (float(self.statistics[-size]) for size in (count // 10, tail))
        if far <= near:
            return (1 + reached) / (1 + count)
        slope = math.log10(count / 10 / tail) / (far - near)
        return float(tail / count * 10 ** (-slope * (statistic - far)))


@lru_cache(maxsize=1024)
def _null(count: int, coefficient: float) -> _Null:
    """Series of `count` values of an AR(1) process with a normal distribution."""
    random = np.random.default_rng([_SEED, count, round(1000 * coefficient)])
    statistics, autocorrelations = [], []
    left = _SIMULATED
    while left:
        series = min(left, max(1, _AT_ONCE // count))
        left -= series
        values = random.standard_normal((series, count))
        if coefficient:
            values[:, 0] /= math.sqrt(1 - coefficient**2)
            for place in range(1, count):
                values[:, place] += coefficient * values[:, place - 1]
        best, positions = np.zeros(series), np.full(series, LEAST_SIDE)
        for start, end in _windows(count):
            scores = _splits(tuple(range(2, 2 * (end - start) + 1, 2))).scores(_order(values[:, start:end]))
            highest = scores.max(axis=1)
            is_better = highest > best
            positions[is_better] = start + LEAST_SIDE + scores[is_better].argmax(axis=1)
            np.maximum(best, highest, out=best)
        statistics.append(best)
        autocorrelations.append(_autocorrelation(_order(values), positions))
    return _Null(np.sort(np.concatenate(statistics)), np.sort(np.concatenate(autocorrelations)))


def _order(values: Floats) -> Integers:
    """Twice the ranks in each row, which has no equal values."""
    ranks = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(ranks, np.argsort(values, axis=1), 2 * np.arange(1, values.shape[1] + 1)[None, :], axis=1)
    return ranks


def _coefficient(count: int, autocorrelation: float) -> float:
    """The largest AR(1) coefficient under which so small an autocorrelation is not unlikely."""
    found = 0.0
    for coefficient in _COEFFICIENTS:
        null = _null(count, coefficient).autocorrelations
        # Autocorrelation grows with the coefficient: a larger one does not fit either.
        if np.searchsorted(null, autocorrelation, "right") < _UNLIKELY * len(null):
            break
        found = coefficient
    return found


# Difference of two scores that rounding explains.
_ALIKE = 1e-9


def best_split(values: Sequence[float]) -> Candidate | None:
    """Test `values`, in the order of time, for a change; None for fewer than `LEAST_VALUES`.

    Raises:
        UsageError: a value is not finite.
    """
    if not all(map(math.isfinite, values)):
        raise UsageError("expected finite values, in the order of time")
    count = len(values)
    if count < LEAST_VALUES:
        return None
    statistic, best = 0.0, [(count // 2, 0.0)]
    for start, end in _windows(count):
        ranks = _doubled_ranks(values[start:end])
        scores = _splits(tuple(sorted(ranks.tolist()))).scores(ranks[None, :])[0]
        if scores.max() > statistic + _ALIKE:
            statistic, best = float(scores.max()), []
        if statistic:
            sides = (np.flatnonzero(scores >= statistic - _ALIKE) + LEAST_SIDE).tolist()
            best += [(start + side, 2 / math.comb(end - start, side)) for side in sides]
    positions = sorted({position for position, _ in best})
    # The largest of those of equally good splits, from either end: the direction of time must not matter.
    all_ranks = np.tile(_doubled_ranks(values), (len(positions), 1))
    ahead, back = np.array(positions), count - np.array(positions)
    shown = max(_autocorrelation(all_ranks, ahead).max(), _autocorrelation(all_ranks[:, ::-1], back).max())
    simulated = min(_LENGTHS, key=lambda length: (abs(length - count), length))
    coefficient = _coefficient(simulated, float(shown))
    # No order of values is less likely than that in which all on one side of the split are above all others.
    p = max(_null(simulated, coefficient).p(statistic), *(least for _, least in best))
    return Candidate(positions[(len(positions) - 1) // 2], min(1.0, p), coefficient)


# ----------------------------------------------------------------------------------------------------
# When and by how much: positions and sizes with their intervals.


_RESAMPLED = 499


def _position_interval(values: Floats, position: int) -> tuple[int, int]:
    """The 95 % interval of the position: both sides are drawn again with replacement, and the best split found."""
    random = np.random.default_rng([_SEED, len(values), position])
    ranks, count = _doubled_ranks(values), len(values)
    drawn = np.concatenate(
        [
            ranks[random.integers(0, position, (_RESAMPLED, position))],
            ranks[random.integers(position, count, (_RESAMPLED, count - position))],
        ],
        axis=1,
    ).astype(float)
    drawn -= drawn.mean(axis=1, keepdims=True)
    places = np.arange(LEAST_SIDE, count - LEAST_SIDE + 1)
    sums = np.cumsum(drawn, axis=1)[:, LEAST_SIDE - 1 : count - LEAST_SIDE]
    found = np.sort(np.argmax(np.abs(sums) / np.sqrt(places * (count - places)), axis=1)) + LEAST_SIDE
    outside = int((1 - CONFIDENCE) / 2 * _RESAMPLED)
    return min(position, int(found[outside])), max(position, int(found[-1 - outside]))


def shift(before: Floats, after: Floats, autocorrelation: float = 0.0) -> tuple[float, float, float]:
    """How much higher `after` is than `before`, and the 95 % interval (Hodges and Lehmann 1963).

    The estimate is the median of all differences between a value of each; the interval has those whose ranks the
    rank-sum test allows. For autocorrelated values its variance is that of (1 - r) / (1 + r) times as many.
    """
    differences = np.sort(np.subtract.outer(after, before).ravel())
    one, other = len(before), len(after)
    variance = one * other * (one + other + 1) / 12 * (1 + autocorrelation) / (1 - autocorrelation)
    outside = max(0, math.floor(one * other / 2 - _Z * math.sqrt(variance)))
    outside = min(outside, (len(differences) - 1) // 2)
    return float(np.median(differences)), float(differences[outside]), float(differences[-1 - outside])


def _is_trend(values: Floats, position: int) -> bool:
    """Whether the straight line of Theil and Sen fits the values better than the step, by the sum of distances."""
    count = len(values)
    first, second = np.triu_indices(count, 1)
    slope = float(np.median((values[second] - values[first]) / (second - first)))
    level = values - slope * np.arange(count)
    line = float(np.abs(level - np.median(level)).sum())
    sides = values[:position], values[position:]
    return line < sum(float(np.abs(side - np.median(side)).sum()) for side in sides)


def _describe(values: Floats, found: Candidate, relative: bool, start: int) -> Change:
    """The change `found` in `values`, whose first one is number `start` of the series."""
    before, after = values[: found.position], values[found.position :]
    if relative:
        size, low, high = map(math.expm1, shift(np.log(before), np.log(after), found.autocorrelation))
    else:
        size, low, high = shift(before, after, found.autocorrelation)
    earliest, latest = _position_interval(values, found.position)
    return Change(
        position=start + found.position,
        earliest=start + earliest,
        latest=start + latest,
        before=float(np.median(before)),
        after=float(np.median(after)),
        size=size,
        low=low,
        high=high,
        p=found.p,
        autocorrelation=found.autocorrelation,
        shape="trend" if _is_trend(values, found.position) else "step",
    )


# ----------------------------------------------------------------------------------------------------
# Many series.


@dataclass(frozen=True)
class Series:
    """Values of one metric in the order of time; sizes are ratios if `relative`, which needs values above 0."""

    values: Sequence[float]
    relative: bool = True


def find_changes(series: Sequence[Series], false_alarms: float = FALSE_ALARMS) -> list[tuple[Change, ...]]:
    """The changes of each series, in the order of time; a series with too few values has none.

    If no series has a change, the probability that any is found is at most `false_alarms` (Holm 1979). Both sides of a
    change are tested again, with the limit of Bonferroni for all series.

    Raises:
        UsageError: a value is not finite, or not above 0 in a relative series; `false_alarms` is not between 0 and 1.
    """
    if not 0 < false_alarms < 1:
        raise UsageError(f"false alarms: expected a rate between 0 and 1, got {false_alarms}")
    if any(min(one.values, default=1.0) <= 0 for one in series if one.relative):
        raise UsageError("a relative change needs values above 0")
    candidates = [best_split(one.values) for one in series]
    tested = sorted((one.p, number) for number, one in enumerate(candidates) if one)
    found: list[tuple[Change, ...]] = [()] * len(series)
    for rank, (p, number) in enumerate(tested):
        if p > false_alarms / (len(tested) - rank):
            break
        values = np.asarray(series[number].values, dtype=float)
        splits = _significant(values, 0, candidates[number], false_alarms / len(tested), is_first=True)
        # Each between its neighbours, so that another change does not enter its size.
        ends = [0, *(one.position for one in splits), len(values)]
        found[number] = tuple(
            _describe(values[first:last], replace(one, position=one.position - first), series[number].relative, first)
            for one, first, last in zip(splits, ends, ends[2:], strict=False)
        )
    return found


def _significant(
    values: Floats, start: int, best: Candidate | None, limit: float, *, is_first: bool = False
) -> list[Candidate]:
    """The `best` split of `values` if it is significant, and those on both sides; `start` is added to positions."""
    if best is None or (best.p > limit and not is_first):
        return []
    before, after = values[: best.position], values[best.position :]
    return [
        *_significant(before, start, best_split(before.tolist()), limit),
        replace(best, position=start + best.position),
        *_significant(after, start + best.position, best_split(after.tolist()), limit),
    ]
