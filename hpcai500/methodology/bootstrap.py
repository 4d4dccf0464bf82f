"""Which training samples a member of an ensemble draws (V3.0 sections 3.1 and 3.7).

All of it is a function of the set's size and the member's seed, the same on every machine: whoever knows the two can
say which samples a member must have trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from hpcai500.methodology.coverage import Coverage, SampleIds
from hpcai500.methodology.random_words import Draw, random_words

# Epochs are trained from 1 on: the words of epoch 0 belong to no order.
_EPOCH = 0
# The same for every ensemble, so that members of several can be compared on the same samples.
_PROBE_SEED = 500
# A number below this, times another one of 32 bits, fits 64 bits.
_MOST_SAMPLES = 2**32


@dataclass(frozen=True)
class DrawnFacts:
    """What a record tells of a member's draws.

    Attributes:
        sampling: how they were drawn: `bootstrap`, `poisson` or `all`.
        strata: sizes of the groups that were drawn from on their own; empty where there was one.
        draws: how many there are, repeats with them.
        distinct: how many samples were drawn at least once.
        share: those over all samples.
    """

    sampling: str
    strata: tuple[int, ...]
    draws: int
    distinct: int
    share: float


def draw_counts(samples: int, seed: int, sampling: str, strata: Sequence[int] = ()) -> SampleIds:
    """Return how often each of `range(samples)` is drawn.

    - `bootstrap`: as many draws as there are samples, with replacement. Draw i takes word i; of n samples it is number
      floor(word x n / 2**64). The probability of each is 1 / n but for less than 2**-64, so that all draws of N samples
      together differ from fair ones by less than N**2 / 2**64 in total variation: 9e-8 for ImageNet.
    - `poisson`: each sample as often as its own word says (`poisson_counts`); the number of draws is not the number of
      samples, but for the mean.
    - `all`: once each.

    Args:
        samples: size of the training set, below 2**32.
        seed: of the member, 0 ... 2**64 - 1.
        sampling: one of the above.
        strata: sizes of contiguous groups of ids, of which each is drawn from as often as it has samples; without
            them, the whole set is one. Poisson counts know no groups.

    Raises:
        ValueError: another sampling; sizes that are none, or that are not those of the whole set.
    """
    if not 0 <= samples < _MOST_SAMPLES or (strata and (min(strata) < 1 or sum(strata) != samples)):
        raise ValueError(f"no draws of {samples} samples in strata of {list(strata[:8])}, {sum(strata)} in all")
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
    """Return how often each of the samples `first` ... `stop` - 1 is drawn where each counts for itself.

    Poisson(1) is what the number of a sample's draws in a bootstrap tends to as sets grow. No sample needs another
    one, nor the size of the set: it is the bootstrap of what comes in a stream.
    """
    words = random_words(stop - first, seed, _EPOCH, Draw.MEMBER, first)
    return np.searchsorted(_poisson_limits(), words, side="right").astype(np.int64)


def out_of_bag(drawn: SampleIds, samples: int) -> SampleIds:
    """Return the ids of `range(samples)` that are not in `drawn`, ascending: what a member has never seen."""
    return np.flatnonzero(np.bincount(drawn, minlength=samples) == 0).astype(np.int64)


def probe(samples: int, count: int) -> SampleIds:
    """Return `count` ids out of `range(samples)`, ascending, without repeats: all of them where there are no more.

    They are the same for every member of every ensemble: those on which members are judged that have not drawn them.
    """
    words = random_words(samples, _PROBE_SEED, _EPOCH, Draw.PROBE)
    return np.sort(np.argsort(words, kind="stable")[:count]).astype(np.int64)


def unseen_probe(drawn: SampleIds | None, samples: int, count: int) -> SampleIds:
    """Return those of `probe(samples, count)` that are not in `drawn` (None: nothing was drawn), ascending."""
    asked = probe(samples, count)
    return asked if drawn is None else asked[~np.isin(asked, drawn)]


def drawn_facts(drawn: SampleIds, samples: int, sampling: str, strata: Sequence[int] = ()) -> DrawnFacts:
    """What a record tells of draws out of `range(samples)`."""
    distinct = int(np.count_nonzero(np.bincount(drawn, minlength=samples)))
    return DrawnFacts(sampling, tuple(strata), int(drawn.size), distinct, distinct / samples)


def drawn_digest(drawn: SampleIds) -> str:
    """The digest of an epoch that delivers each of these draws once, a sample as often as it was drawn."""
    return Coverage().add(drawn).digest


def _bootstrap(samples: int, seed: int, strata: Sequence[int]) -> npt.NDArray[np.int64]:
    """The ids of all draws, in the order of their words; those of a stratum have the places of its samples."""
    words = random_words(samples, seed, _EPOCH, Draw.MEMBER)
    sizes = np.array(strata, np.uint64)
    starts = np.cumsum(sizes) - sizes
    group = np.repeat(np.arange(len(strata)), sizes.astype(np.int64))
    return (starts[group] + _scaled(words, sizes[group])).astype(np.int64)


def _scaled(words: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """floor(word x size / 2**64), without any product that 64 bits could not hold; sizes are below 2**32."""
    half = np.uint64(32)
    low = (words & np.uint64(2**32 - 1)) * sizes >> half
    return np.asarray((words >> half) * sizes + low >> half, np.uint64)


@cache
def _poisson_limits() -> npt.NDArray[np.uint64]:
    """2**64 x P(count <= k) for k = 0, 1, …, rounded down: a word below the first is a count of 0, and so on.

    By whole numbers: e is a sum of fractions, and no mathematics library of a machine has a say in it.
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
