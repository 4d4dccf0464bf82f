"""Evidence that an epoch delivered the samples that it says it did."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

SampleIds = npt.NDArray[np.int64]

_WORD = 2**64
# Odd constants, one a lane: splitmix64's own increment, and PCG's multiplier for its good spectral quality.
_LANE_A = np.uint64(0x9E3779B97F4A7C15)
_LANE_B = np.uint64(0x5851F42D4C957F2D)
_CHUNK_SAMPLES = 1 << 18


@dataclass(frozen=True)
class Coverage:
    """An order-independent digest of a multiset of sample ids: two 64-bit sums of mixed ids, and a count.

    Immutable: `add` and `merge` return a new one. Ranks add what they were delivered and merge; the result equals
    `Coverage.expected(samples)` exactly when every sample came once. A missed, doubled or foreign sample changes it,
    also in combinations that keep the count or the plain sum of ids (up to a chance of about 2**-128).

    It guards against mistakes (a lost batch, a rank that read another's shard), not against an adversary: sums of
    a public function can be forged, and no cryptographic claim is made.
    """

    count: int = 0
    lane_a: int = 0
    lane_b: int = 0

    @classmethod
    def expected(cls, samples: int) -> Coverage:
        """Return the coverage of a complete epoch: each of `range(samples)` once.

        Sets of other sizes share the work: after one of n samples, any smaller one takes less than 2**18.
        """
        chunks, rest = divmod(samples, _CHUNK_SAMPLES)
        coverage = cls().add(np.arange(samples - rest, samples, dtype=np.int64))
        for number in range(chunks):
            coverage = coverage.merge(_chunk(number))
        return coverage

    @classmethod
    def from_state(cls, state: dict[str, int]) -> Coverage:
        """Return what `state()` saved. Raises KeyError when a key is missing."""
        return cls(count=int(state["count"]), lane_a=int(state["lane_a"]), lane_b=int(state["lane_b"]))

    def state(self) -> dict[str, int]:
        """Return the whole state for a checkpoint; `from_state` reads it back."""
        return {"count": self.count, "lane_a": self.lane_a, "lane_b": self.lane_b}

    def add(self, ids: SampleIds) -> Coverage:
        """Return the coverage with these ids (any shape) delivered once more."""
        words = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1).view(np.uint64)
        return self.merge(Coverage(words.size, _lane_sum(words, _LANE_A), _lane_sum(words, _LANE_B)))

    def merge(self, other: Coverage) -> Coverage:
        """Return the coverage of both deliveries together (another rank's, or another part of the epoch)."""
        return Coverage(
            count=self.count + other.count,
            lane_a=(self.lane_a + other.lane_a) % _WORD,
            lane_b=(self.lane_b + other.lane_b) % _WORD,
        )

    @property
    def digest(self) -> str:
        """The count and both sums as text, for a record: "COUNT-32 hex digits"."""
        return f"{self.count}-{self.lane_a:016x}{self.lane_b:016x}"


@lru_cache(maxsize=1024)
def _chunk(number: int) -> Coverage:
    """Each of the `number`-th _CHUNK_SAMPLES ids once."""
    start = number * _CHUNK_SAMPLES
    return Coverage().add(np.arange(start, start + _CHUNK_SAMPLES, dtype=np.int64))


def _lane_sum(words: npt.NDArray[np.uint64], lane: np.uint64) -> int:
    """Sum splitmix64's output function over (id + 1) * lane, modulo 2**64."""
    mixed = (words + np.uint64(1)) * lane
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.sum(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64))
