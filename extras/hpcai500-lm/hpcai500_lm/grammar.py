"""A synthetic language whose best possible loss is known, for smoke runs.

A document has `LENGTH` tokens and begins with `BEGIN`. Then, at each place, a bracket of one of four kinds opens, the
innermost one closes, or a word follows. Which word depends on the last word and on the kind of the innermost bracket.
So the next token's distribution follows from the tokens before it, if one keeps track of brackets; a model that sees
only the last few tokens cannot reach the best loss.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

LENGTH = 128
KINDS, WORDS, DEEPEST = 4, 23, 4
BEGIN = 0
FIRST_OPEN, FIRST_CLOSE, FIRST_WORD = 1, 1 + KINDS, 1 + 2 * KINDS
VOCABULARY = FIRST_WORD + WORDS
OPEN, CLOSE = 0.1, 0.1
# Probabilities of the words that may follow.
FOLLOWERS = (0.8, 0.15, 0.05)
TRAINING, EVALUATION = 4096, 512

Documents = npt.NDArray[np.uint16]


def follower_table() -> npt.NDArray[np.int64]:
    """The words that may follow: (innermost kind, `KINDS` outside of brackets; last word; place in `FOLLOWERS`)."""
    random = np.random.Generator(np.random.PCG64(500))
    choices = [[random.permutation(WORDS)[: len(FOLLOWERS)] for _ in range(WORDS)] for _ in range(KINDS + 1)]
    return np.array(choices, np.int64)


def write_documents(count: int, seed: int) -> tuple[Documents, float]:
    """`count` documents (count, LENGTH), and the best possible loss on them.

    The loss, in nats a token, is the mean of -log p of each token but the first of a document, and of the `BEGIN` after
    it, which is certain.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    table, rows = follower_table(), np.arange(count)
    documents = np.full((count, LENGTH), BEGIN, np.uint16)
    # Kinds of the open brackets; below them, `KINDS` stands for none.
    stack = np.full((count, DEEPEST + 1), KINDS)
    depth, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    surprise = 0.0
    for place in range(1, LENGTH):
        opening, closing = np.where(depth < DEEPEST, OPEN, 0.0), np.where(depth > 0, CLOSE, 0.0)
        draw, kind, pick = random.random(count), random.integers(KINDS, size=count), random.random(count)
        opens, closes = draw < opening, (draw >= opening) & (draw < opening + closing)
        writes = ~opens & ~closes
        inside = stack[rows, depth]
        follower = np.searchsorted(np.cumsum(FOLLOWERS)[:-1], pick, side="right")
        word = table[inside, last, follower]
        documents[:, place] = np.select(
            [opens, closes, writes], [FIRST_OPEN + kind, FIRST_CLOSE + inside, FIRST_WORD + word]
        )
        chosen = np.select(
            [opens, closes, writes], [opening / KINDS, closing, (1 - opening - closing) * np.array(FOLLOWERS)[follower]]
        )
        surprise -= math.fsum(np.log(chosen))
        depth += opens.astype(np.int64) - closes
        stack[rows[opens], depth[opens]] = kind[opens]
        last[writes] = word[writes]
    return documents, surprise / (count * LENGTH)


def make(folder: Path) -> None:
    """Write the set; it is the same every time."""
    from hpcai500_lm.tokens import Part, write_set

    training, _ = write_documents(TRAINING, seed=1)
    evaluation, best = write_documents(EVALUATION, seed=2)
    # A document's last token predicts the beginning of the next one.
    end = np.array([BEGIN], np.uint16)
    write_set(
        folder,
        VOCABULARY,
        {Part.TRAINING: [[training.ravel(), end]], Part.EVALUATION: [[evaluation.ravel(), end]]},
        {"grammar": "brackets", "best_loss": best},
    )
