"""The synthetic language: its grammar, and its best loss."""

from __future__ import annotations

import math

import numpy as np

from hpcai500_lm import grammar
from hpcai500_lm.grammar import (
    BEGIN,
    CLOSE,
    DEEPEST,
    FIRST_CLOSE,
    FIRST_OPEN,
    FIRST_WORD,
    FOLLOWERS,
    KINDS,
    LENGTH,
    OPEN,
    VOCABULARY,
    write_documents,
)


def surprise(document: list[int]) -> float:
    """-log p of a document by the rules, token by token; fails if it breaks one."""
    table, stack, last, total = grammar.follower_table(), [KINDS], 0, 0.0
    assert document[0] == BEGIN
    for token in document[1:]:
        opening = OPEN if len(stack) <= DEEPEST else 0.0
        closing = CLOSE if len(stack) > 1 else 0.0
        if FIRST_OPEN <= token < FIRST_CLOSE:
            chosen = opening / KINDS
            stack.append(token - FIRST_OPEN)
        elif FIRST_CLOSE <= token < FIRST_WORD:
            assert token - FIRST_CLOSE == stack.pop()
            chosen = closing
        else:
            followers = table[stack[-1], last].tolist()
            chosen = (1 - opening - closing) * FOLLOWERS[followers.index(token - FIRST_WORD)]
            last = token - FIRST_WORD
        assert chosen > 0
        total -= math.log(chosen)
    return total


def test_documents_follow_the_grammar_and_the_best_loss_is_theirs() -> None:
    documents, best = write_documents(40, seed=7)
    assert documents.shape == (40, LENGTH)
    assert documents.max() < VOCABULARY
    total = math.fsum(surprise(document) for document in documents.tolist())
    assert math.isclose(best, total / documents.size, rel_tol=1e-12)


def test_the_documents_of_a_seed_are_always_the_same() -> None:
    first, best = write_documents(5, seed=1)
    again, same = write_documents(5, seed=1)
    assert np.array_equal(first, again)
    assert best == same
    assert first[0, :12].tolist() == GOLDEN


GOLDEN = [0, 15, 31, 14, 12, 22, 18, 1, 25, 20, 14, 16]
