"""Pairs of hosts in rounds, and slow links: by properties, and by hand."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.links import Pair, Rate, compare_links, rounds_of_pairs, slow_link_sentences


@given(st.integers(0, 130))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(ends: int) -> None:
    rounds = rounds_of_pairs(ends)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(ends), 2))
    for pairs in rounds:
        busy = [end for pair in pairs for end in pair]
        assert len(busy) == len(set(busy))
        # A bisection: everybody takes part, but one of an odd number.
        assert len(pairs) == ends // 2
    if ends > 1:
        assert len(rounds) == (ends - 1 if ends % 2 == 0 else ends)
    else:
        assert rounds == []


def test_four_hosts_take_three_rounds() -> None:
    assert rounds_of_pairs(4) == [[(0, 3), (1, 2)], [(0, 1), (2, 3)], [(0, 2), (1, 3)]]


def exact(value: float) -> Rate:
    return Rate(value, value, value, value)


def links(ends: int, **slow: float) -> dict[Pair, Rate]:
    """Links at 100 bytes a second, but for those named: `p37=41`."""
    rates = {pair: exact(100) for pair in combinations(range(ends), 2)}
    return rates | {(int(name[1]), int(name[2])): exact(value) for name, value in slow.items()}


def test_the_slow_link_is_named() -> None:
    rates = links(8, p37=41)
    names = [f"n{end}" for end in range(8)]
    assert compare_links(rates).slow == ((3, 7),)
    assert compare_links(rates).slow_ends == ()
    assert slow_link_sentences(names, rates) == ["n3-n7: 41 % of the median of 28 links"]


def test_a_link_is_not_slow_if_a_quarter_of_its_repetitions_are_not() -> None:
    rates = links(8)
    rates[3, 7] = Rate(60, 30, 120, quartile=92)
    assert compare_links(rates).slowest == (3, 7)
    assert compare_links(rates).slow == ()
    rates[3, 7] = Rate(60, 30, 120, quartile=89)
    assert compare_links(rates).slow == ((3, 7),)


def test_a_host_with_slow_links_only_is_named_once() -> None:
    rates = links(8, **{f"p{min(3, other)}{max(3, other)}": 40 + other for other in range(8) if other != 3}, p01=70)
    assert compare_links(rates).slow_ends == (3,)
    assert slow_link_sentences(list("abcdefgh"), rates) == [
        "d: all 7 links are slow, 40 % to 47 % of the median of 28 links",
        "a-b: 70 % of the median of 28 links",
    ]


@given(st.integers(2, 9).flatmap(lambda ends: st.tuples(st.just(ends), st.lists(st.floats(1, 1e12), min_size=36))))
def test_no_link_is_slow_of_which_half_are_not_faster(case: tuple[int, list[float]]) -> None:
    ends, values = case
    rates = {pair: exact(value) for pair, value in zip(combinations(range(ends), 2), values, strict=False)}
    found = compare_links(rates)
    assert found.slow == () or found.slow[0] == found.slowest
    assert len(found.slow) <= len(rates) // 2
    assert all(rates[pair].value < 0.9 * found.median for pair in found.slow)
    assert all(set(pair) & set(found.slow_ends) == set() or pair in found.slow for pair in rates)
