"""Links between many ends: in which order all pairs are measured, and which of them are slow.

An end is a host, or a device of a host. A link is a pair of ends, whatever is between them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Two ends, the lower number first.
Pair = tuple[int, int]

# A link below this share of the median link is slow.
SLOW = 0.9


def rounds_of_pairs(ends: int) -> list[list[Pair]]:
    """Rounds in which every pair of `ends` ends meets once, and no end is in two pairs of a round.

    A round-robin tournament by the circle method (Kirkman 1847; in graph theory, a 1-factorisation of the complete
    graph): end 0 stays, the others move on by one place around a circle, and those that face each other meet. An even
    number of ends takes one round less than it has ends, the fewest possible, and each round halves the machine: one
    end of every pair is on either side, and all links between the halves are in use. Of an odd number, a different end
    rests in each of as many rounds as there are ends.
    """
    seats = ends + ends % 2
    found = []
    for turn in range(seats - 1):
        circle = [0, *((turn + place) % (seats - 1) + 1 for place in range(seats - 1))]
        facing = (sorted((circle[place], circle[-1 - place])) for place in range(seats // 2))
        # The seat beyond the last end is empty: whoever faces it rests.
        found.append([(low, high) for low, high in facing if high < ends])
    return [pairs for pairs in found if pairs]


@dataclass(frozen=True)
class Rate:
    """Bytes a second of a link, in each direction: the median of its repetitions.

    Attributes:
        low, high: the median's 95 % confidence interval.
        quartile: what a quarter of the repetitions exceed.
    """

    value: float
    low: float
    high: float
    quartile: float

    def share_of(self, reference: float) -> Rate:
        """This rate as a share of `reference`."""
        return Rate(*(number / reference for number in (self.value, self.low, self.high, self.quartile)))


def total_rate(rates: Iterable[Rate]) -> Rate:
    """The sum of rates that were measured at once, with the sums of both ends of their intervals."""
    each = [(rate.value, rate.low, rate.high, rate.quartile) for rate in rates]
    return Rate(*(sum(numbers) for numbers in zip(*each, strict=True)))


@dataclass(frozen=True)
class Comparison:
    """Links compared with each other.

    Attributes:
        median: bytes a second of the median link.
        slowest: the pair with the slowest link.
        slow: pairs with slow links, the slowest first.
        slow_ends: ends of which every link is slow, so that the end is more likely the cause than its links.
    """

    median: float
    slowest: Pair
    slow: tuple[Pair, ...]
    slow_ends: tuple[int, ...]


def compare_links(rates: Mapping[Pair, Rate]) -> Comparison:
    """Compare all links of a machine; there is at least one.

    A link is slow if three quarters of its repetitions, not only half of them, were below 0.9 of the median link: on a
    link that is merely disturbed, many are not. An end is slow if it has two links or more and all of them are slow.
    """
    median = statistics.median(rate.value for rate in rates.values())
    ordered = sorted(rates, key=lambda pair: rates[pair].value)
    slow = tuple(pair for pair in ordered if rates[pair].quartile < SLOW * median)
    links: dict[int, list[Pair]] = {}
    for pair in rates:
        for end in pair:
            links.setdefault(end, []).append(pair)
    ends = (end for end, its in sorted(links.items()) if len(its) > 1 and set(its) <= set(slow))
    return Comparison(median, ordered[0], slow, tuple(ends))


def slow_link_sentences(names: Sequence[str], rates: Mapping[Pair, Rate]) -> list[str]:
    """`n3-n7: 41 % of the median of 28 links` for each slow link, the slowest first; `names` are those of the ends.

    Links of an end that is slow as a whole are one sentence: `n3: all 7 links are slow, 39 % to 44 % of …`.
    """
    found = compare_links(rates)
    of_all = f"of the median of {len(rates)} links"
    lines = []
    for end in found.slow_ends:
        shares = sorted(rate.value / found.median for pair, rate in rates.items() if end in pair)
        lines.append(
            f"{names[end]}: all {len(shares)} links are slow, {_percent(shares[0])} to {_percent(shares[-1])} {of_all}"
        )
    single = [pair for pair in found.slow if not set(pair) & set(found.slow_ends)]
    for low, high in single:
        lines.append(f"{names[low]}-{names[high]}: {_percent(rates[low, high].value / found.median)} {of_all}")
    return lines


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
