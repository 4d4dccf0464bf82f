"""The vote of language models: the mean of the members' probabilities of each token that came next."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from hpcai500.data.samplers import SampleIds
from hpcai500.workloads.base import Evaluation
from hpcai500.workloads.voting import SAMPLES, Form, Predictions, places_of, require

from hpcai500_lm import LmRecipe

TARGETS, SCORES = "targets", "scores"
# The tokens that came next, and the logarithm of the probability that the member gave each of them.
FORM: Form = {SAMPLES: ("<i8", 1), TARGETS: ("<i8", 2), SCORES: ("<f4", 2)}


def loss_of(sums: npt.NDArray[np.float64], length: int) -> Evaluation:
    """The mean loss from each sample's sum (N,) of log probabilities over `length` tokens.

    The exact sum does not depend on which rank had which sample.
    """
    return Evaluation(-math.fsum(sums) / (len(sums) * length), len(sums))


def sums_of(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The exact sum of each row of (N, length) log probabilities."""
    return np.array([math.fsum(row) for row in scores.tolist()], np.float64)


def voter(recipe: LmRecipe, samples: SampleIds) -> MeanProbability:
    """The voter for members of `recipe`; a mixture's probability of a token is the mean of its members'."""
    return MeanProbability(samples, recipe.workload.sequence_length)


class MeanProbability:
    """Averages the probabilities of the tokens that came next; a `Voter`.

    Sums are over sorted values, so that they do not depend on the order of the members.
    """

    form = FORM

    def __init__(self, samples: SampleIds, length: int) -> None:
        self._samples, self._length = samples, length
        self._members: list[tuple[SampleIds, npt.NDArray[np.float32]]] = []
        self._targets: npt.NDArray[np.int64] | None = None
        self._known = np.zeros(len(samples), bool)

    def alone(self, predictions: Predictions) -> Evaluation | None:
        """The loss of one member."""
        self._checked(predictions)
        scores = predictions[SCORES]
        return loss_of(sums_of(scores), self._length) if len(scores) else None

    def add(self, predictions: Predictions) -> None:
        places = self._checked(predictions)
        targets = predictions[TARGETS]
        if self._targets is None:
            self._targets = np.zeros((len(self._samples), self._length), np.int64)
        seen = self._known[places]
        require(
            bool(np.array_equal(self._targets[places[seen]], targets[seen])), "has other targets than earlier members"
        )
        self._targets[places] = targets
        self._known[places] = True
        self._members.append((places, predictions[SCORES]))

    def evaluation(self) -> Evaluation | None:
        """The loss of the vote, over samples with at least one vote."""
        voted = np.flatnonzero(self._known)
        if not voted.size:
            return None
        return loss_of(np.array([self._vote(place) for place in voted], np.float64), self._length)

    @property
    def votes(self) -> int:
        return sum(len(places) for places, _ in self._members)

    def _vote(self, place: np.int64) -> float:
        """Sum over tokens of the logarithm of the members' mean probability, for the sample at `place`."""
        rows = []
        for places, scores in self._members:
            at = np.searchsorted(places, place)
            if at < len(places) and places[at] == place:
                rows.append(scores[at].astype(np.float64))
        members = np.sort(np.stack(rows), axis=0)
        return math.fsum(np.logaddexp.reduce(members, axis=0) - math.log(len(rows)))

    def _checked(self, predictions: Predictions) -> SampleIds:
        places, targets, scores = places_of(predictions, self._samples), predictions[TARGETS], predictions[SCORES]
        shape = (len(places), self._length)
        require(targets.shape == shape and scores.shape == shape, f"targets and scores: expected {shape}")
        # Also false if a value is not a number.
        require(bool(np.all(scores <= 0)) and bool(np.all(np.isfinite(scores))), "scores are not log probabilities")
        return places
