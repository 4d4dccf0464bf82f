"""Which training samples a member of an ensemble draws (V3.0 sections 3.1 and 3.7), and evidence of delivered samples.

Draws depend only on the size of the set and the member's seed, on every machine. A verifier can therefore compute which
samples a member must have trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

# ----------------------------------------------------------------------------------------------------
# Random words that are the same on every machine and NumPy version, for orders, rolls and draws.


# Words in one block of Philox4x64.
_BLOCK = 4


class Draw(IntEnum):
    """What random words are used for. Each use has its own, so that a sample's rolls do not depend on its position."""

    ORDER = 0
    ROLLS = 1
    WINDOWS = 2
    MEMBER = 3
    PROBE = 4


def random_words(count: int, seed: int, epoch: int, draw: Draw, first: int = 0) -> npt.NDArray[np.uint64]:
    """Return `count` random 64-bit words of one epoch, from number `first` on, without computing those before.

    NumPy guarantees that the raw stream of a BitGenerator never changes, but not the values of Generator's methods. So
    these are raw.

    Raises:
        ValueError: seed or epoch outside 0 ... 2**64 - 1, or a negative count or first.
    """
    if count < 0 or first < 0 or not 0 <= seed < 2**64 or not 0 <= epoch < 2**64:
        raise ValueError(f"samples, seed and epoch must be non-negative 64-bit integers: {count}, {seed}, {epoch}")
    block, skipped = divmod(first, _BLOCK)
    key, counter = np.array([seed, epoch], dtype=np.uint64), np.array([block, 0, 0, draw], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(skipped + count)
    return np.asarray(words, np.uint64)[skipped:]


# ----------------------------------------------------------------------------------------------------
# Coverage: evidence that an epoch delivered its samples.


SampleIds = npt.NDArray[np.int64]

_WORD = 2**64
# Odd constants, one per lane: splitmix64's own increment, and PCG's multiplier for its good spectral quality.
_LANE_A = np.uint64(0x9E3779B97F4A7C15)
_LANE_B = np.uint64(0x5851F42D4C957F2D)
_CHUNK_SAMPLES = 1 << 18


@dataclass(frozen=True)
class Coverage:
    """An order-independent digest of a multiset of sample ids: two 64-bit sums of mixed ids, and a count.

    Immutable: `add` and `merge` return a new one. Each rank adds the ids that it received, and ranks merge; the result
    equals `Coverage.expected(samples)` exactly when every sample came once. A missed, doubled or foreign sample changes
    it, even in combinations that keep the count or the plain sum of ids (up to a chance of about 2**-128).

    It guards against mistakes (a lost batch, a rank that read another's shard), not against an adversary: sums of a
    public function can be forged.
    """

    count: int = 0
    lane_a: int = 0
    lane_b: int = 0

    @classmethod
    def expected(cls, samples: int) -> Coverage:
        """Return the coverage of a complete epoch: each of `range(samples)` once.

        Whole chunks are cached: after one call, one for a smaller set adds less than 2**18 ids.
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
        """Return the coverage of both deliveries: another rank's, or another part of the epoch."""
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
    """The coverage of each of the `number`-th _CHUNK_SAMPLES ids once."""
    start = number * _CHUNK_SAMPLES
    return Coverage().add(np.arange(start, start + _CHUNK_SAMPLES, dtype=np.int64))


def _lane_sum(words: npt.NDArray[np.uint64], lane: np.uint64) -> int:
    """Sum splitmix64's output function over (id + 1) * lane, modulo 2**64."""
    mixed = (words + np.uint64(1)) * lane
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.sum(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64))


# ----------------------------------------------------------------------------------------------------
# Draws.


# Epochs are numbered from 1, so no order uses the words of epoch 0.
_EPOCH = 0
# The same for every ensemble, so that members of several can be compared on the same samples.
_PROBE_SEED = 500
# The product of a number below this and one of 32 bits fits 64 bits.
_MOST_SAMPLES = 2**32


@dataclass(frozen=True)
class DrawnFacts:
    """The facts about a member's draws in its record.

    Attributes:
        sampling: `bootstrap`, `poisson` or `all`.
        strata: sizes of the groups that were drawn from separately; empty for one group.
        draws: number of draws, with repeats.
        distinct: number of samples that were drawn at least once.
        share: `distinct` over all samples.
    """

    sampling: str
    strata: tuple[int, ...]
    draws: int
    distinct: int
    share: float


def draw_counts(samples: int, seed: int, sampling: str, strata: Sequence[int] = ()) -> SampleIds:
    """Return how often each of `range(samples)` is drawn.

    - `bootstrap`: as many draws as there are samples, with replacement. Draw i of n samples is the sample number
      floor(word i x n / 2**64). The probability of each is 1 / n within 2**-64, so that all draws of N samples together
      differ from fair ones by less than N**2 / 2**64 in total variation: 9e-8 for ImageNet.
    - `poisson`: each sample as often as its own word says (`poisson_counts`); only on average are there as many draws
      as samples.
    - `all`: once each.

    Args:
        samples: size of the training set, below 2**32.
        seed: of the member, 0 ... 2**64 - 1.
        sampling: one of the above.
        strata: sizes of contiguous groups of ids, each of which gets as many draws as it has samples; empty for one
            group. Poisson counts ignore groups.

    Raises:
        ValueError: another sampling; sizes that are not positive, or do not add up to the whole set.
    """
    if not 0 <= samples < _MOST_SAMPLES or (strata and (min(strata) < 1 or sum(strata) != samples)):
        raise ValueError(
            f"draws: expected 0 to 2**32 - 1 samples, and strata that add up to them, got {samples} in strata of "
            f"{list(strata[:8])}, {sum(strata)} in all"
        )
    if sampling == "bootstrap":
        return np.bincount(_bootstrap(samples, seed, strata or (samples,)), minlength=samples).astype(np.int64)
    if sampling == "poisson":
        return poisson_counts(0, samples, seed)
    if sampling == "all":
        return np.ones(samples, np.int64)
    raise ValueError(f"sampling must be bootstrap, poisson or all: {sampling}")


def draws(samples: int, seed: int, sampling: str, strata: Sequence[int] = ()) -> SampleIds:
    """Return the ids of the samples that are drawn, ascending, with repeats; see `draw_counts`."""
    counts = draw_counts(samples, seed, sampling, strata)
    return np.repeat(np.arange(samples, dtype=np.int64), counts)


def poisson_counts(first: int, stop: int, seed: int) -> SampleIds:
    """Return how often each of the samples `first` ... `stop` - 1 is drawn, each independently.

    Poisson(1) is the limit of a sample's draws in a bootstrap of growing sets. A sample's count does not depend on
    other samples or the size of the set, so it can be drawn for a stream.
    """
    words = random_words(stop - first, seed, _EPOCH, Draw.MEMBER, first)
    return np.searchsorted(_poisson_limits(), words, side="right").astype(np.int64)


def out_of_bag(drawn: SampleIds, samples: int) -> SampleIds:
    """Return the ids of `range(samples)` that are not in `drawn`, ascending: those that a member has never seen."""
    return np.flatnonzero(np.bincount(drawn, minlength=samples) == 0).astype(np.int64)


def probe(samples: int, count: int) -> SampleIds:
    """Return `count` ids out of `range(samples)`, ascending, without repeats; all of them where there are no more.

    They are the same for every member of every ensemble. A member is evaluated on those that it has not drawn.
    """
    words = random_words(samples, _PROBE_SEED, _EPOCH, Draw.PROBE)
    return np.sort(np.argsort(words, kind="stable")[:count]).astype(np.int64)


def unseen_probe(drawn: SampleIds | None, samples: int, count: int) -> SampleIds:
    """Return those of `probe(samples, count)` that are not in `drawn` (None: nothing was drawn), ascending."""
    asked = probe(samples, count)
    return asked if drawn is None else asked[~np.isin(asked, drawn)]


def drawn_facts(drawn: SampleIds, samples: int, sampling: str, strata: Sequence[int] = ()) -> DrawnFacts:
    """The facts about draws out of `range(samples)` for a record."""
    distinct = int(np.count_nonzero(np.bincount(drawn, minlength=samples)))
    return DrawnFacts(sampling, tuple(strata), int(drawn.size), distinct, distinct / samples)


def drawn_digest(drawn: SampleIds) -> str:
    """The coverage digest of an epoch that delivers each sample as often as it was drawn."""
    return Coverage().add(drawn).digest


def _bootstrap(samples: int, seed: int, strata: Sequence[int]) -> npt.NDArray[np.int64]:
    """The ids of all draws, in the order of their words; a stratum uses the words at the positions of its samples."""
    words = random_words(samples, seed, _EPOCH, Draw.MEMBER)
    sizes = np.array(strata, np.uint64)
    starts = np.cumsum(sizes) - sizes
    group = np.repeat(np.arange(len(strata)), sizes.astype(np.int64))
    return (starts[group] + _scaled(words, sizes[group])).astype(np.int64)


def _scaled(words: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """floor(word x size / 2**64) without a product that exceeds 64 bits; sizes are below 2**32."""
    half = np.uint64(32)
    low = (words & np.uint64(2**32 - 1)) * sizes >> half
    return np.asarray((words >> half) * sizes + low >> half, np.uint64)


@cache
def _poisson_limits() -> npt.NDArray[np.uint64]:
    """2**64 x P(count <= k) for k = 0, 1, …, rounded down: a word below the first is a count of 0, and so on.

    Computed in integers, with e as a sum of fractions, so that they do not depend on a mathematics library.
    """
    scale, term, e = 2**192, 2**192, 0
    for k in range(1, 60):
        e += term
        term //= k
    limits: list[int] = []
    term, total = scale * scale // e, 0
    for k in range(1, 60):
        total += term
        limit = total * 2**64 // scale
        if limits and limit == limits[-1]:
            break
        limits.append(limit)
        term //= k
    return np.array(limits, np.uint64)
