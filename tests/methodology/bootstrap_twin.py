"""The draws of a member, again, as one would write them down: a word at a time, in whole numbers and long decimals."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

from builders.philox import philox

MEMBER, PROBE, PROBE_SEED = 3, 4, 500


def bootstrap(samples: int, seed: int, strata: Sequence[int] = ()) -> list[int]:
    """Draw i takes word i: the sample of its stratum that lies as far along it as the word along all words."""
    words = philox((seed, 0), samples, highest=MEMBER)
    drawn, start = [], 0
    for size in strata or [samples]:
        drawn += [start + words[place] * size // 2**64 for place in range(start, start + size)]
        start += size
    return sorted(drawn)


def poisson(samples: int, seed: int) -> list[int]:
    """Each sample as often as the inverse of Poisson(1)'s distribution says of its own word."""
    return [sample for sample, word in enumerate(philox((seed, 0), samples, MEMBER)) for _ in range(count_of(word))]


def count_of(word: int) -> int:
    """The first k with word / 2**64 < P(count <= k), for limits that are rounded down to whole words."""
    with localcontext() as context:
        context.prec = 80
        total = term = Decimal(-1).exp()
        k = 0
        while word >= int(total * 2**64) and k < 21:
            k += 1
            term /= k
            total += term
        return k


def probe(samples: int, count: int) -> list[int]:
    """Those with the smallest words."""
    words = philox((PROBE_SEED, 0), samples, highest=PROBE)
    return sorted(sorted(range(samples), key=lambda sample: (words[sample], sample))[:count])
