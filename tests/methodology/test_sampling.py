"""What a member draws: as its twin, as probability has it, and the same in pieces; and what tells a complete epoch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import bootstrap_twin as twin
import numpy as np
import pytest
from builders.philox import philox
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcai500.data.samplers import epoch_order
from hpcai500.methodology import sampling
from hpcai500.methodology.sampling import (
    Coverage,
    Draw,
    SampleIds,
    draw_counts,
    drawn_digest,
    drawn_facts,
    draws,
    out_of_bag,
    poisson_counts,
    probe,
    random_words,
)

SEEDS = st.integers(0, 2**64 - 1)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)
SAMPLINGS = ["bootstrap", "poisson", "all"]
# Beyond so many standard deviations lies one of 10**9: of all examples together, none.
DEVIATIONS = 6
MANY = 20_000
GOLDEN_BOOTSTRAP = [0, 2, 5, 8, 8, 8, 8, 9, 9, 9, 10, 11]
GOLDEN_IMAGENET = "3c4efbf113bd032e92865a87605fa5caeb6729b8aefae2e6a8c26fed25a69f63"
GOLDEN_POISSON = "1280751-1c5e4d89e0603e497b4818016521fa07"


def chi_square(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(((found - expected) ** 2 / expected).sum())


def chi_square_limit(freedom: int) -> float:
    """What chi square exceeds once in 10**9 times (Wilson and Hilferty's cube of a normal variable)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + DEVIATIONS * math.sqrt(part)) ** 3


@settings(max_examples=40)
@given(SEEDS, SIZES)
def test_a_bootstrap_is_its_twin(seed: int, sizes: list[int]) -> None:
    assert draws(sum(sizes), seed, "bootstrap").tolist() == twin.bootstrap(sum(sizes), seed)
    assert draws(sum(sizes), seed, "bootstrap", sizes).tolist() == twin.bootstrap(sum(sizes), seed, sizes)


@settings(max_examples=40)
@given(SEEDS, st.integers(0, 60))
def test_poisson_counts_are_their_twin(seed: int, samples: int) -> None:
    assert draws(samples, seed, "poisson").tolist() == twin.poisson(samples, seed)


@pytest.mark.parametrize("near", [0, 2**63, 2**64 - 1, *map(int, sampling._poisson_limits())])
def test_a_word_at_a_limit_counts_as_in_the_twin(near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for word in (near - 1, near, near + 1) if 0 <= word < 2**64]
    monkeypatch.setattr(sampling, "random_words", lambda *_: np.array(words, np.uint64))
    assert poisson_counts(0, len(words), 0).tolist() == [twin.count_of(word) for word in words]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1)), min_size=1))
def test_a_word_lies_as_far_along_a_set_as_along_all_words(pairs: list[tuple[int, int]]) -> None:
    words, sizes = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    scaled = sampling._scaled(words, sizes)
    assert scaled.tolist() == [word * size // 2**64 for word, size in pairs]


def test_draws_never_change() -> None:
    # Golden: a new value means that no earlier record's draws can be made again.
    assert draws(12, 500, "bootstrap").tolist() == twin.bootstrap(12, 500) == GOLDEN_BOOTSTRAP
    imagenet = draws(1_281_167, 1, "bootstrap")
    assert hashlib.sha256(imagenet.astype("<i8").tobytes()).hexdigest() == GOLDEN_IMAGENET
    assert drawn_digest(draws(1_281_167, 1, "poisson")) == GOLDEN_POISSON


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=30)
@given(seed=SEEDS, samples=st.integers(1, 300))
def test_out_of_bag_and_drawn_are_everything(sampling: str, seed: int, samples: int) -> None:
    drawn = draws(samples, seed, sampling)
    assert drawn.dtype == np.int64
    assert (np.diff(drawn) >= 0).all()
    left = out_of_bag(drawn, samples)
    assert sorted([*set(drawn.tolist()), *left.tolist()]) == list(range(samples))
    facts = drawn_facts(drawn, samples, sampling)
    assert (facts.draws, facts.distinct) == (drawn.size, samples - left.size)
    assert facts.share == (samples - left.size) / samples


@settings(max_examples=30)
@given(SEEDS)
def test_a_bootstrap_sees_632_of_1000_samples(seed: int) -> None:
    """The number K of distinct samples: its mean and variance, each by P(neither of i, j is drawn) = (1 - 2/N)^N."""
    count = int(np.unique(draws(MANY, seed, "bootstrap")).size)
    none, neither = (1 - 1 / MANY) ** MANY, (1 - 2 / MANY) ** MANY
    mean = MANY * (1 - none)
    variance = MANY * none + MANY * (MANY - 1) * neither - (MANY * none) ** 2
    assert mean / MANY == pytest.approx(1 - 1 / math.e, abs=1e-4)
    assert variance / MANY == pytest.approx((1 - 2 / math.e) / math.e, abs=1e-4)
    assert abs(count - mean) < DEVIATIONS * math.sqrt(variance)


@settings(max_examples=30)
@given(SEEDS)
def test_draws_of_a_bootstrap_are_spread_evenly(seed: int) -> None:
    bins = np.bincount(draws(MANY, seed, "bootstrap") * 100 // MANY, minlength=100)
    assert chi_square(bins, np.full(100, MANY / 100)) < chi_square_limit(99)


@settings(max_examples=30)
@given(SEEDS)
def test_poisson_counts_have_the_mean_and_variance_and_shares_of_poisson(seed: int) -> None:
    counts = poisson_counts(0, MANY, seed)
    # Of Poisson(1), mean and variance are 1, and the fourth central moment 4: the sample variance has variance 3 / N.
    assert abs(counts.mean() - 1) < DEVIATIONS / math.sqrt(MANY)
    assert abs(counts.var() - 1) < DEVIATIONS * math.sqrt(3 / MANY)
    expected = np.array([MANY / math.e / math.factorial(k) for k in range(6)])
    expected = np.append(expected, MANY - expected.sum())
    found = np.bincount(np.minimum(counts, 6), minlength=7)
    assert chi_square(found, expected) < chi_square_limit(6)


@settings(max_examples=30)
@given(SEEDS, st.lists(st.integers(0, 200), min_size=3, max_size=3))
def test_poisson_counts_are_the_same_in_pieces(seed: int, cuts: list[int]) -> None:
    first, middle, last = sorted(cuts)
    whole = poisson_counts(0, 200, seed)
    pieces = [poisson_counts(first, middle, seed), poisson_counts(middle, last, seed)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole[first:last])


def test_poisson_counts_need_no_size_of_the_set() -> None:
    assert draw_counts(50, 9, "poisson").tolist() == draw_counts(1000, 9, "poisson")[:50].tolist()


@given(SEEDS, SIZES)
def test_a_stratum_is_drawn_as_often_as_it_has_samples(seed: int, sizes: list[int]) -> None:
    counts = draw_counts(sum(sizes), seed, "bootstrap", sizes)
    assert [int(part.sum()) for part in np.split(counts, np.cumsum(sizes)[:-1])] == sizes


@settings(max_examples=30)
@given(SEEDS, SEEDS, st.sampled_from(["bootstrap", "poisson"]))
def test_two_seeds_draw_as_if_neither_knew_of_the_other(one: int, other: int, sampling: str) -> None:
    assume(one != other)
    both = np.intersect1d(draws(MANY, one, sampling), draws(MANY, other, sampling)).size
    # Samples exclude each other a little, if anything: the variance is at most that of independent ones.
    share = 1 - 2 / math.e + 1 / math.e**2
    assert abs(both - share * MANY) < DEVIATIONS * math.sqrt(MANY * share * (1 - share))


def test_seeds_that_follow_one_another_share_nothing() -> None:
    shared = [
        np.corrcoef(draw_counts(MANY, seed, sampling), draw_counts(MANY, seed + 1, sampling))[0, 1]
        for seed in range(10)
        for sampling in ("bootstrap", "poisson")
    ]
    assert max(map(abs, shared)) < DEVIATIONS / math.sqrt(MANY)


def test_all_is_every_sample_once() -> None:
    assert draws(7, 3, "all").tolist() == draws(7, 3, "all", [3, 4]).tolist() == list(range(7))
    assert drawn_digest(draws(7, 3, "all")) == Coverage.expected(7).digest


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(0, 250))
def test_the_probe_is_the_same_for_all_and_its_twin(samples: int, count: int) -> None:
    found = probe(samples, count)
    assert found.tolist() == twin.probe(samples, count)
    assert len(set(found.tolist())) == min(samples, count)


def test_a_larger_probe_holds_the_smaller_one() -> None:
    assert set(probe(1000, 10)) < set(probe(1000, 100))


def test_the_share_of_the_probe_that_a_member_has_not_drawn_is_that_of_all_samples() -> None:
    chosen = probe(MANY, MANY // 2)
    unseen = [np.intersect1d(out_of_bag(draws(MANY, seed, "bootstrap"), MANY), chosen).size for seed in range(20)]
    assert np.mean(unseen) == pytest.approx(MANY / 2 / math.e, rel=DEVIATIONS * 0.02 / math.sqrt(20))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: draws(10, 1, "jackknife"),
        lambda: draws(10, 1, "bootstrap", [4, 5]),
        lambda: draws(10, 1, "bootstrap", [10, 0]),
        lambda: draws(2**32, 1, "bootstrap"),
        lambda: draws(-1, 1, "bootstrap"),
        lambda: draws(10, -1, "poisson"),
        lambda: draws(10, 2**64, "bootstrap"),
    ],
)
def test_draws_that_make_no_sense_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"sampling must be|expected 0 to 2|non-negative 64-bit"):
        wrong()


# --- Random words: those of NumPy's raw stream, from any place on.


WORDS = st.integers(0, 2**64 - 1)


@settings(max_examples=50)
@given(st.integers(0, 40), WORDS, WORDS, st.sampled_from(Draw), st.integers(0, 40))
def test_words_from_any_place_on_are_those_of_the_twin(
    count: int, seed: int, epoch: int, draw: Draw, first: int
) -> None:
    assert random_words(count, seed, epoch, draw, first).tolist() == philox((seed, epoch), first + count, draw)[first:]


def test_a_place_far_along_takes_no_time() -> None:
    assert random_words(2, 1, 0, Draw.MEMBER, 2**40).size == 2


def test_words_for_different_ends_differ() -> None:
    assert len({int(random_words(1, 1, 0, draw)[0]) for draw in Draw}) == len(Draw)


@pytest.mark.parametrize("wrong", [(-1, 0, 0, 0), (1, -1, 0, 0), (1, 2**64, 0, 0), (1, 0, 2**64, 0), (1, 0, 0, -1)])
def test_numbers_that_are_none_are_refused(wrong: tuple[int, int, int, int]) -> None:
    count, seed, epoch, first = wrong
    with pytest.raises(ValueError, match="non-negative 64-bit"):
        random_words(count, seed, epoch, Draw.ORDER, first)


# --- A coverage digest tells a complete epoch from every other.


IDS = st.lists(st.integers(0, 10**9), max_size=50)
WORD = 2**64


def of(ids: list[int]) -> Coverage:
    return Coverage().add(np.array(ids, dtype=np.int64))


def mixed(sample: int, lane: int) -> int:
    """splitmix64's output function, in Python's own integers."""
    word = (sample + 1) * lane % WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


@given(IDS)
def test_the_digest_equals_its_definition(ids: list[int]) -> None:
    expected = Coverage(
        len(ids),
        sum(mixed(i, 0x9E3779B97F4A7C15) for i in ids) % WORD,
        sum(mixed(i, 0x5851F42D4C957F2D) for i in ids) % WORD,
    )
    assert of(ids) == expected


@given(IDS, IDS)
def test_a_merge_is_the_union_in_any_order(left: list[int], right: list[int]) -> None:
    union = of(left + right)
    assert of(left).merge(of(right)) == of(right).merge(of(left)) == union
    assert of((left + right)[::-1]) == union


def test_batches_of_a_shuffled_epoch_give_the_expected_coverage() -> None:
    samples = 300_001
    coverage = Coverage()
    for batch in np.array_split(epoch_order(samples, 1, 1), 97):
        coverage = coverage.add(batch)
    assert coverage == Coverage.expected(samples)


@pytest.mark.parametrize(
    "change",
    [
        lambda ids: ids[1:],
        lambda ids: [*ids, ids[0]],
        lambda ids: [*ids[1:], ids[1]],
        lambda ids: [*ids[1:], 100],
        lambda ids: [*ids[1:], -1],
        # Keeps the count and the sum of ids.
        lambda ids: [ids[0] + 1, ids[1] - 1, *ids[2:]],
    ],
    ids=["missed", "doubled", "missed and doubled", "foreign", "negative", "same sum"],
)
def test_a_wrong_epoch_has_another_digest(change) -> None:  # type: ignore[no-untyped-def]
    ids = [40, 7, *(i for i in range(100) if i not in (40, 7))]
    assert of(ids).digest == Coverage.expected(100).digest
    assert of(change(ids)).digest != Coverage.expected(100).digest


def test_digests_of_many_sizes_share_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's submission may have a size of its own in each record."""
    words = 0
    add = Coverage.add

    def counted(self: Coverage, ids: SampleIds) -> Coverage:
        nonlocal words
        words += ids.size
        return add(self, ids)

    largest, sizes = 2**22, 20
    whole = {size: of(list(range(size))) for size in (2**18 - 1, 2**18, 2**18 + 1)}
    monkeypatch.setattr(Coverage, "add", counted)
    found = {size: Coverage.expected(size) for size in range(largest, largest - sizes, -1)}
    assert words <= largest + sizes * 2**18, "one sweep of the largest, and a part of it for each"
    assert [one.count for one in found.values()] == list(found)
    assert {size: Coverage.expected(size) for size in whole} == whole


def test_the_digest_of_an_epoch_never_changes() -> None:
    assert Coverage.expected(1_281_167).digest == "1281167-a5df98fb2ce65dc40334a97958204d1a"
    assert Coverage().digest == "0-" + 32 * "0"


@given(IDS)
def test_a_checkpoint_keeps_the_state(ids: list[int]) -> None:
    state = json.loads(json.dumps(of(ids).state()))
    assert Coverage.from_state(state) == of(ids)
