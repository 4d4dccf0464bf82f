"""Moments of the 16 channels, accumulated over images and years without a second pass.

Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample variances": mean and
sum of squared deviations of a union follow from those of its parts, in float64, without cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.layout import CHANNELS

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
FloatArray = npt.NDArray[np.float32]

_COUNTS = ("count", "nan", "infinite")
_VALUES = ("mean", "m2", "minimum", "maximum")


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """What is known of each channel, as arrays of 16.

    Attributes:
        count: finite values; the moments are theirs.
        nan, infinite: values that are not finite.
        mean: of the finite values, in the channel's unit; 0 without any.
        m2: sum of their squared deviations from the mean.
        minimum, maximum: of the finite values; infinity and minus infinity without any.
    """

    count: Counts
    nan: Counts
    infinite: Counts
    mean: Values
    m2: Values
    minimum: Values
    maximum: Values

    def merged(self, other: ChannelStatistics) -> ChannelStatistics:
        """Return the statistics of the values of both."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        difference = other.mean - self.mean
        return ChannelStatistics(
            count=count,
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
            mean=self.mean + difference * share,
            m2=self.m2 + other.m2 + difference**2 * self.count * share,
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    @property
    def std(self) -> Values:
        """Population standard deviation; 0 without values."""
        return np.sqrt(self.m2 / np.maximum(self.count, 1))

    @property
    def constant(self) -> npt.NDArray[np.bool_]:
        """Which channels have one value only, or none."""
        return self.minimum >= self.maximum

    def document(self) -> dict[str, list[int] | list[float]]:
        """Return plain lists that JSON keeps to the bit."""
        return {name: getattr(self, name).tolist() for name in (*_COUNTS, *_VALUES)}


def none() -> ChannelStatistics:
    """Return the statistics of no values."""
    zeros, reals = np.zeros(len(CHANNELS), np.int64), np.zeros(len(CHANNELS))
    return ChannelStatistics(zeros, zeros, zeros, reals, reals, reals + math.inf, reals - math.inf)


def combined(parts: Iterable[ChannelStatistics]) -> ChannelStatistics:
    """Return the statistics of the values of all `parts`, in their order."""
    return reduce(ChannelStatistics.merged, parts, none())


def from_document(document: Any) -> ChannelStatistics:
    """Return what `document()` described. Raises KeyError, TypeError or ValueError for anything that no values have."""
    arrays: dict[str, Any] = {name: _numbers(document[name], int, np.int64) for name in _COUNTS}
    arrays |= {name: _numbers(document[name], (int, float), np.float64) for name in _VALUES}
    statistics = ChannelStatistics(**arrays)
    if not _possible(statistics):
        raise ValueError("statistics that no values have")
    return statistics


def _numbers(listed: Any, kind: Any, dtype: Any) -> npt.NDArray[Any]:
    if len(listed) != len(CHANNELS) or not all(isinstance(number, kind) for number in listed):
        raise ValueError("statistics of another number of channels, or of no numbers")
    try:
        return np.array(listed, dtype)
    except OverflowError as error:
        raise ValueError("statistics of numbers that are too large") from error


def _possible(found: ChannelStatistics) -> bool:
    counts = np.stack([found.count, found.nan, found.infinite])
    low, high, some = found.minimum, found.maximum, found.count > 0
    extremes = np.where(
        some, np.isfinite(low) & np.isfinite(high) & (low <= high), (low == math.inf) & (high == -math.inf)
    )
    moments = np.isfinite(found.mean) & np.isfinite(found.m2) & (found.m2 >= 0)
    return bool((counts >= 0).all() and extremes.all() and moments.all())


def of_planes(planes: FloatArray) -> ChannelStatistics:
    """Return the statistics of `planes` (channels, height, width), an element each: 16, or a block of them."""
    # A NaN that signals, and infinity minus infinity, are what is looked for.
    with np.errstate(invalid="ignore"):
        rows = [_of_plane(plane) for plane in planes]
    columns: dict[str, Any] = dict(zip((*_COUNTS, *_VALUES), map(np.array, zip(*rows, strict=True)), strict=True))
    return ChannelStatistics(**columns)


def joined(blocks: Sequence[ChannelStatistics]) -> ChannelStatistics:
    """Return the statistics of an image from those of its `blocks` of channels, in their order."""
    columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in (*_COUNTS, *_VALUES)}
    return ChannelStatistics(**columns)


def _of_plane(plane: FloatArray) -> tuple[int, int, int, float, float, float, float]:
    values = plane.astype(np.float64).ravel()
    nan = infinite = 0
    # Finite float32 values cannot overflow a float64 sum; one that is not finite makes the sum so.
    if not math.isfinite(values.sum()):
        nan = int(np.isnan(values).sum())
        values = values[np.isfinite(values)]
        infinite = plane.size - nan - values.size
    if not values.size:
        return 0, nan, infinite, 0.0, 0.0, math.inf, -math.inf
    low, high = float(values.min()), float(values.max())
    mean = float(values.sum()) / values.size
    values -= mean
    # What the rounding of the mean left over.
    rest = float(values.sum())
    np.square(values, out=values)
    m2 = max(float(values.sum()) - rest * rest / values.size, 0.0)
    return values.size, nan, infinite, mean, m2, low, high
