"""The mean of softmax outputs: by hand, in any order, and refusing what nobody can have predicted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch.nn import functional as F

from hpcai500.errors import WrongAnswerError
from hpcai500.workloads.voting import MOST_MEMBERS, SoftmaxMean, softmax

Member = dict[str, Any]


def member(logits: Any, labels: Any, samples: Any = None) -> Member:
    rows = np.array(logits, np.float32)
    ids = np.arange(len(rows)) if samples is None else np.array(samples, np.int64)
    return {"samples": ids, "labels": np.array(labels, np.int64), "logits": rows}


def vote(members: list[Member], samples: int) -> SoftmaxMean:
    box = SoftmaxMean(np.arange(samples))
    for one in members:
        box.add(one)
    return box


def test_the_mean_of_two_is_that_of_their_probabilities_and_not_of_their_logits() -> None:
    # By hand: the first is sure of class 0 (p = 0.95), the second nearly sure of 1 and says so twice as loudly in
    # logits; probabilities of class 0: (0.95 + 0.02) / 2 = 0.485, of class 1: 0.515.
    one, other = math.log(0.95 / 0.05), math.log(0.98 / 0.02)
    sure, surer = member([[one, 0.0]], [1]), member([[0.0, other]], [1])
    found = vote([sure, surer], 1).evaluation()
    assert found is not None
    assert (found.value, found.samples) == (1.0, 1)
    # Three classes: two lukewarm votes for class 2 outweigh one hot one: 0.34 + 0.35 > 0.66 + 0 for class 0.
    hot = member(np.log([[0.66, 0.33, 0.01]]), [2])
    warm = [member(np.log([[0.01, 0.31, 0.68]]), [2]), member(np.log([[0.30, 0.31, 0.39]]), [2])]
    found = vote([hot, *warm], 1).evaluation()
    assert found is not None
    assert found.value == 1.0


def test_probabilities_are_those_of_torch_and_do_not_overflow() -> None:
    logits = np.random.default_rng(1).normal(scale=100, size=(50, 7)).astype(np.float32)
    expected = F.softmax(torch.from_numpy(logits).double(), dim=1).numpy()
    assert np.abs(softmax(logits) - expected).max() < 1e-14
    assert softmax(np.array([[3e38, -3e38, 0]], np.float32)).tolist() == [[1.0, 0.0, 0.0]]


arrays = npst.arrays(np.float32, (6, 4, 3), elements=st.floats(-30, 30, width=32).map(lambda value: round(value, 1)))


@given(arrays, st.permutations(range(6)))
def test_neither_the_order_of_members_nor_doubling_all_of_them_changes_the_vote(logits: Any, order: list[int]) -> None:
    labels = [0, 1, 2, 0]
    members = [member(one, labels) for one in logits]
    found = vote(members, 4)
    again = vote([members[place] for place in order], 4)
    assert np.array_equal(found._sums, again._sums)
    assert found.evaluation() == again.evaluation() == vote(members * 2, 4).evaluation()


@given(npst.arrays(np.float32, (5, 3), elements=st.floats(-1e4, 1e4, width=32)))
def test_an_ensemble_of_one_is_its_member(logits: Any) -> None:
    # What float32 resolves below 2**-40 of the largest logit, probabilities do not.
    logits = np.round(logits, 3)
    one = member(logits, [0, 1, 2, 0, 1])
    box = vote([one], 5)
    top1 = float((torch.from_numpy(one["logits"]).argmax(dim=1).numpy() == one["labels"]).mean())
    judged, alone = box.evaluation(), box.alone(one)
    assert judged is not None
    assert alone is not None
    assert alone.value == pytest.approx(top1, abs=0)
    sure = np.sort(softmax(one["logits"]), axis=1)
    if np.all((sure[:, -1] - sure[:, -2] > 1e-12) | (np.sort(logits, axis=1)[:, -1] == np.sort(logits, axis=1)[:, -2])):
        assert judged == alone


def test_out_of_bag_each_sample_is_judged_by_those_who_have_not_drawn_it() -> None:
    # Samples 10, 20, 30, 40; nobody speaks of 40. Sample 20: 0.6 + 0.1 against 0.4 + 0.9.
    box = SoftmaxMean(np.array([10, 20, 30, 40]))
    box.add(member(np.log([[0.9, 0.1], [0.6, 0.4]]), [0, 1], [10, 20]))
    box.add(member(np.log([[0.1, 0.9], [0.8, 0.2]]), [1, 1], [20, 30]))
    found = box.evaluation()
    assert found is not None
    assert (found.value, found.samples, box.votes) == (2 / 3, 3, 4)


def test_of_no_votes_there_is_no_quality() -> None:
    box = SoftmaxMean(np.array([3, 4]))
    assert box.evaluation() is None
    nothing = member(np.empty((0, 2)), [], [])
    assert box.alone(nothing) is None
    box.add(nothing)
    assert box.evaluation() is None


GOOD = member([[0.0, 1.0], [1.0, 0.0]], [1, 0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": np.array([1, 2])}, "labels beyond its 2 classes"),
        ({"labels": np.array([-1, 0])}, "labels beyond its 2 classes"),
        ({"labels": np.array([1])}, "2 samples, 1 labels and 2 rows"),
        ({"labels": np.array([0, 0])}, "other labels than members before it"),
        ({"logits": np.zeros((2, 3), np.float32)}, "3 classes; members before it have 2"),
        ({"logits": np.zeros((2, 0), np.float32)}, "no class"),
        ({"logits": np.array([[0, np.nan], [1, np.inf]], np.float32)}, "the scores of 2 samples are no numbers"),
        ({"samples": np.array([0, 0])}, "not ascending"),
        ({"samples": np.array([0, 9])}, "samples that are not voted on"),
    ],
)
def test_what_no_member_says_is_refused_and_leaves_the_count_alone(change: Member, reason: str) -> None:
    box = vote([GOOD], 2)
    before = box.evaluation(), box.votes
    with pytest.raises(WrongAnswerError, match=reason):
        box.add({**GOOD, **change})
    assert (box.evaluation(), box.votes) == before


def test_the_most_members_that_are_all_sure_of_one_class_are_still_counted() -> None:
    box = vote([member([[99.0, -99.0]], [0])], 1)
    assert box._sums is not None
    # What all the others but one would have added.
    box._sums *= MOST_MEMBERS - 1
    box.add(member([[99.0, -99.0]], [0]))
    found = box.evaluation()
    assert found is not None
    assert found.value == 1.0
    assert box._sums[0, 0] > 0
