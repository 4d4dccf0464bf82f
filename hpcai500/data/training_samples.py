"""What an epoch trains on: every sample of the training set once, or those that a member of an ensemble has drawn.

Orders, shards and random crops go by *positions*: places in the list of all draws, ascending by id. A sample that was
drawn three times has three of them, and so three crops in an epoch. Where nothing is drawn, positions are ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcai500.data.samplers import SampleIds
from hpcai500.errors import DataError
from hpcai500.layers import Recipe
from hpcai500.methodology.bootstrap import drawn_digest, drawn_facts, draws
from hpcai500.methodology.coverage import Coverage

ALL = "none"


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """The samples of an epoch.

    Attributes:
        samples: size of the training set.
        drawn: ids of the draws, ascending, with repeats; None where every sample is trained on once.
        facts: of the draws, for the event `dataset`; empty where there are none.
    """

    samples: int
    drawn: SampleIds | None
    facts: Mapping[str, Any]

    def __len__(self) -> int:
        """How many positions an epoch has."""
        return self.samples if self.drawn is None else int(self.drawn.size)

    @property
    def coverage(self) -> str:
        """The digest of a complete epoch."""
        return Coverage.expected(self.samples).digest if self.drawn is None else drawn_digest(self.drawn)

    def ids(self, positions: SampleIds) -> SampleIds:
        """The samples at these positions."""
        return positions if self.drawn is None else self.drawn[positions]


def training_samples(recipe: Recipe, samples: int, strata: Mapping[str, Sequence[int]]) -> TrainingSamples:
    """What a run of this recipe trains on.

    Args:
        recipe: of one model, or of a member of an ensemble.
        samples: size of the training set.
        strata: by name (`class`, `year`), sizes of the groups that draws may keep the shares of; ids of a group are
            contiguous.

    Raises:
        DataError: nothing was drawn.
    """
    options = recipe.ensemble
    if options is None:
        return TrainingSamples(samples, None, {})
    sizes = () if options.strata == ALL else tuple(int(size) for size in strata[options.strata])
    drawn = draws(samples, recipe.hyperparameters.seed, options.sampling, sizes)
    if not drawn.size:
        raise DataError(
            f"ensemble.sampling: {options.sampling} of seed {recipe.hyperparameters.seed} draws none of {samples} "
            "samples: take more data, or another seed"
        )
    facts = asdict(drawn_facts(drawn, samples, options.sampling, sizes))
    return TrainingSamples(samples, drawn, {"drawn": {**facts, "strata": list(sizes)}})
