"""What counts votes, whatever is voted on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcai500.errors import WrongAnswerError
from hpcai500.methodology.coverage import SampleIds
from hpcai500.workloads.base import Evaluation

Predictions = Mapping[str, npt.NDArray[Any]]
"""Arrays by name, as `Workload.predictions` gives them. `samples` are ids, ascending; the rest is the voter's."""

Form = Mapping[str, tuple[str, int]]
"""Of each array of predictions, its type as NumPy writes it, and how many dimensions it has."""

SAMPLES = "samples"


class Voter(Protocol):
    """Counts what one member after the other says of the same samples.

    Nothing that it finds depends on the order of the members. Each of them may speak of some of the samples only; one
    that says what nobody can say is refused whole.

    Attributes:
        form: of the predictions that it takes.
    """

    form: Form

    def alone(self, predictions: Predictions) -> Evaluation | None:
        """Quality of these predictions alone, without a vote, as the benchmark's own evaluation has it.

        None where they are of no sample.

        Raises:
            WrongAnswerError: they are none that a member makes.
        """

    def add(self, predictions: Predictions) -> None:
        """Count one member's predictions in.

        Raises:
            WrongAnswerError: they are none that a member makes, or contradict those before them: nothing was counted.
        """

    def evaluation(self) -> Evaluation | None:
        """Quality of the vote so far, over the samples that anyone has voted on; None where there are none."""

    @property
    def votes(self) -> int:
        """Votes on all samples together."""


def places_of(predictions: Predictions, samples: SampleIds) -> SampleIds:
    """Where the predicted samples are among `samples`.

    Raises:
        WrongAnswerError: some are not, or they are not ascending.
    """
    found = predictions[SAMPLES]
    if np.any(np.diff(found) <= 0):
        raise WrongAnswerError("the samples are not ascending: each may be predicted once")
    places = np.searchsorted(samples, found)
    if np.any(places == samples.size) or np.any(samples[places] != found):
        raise WrongAnswerError("predicts samples that are not voted on")
    return np.asarray(places, np.int64)


def require(holds: bool, what: str) -> None:
    """Refuse predictions, saying `what` is wrong with them, unless it `holds`.

    Raises:
        WrongAnswerError: it does not.
    """
    if not holds:
        raise WrongAnswerError(what)
