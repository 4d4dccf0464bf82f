"""Random words: those of NumPy's raw stream, from any place on."""

from __future__ import annotations

import pytest
from builders.philox import philox
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcai500.methodology.sampling import Draw, random_words

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
