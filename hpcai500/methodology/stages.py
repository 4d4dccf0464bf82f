"""The stages of an all-reduce (V2.0 Table 12) and what each takes: sums and samples in a bounded space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

from hpcai500.methodology.reservoir import Reservoir, weighted_quantile

# As V2.0 Table 12 names them, in the order of time.
STAGES = (
    "negotiation",
    "wait_for_data",
    "wait_for_other_data",
    "queuing",
    "memcpy_in",
    "all_reduce",
    "memcpy_out",
)
# Of each bucket: a median is then within some percent of the truth, and buckets add up.
_SAMPLES = 128


class StageTimes(TypedDict):
    """What a stage takes in one all-reduce, in seconds: over all all-reduces."""

    mean_seconds: float
    median_seconds: float
    p95_seconds: float


# None: the stage does not exist there, or nothing was measured.
StageTable = dict[str, StageTimes | None]


class StageTally:
    """Adds up what the stages of all-reduces took, for any number of them.

    Args:
        stages: names of the columns, some of `STAGES`.
        samples: how many all-reduces are kept for the quantiles.

    Attributes:
        count: all-reduces that were added.
        sums: seconds of each stage over all of them.
        samples: some of them.
    """

    def __init__(self, stages: Sequence[str], samples: int = _SAMPLES) -> None:
        self.stages = tuple(stages)
        self.count = 0
        self.sums = [0.0] * len(self.stages)
        self.samples: Reservoir[tuple[float, ...]] = Reservoir(samples)

    def add(self, seconds: tuple[float, ...]) -> None:
        """One all-reduce: the seconds of each stage, in the order of `stages`."""
        self.count += 1
        sums = self.sums
        for column, value in enumerate(seconds):
            sums[column] += value
        self.samples.add(seconds)

    def means(self) -> dict[str, float]:
        """Mean seconds of each stage that it knows."""
        return {name: total / self.count for name, total in zip(self.stages, self.sums, strict=True)}


def stage_table(tallies: Sequence[StageTally]) -> StageTable:
    """Each stage over the all-reduces of all `tallies`, each all-reduce with the same weight.

    The mean is exact; median and 95th percentile come from the samples, and are exact while all of them are kept.
    """
    used = [tally for tally in tallies if tally.count]
    return {name: _times(name, used) for name in STAGES}


def _times(name: str, tallies: Sequence[StageTally]) -> StageTimes | None:
    having = [(tally, tally.stages.index(name)) for tally in tallies if name in tally.stages]
    if not having:
        return None
    weighted = sorted(_weighted(having))
    return {
        "mean_seconds": sum(t.sums[column] for t, column in having) / sum(t.count for t, _ in having),
        "median_seconds": weighted_quantile(weighted, 0.5),
        "p95_seconds": weighted_quantile(weighted, 0.95),
    }


def _weighted(having: Sequence[tuple[StageTally, int]]) -> Iterator[tuple[float, float]]:
    """(seconds, all-reduces that the sample stands for) of every sample."""
    for tally, column in having:
        for sample in tally.samples:
            yield sample[column], tally.count / len(tally.samples.kept)
