"""The vote: the mean of the members' probabilities, whatever their order."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hpcai500.errors import WrongAnswerError

from hpcai500_lm.voting import SCORES, TARGETS, MeanProbability, voter

IDS = np.array([2, 5, 6])
PROBABILITIES = {
    "a": [[0.5, 0.25], [0.1, 0.9], [0.3, 0.3]],
    "b": [[0.25, 0.5], [0.2, 0.8], [0.9, 0.1]],
    "c": [[0.125, 0.5], [0.7, 0.7], [0.5, 0.2]],
}
CHOSEN = np.array([[1, 2], [3, 4], [5, 6]])


def member(name: str, places: slice = slice(None)) -> dict[str, Any]:
    scores = np.log(np.array(PROBABILITIES[name], np.float32))
    return {"samples": IDS[places], TARGETS: CHOSEN[places], SCORES: scores[places]}


def new() -> MeanProbability:
    return voter(SimpleNamespace(workload=SimpleNamespace(sequence_length=2)), IDS)  # type: ignore[arg-type]


def test_the_vote_is_the_loss_of_the_mean_probability() -> None:
    counted = new()
    for name in "abc":
        counted.add(member(name))
    mean = np.mean(list(PROBABILITIES.values()), axis=0)
    found = counted.evaluation()
    assert found is not None
    assert found.value == pytest.approx(-np.log(mean).mean(), abs=1e-7)
    assert (found.samples, counted.votes) == (3, 9)
    alone = counted.alone(member("b"))
    assert alone is not None
    assert alone.value == pytest.approx(-np.log(PROBABILITIES["b"]).mean(), abs=1e-7)


def test_the_order_of_members_does_not_matter() -> None:
    found = set()
    for order in permutations("abc"):
        counted = new()
        for name in order:
            counted.add(member(name, slice(1, None) if name == "b" else slice(None)))
        vote = counted.evaluation()
        assert vote is not None
        found.add(vote.value)
    assert len(found) == 1


def test_samples_without_a_vote_do_not_count() -> None:
    counted = new()
    assert counted.evaluation() is None
    counted.add(member("a", slice(0, 1)))
    found = counted.evaluation()
    assert found is not None
    assert found.samples == 1
    assert found.value == pytest.approx(-np.log([0.5, 0.25]).mean(), abs=1e-7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({SCORES: np.full((3, 2), 0.1, np.float32)}, "scores are not log probabilities"),
        ({SCORES: np.full((3, 2), np.nan, np.float32)}, "scores are not log probabilities"),
        ({SCORES: np.full((3, 2), -np.inf, np.float32)}, "scores are not log probabilities"),
        ({SCORES: np.zeros((3, 3), np.float32)}, "expected"),
        ({TARGETS: CHOSEN + 1}, "has other targets than earlier members"),
        ({"samples": np.array([2, 5, 9])}, "predicts samples that are not voted on"),
    ],
)
def test_invalid_predictions_are_refused_and_not_counted(change: dict[str, Any], message: str) -> None:
    counted = new()
    counted.add(member("a"))
    before = counted.evaluation()
    with pytest.raises(WrongAnswerError, match=message):
        counted.add({**member("b"), **change})
    assert counted.evaluation() == before
    assert counted.votes == 3
