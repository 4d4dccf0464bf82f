"""The mean of the members' softmax outputs: soft voting on classes (V3.0 section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hpcai500.methodology.coverage import SampleIds
from hpcai500.workloads.base import Evaluation
from hpcai500.workloads.voting.base import SAMPLES, Form, Predictions, places_of, require

# Probabilities are counted in units of 2**-47: sums of whole numbers do not depend on their order, and fewer than 2**16
# members fit. What is rounded away is far below what float32 logits resolve.
_UNIT_BITS = 47
MOST_MEMBERS = (1 << 16) - 1
_UNKNOWN = -1
# Rows that are worked on at once: 32 MB of a thousand classes.
_ROWS = 4096


FORM: Form = {SAMPLES: ("<i8", 1), "labels": ("<i8", 1), "logits": ("<f4", 2)}


class SoftmaxMean:
    """Adds up each member's class probabilities, float64; the class with the largest mean is the ensemble's.

    Args:
        samples: ids that are voted on, ascending.
    """

    form = FORM

    def __init__(self, samples: SampleIds) -> None:
        self._samples = samples
        self._labels = np.full(samples.size, _UNKNOWN, np.int64)
        self._votes = np.zeros(samples.size, np.int64)
        self._sums: npt.NDArray[np.int64] | None = None
        self._members = 0

    def alone(self, predictions: Predictions) -> Evaluation | None:
        """Top-1 of the logits themselves."""
        _require_sound(predictions)
        logits, labels = predictions["logits"], predictions["labels"]
        right = sum(int((logits[rows].argmax(axis=1) == labels[rows]).sum()) for rows in _blocks(len(labels)))
        return Evaluation(right / len(labels), len(labels)) if len(labels) else None

    def add(self, predictions: Predictions) -> None:
        """Count one member in."""
        _require_sound(predictions)
        places, labels, logits = places_of(predictions, self._samples), predictions["labels"], predictions["logits"]
        classes = logits.shape[1]
        if self._sums is None:
            self._sums = np.zeros((self._samples.size, classes), np.int64)
        require(classes == self._sums.shape[1], f"{classes} classes; members before it have {self._sums.shape[1]}")
        known = self._labels[places]
        require(bool(np.all((known == _UNKNOWN) | (known == labels))), "other labels than members before it")
        require(self._members < MOST_MEMBERS, f"more than {MOST_MEMBERS} members")
        for rows in _blocks(len(labels)):
            self._sums[places[rows]] += _counted(softmax(logits[rows]))
        self._labels[places] = labels
        self._votes[places] += 1
        self._members += 1

    def evaluation(self) -> Evaluation | None:
        """Top-1 of the mean."""
        judged = np.flatnonzero(self._votes)
        if self._sums is None or not judged.size:
            return None
        right = sum(
            int((self._sums[judged[rows]].argmax(axis=1) == self._labels[judged[rows]]).sum())
            for rows in _blocks(judged.size)
        )
        return Evaluation(right / int(judged.size), int(judged.size))

    @property
    def votes(self) -> int:
        """Votes on all samples together."""
        return int(self._votes.sum())


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Probabilities of the classes of each row, (n, classes)."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=1, keepdims=True)
    return shifted


def _counted(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.rint(np.ldexp(probabilities, _UNIT_BITS)).astype(np.int64)


def _require_sound(predictions: Predictions) -> None:
    samples, labels, logits = (predictions[name] for name in (SAMPLES, "labels", "logits"))
    require(
        len(samples) == len(labels) == len(logits),
        f"{len(samples)} samples, {len(labels)} labels and {len(logits)} rows of logits",
    )
    classes = logits.shape[1]
    require(classes >= 1, "no class")
    require(bool(np.all((labels >= 0) & (labels < classes))), f"labels beyond its {classes} classes")
    bad = sum(int((~np.isfinite(logits[rows]).all(axis=1)).sum()) for rows in _blocks(len(labels)))
    require(bad == 0, f"the scores of {bad} samples are no numbers")


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(at, at + _ROWS) for at in range(0, rows, _ROWS))
