"""Which samples each rank reads, in which order, and the digest that proves it.

The order is a function of (seed, epoch) alone. A global batch is a slice of that order, so it holds the same samples
for any number of ranks. The one exception is an order by windows (`windowed_order`), which gives each share of an
update (`Shares`) its own windows and so depends on their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hpcai500.errors import DataError
from hpcai500.layers import Recipe
from hpcai500.methodology.sampling import Coverage, Draw, drawn_digest, drawn_facts, draws, random_words

# ----------------------------------------------------------------------------------------------------
# The order of an epoch, and how it is cut into batches.


SampleIds = npt.NDArray[np.int64]
Tail = Literal["pad", "drop"]


def epoch_order(samples: int, seed: int, epoch: int) -> SampleIds:
    """The permutation of `range(samples)` that this epoch reads.

    `seed` and `epoch` are non-negative and below 2**64; other values raise ValueError. The order is the same on every
    machine, NumPy version and number of ranks.
    """
    # A stable sort orders equal words by sample id.
    return np.argsort(random_words(samples, seed, epoch, Draw.ORDER), kind="stable").astype(np.int64, copy=False)


def windowed_order(window_of_sample: SampleIds, seed: int, epoch: int, streams: int) -> SampleIds:
    """A permutation of the samples in which each of `streams` ranks reads the samples of a window together.

    `window_of_sample` numbers the windows: sets of samples that are cheapest read together, because they share chunks
    of a file. Rank r takes positions r, r + streams, ... (as `Sharding.batches` does), where windows, and the samples
    within each, are in random order. All samples are laid out window by window and cut into one piece for each rank,
    so ranks share at most streams - 1 windows, and those of padding.

    If no two samples share a window, the order is exactly that of `epoch_order`, for any number of streams. Otherwise
    it depends on (seed, epoch, streams). Raises ValueError as `epoch_order` does, and for streams below 1.
    """
    if streams < 1:
        raise ValueError(f"streams must be at least 1: {streams}")
    samples = int(window_of_sample.size)
    order = epoch_order(samples, seed, epoch)
    known, window = np.unique(window_of_sample, return_inverse=True)
    if known.size == samples:
        return order
    place = np.empty_like(order)
    place[order] = np.arange(samples)
    # Windows have random words of their own: in the order of its first sample, an early window would begin with it.
    words = random_words(known.size, seed, epoch, Draw.WINDOWS)
    line = np.lexsort((place, window, words[window]))
    result = np.empty_like(order)
    cut = 0
    for stream in range(streams):
        share = len(range(stream, samples, streams))
        result[stream::streams] = line[cut : cut + share]
        cut += share
    return result


@dataclass(frozen=True)
class Sharding:
    """How an epoch of `samples` is cut into steps of `world_size` batches of `batch_size` samples (per rank).

    `tail` is for the samples that do not fill the last global batch. "pad" wraps to the start of the
    order until every rank has a full batch: all samples are seen, some twice. "drop" leaves them out. Rank r takes
    every `world_size`-th sample of the global batch from its r-th on, so padding is spread evenly over the ranks and
    is at the end of each rank's batch.

    Raises ValueError for invalid sizes, and DataError if "drop" would leave no step at all.
    """

    samples: int
    batch_size: int
    world_size: int
    rank: int
    tail: Tail

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch_size < 1 or self.world_size < 1:
            raise ValueError(f"samples, batch_size and world_size must be at least 1: {self}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in 0 ... world_size - 1: {self}")
        if self.tail not in ("pad", "drop"):
            raise ValueError(f"tail must be 'pad' or 'drop': {self}")
        if self.steps_per_epoch == 0:
            raise DataError(
                f"an epoch has {self.samples} samples, fewer than one global batch of {self.global_batch} "
                f"({self.world_size} ranks x {self.batch_size}), and the tail rule 'drop' drops all of them: "
                "lower the batch size, or set the tail rule to 'pad'"
            )

    @property
    def global_batch(self) -> int:
        """Samples that all ranks take together in one step."""
        return self.batch_size * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, the same on every rank."""
        if self.tail == "drop":
            return self.samples // self.global_batch
        return -(-self.samples // self.global_batch)

    def batches(self, order: SampleIds) -> Iterator[SampleIds]:
        """Yield this rank's batch of each step: `batch_size` sample ids out of `order` (see `epoch_order`)."""
        if order.shape != (self.samples,):
            raise ValueError(f"order has shape {order.shape}, expected ({self.samples},)")
        for step in range(self.steps_per_epoch):
            yield order[self._positions(step) % self.samples]

    def real_count(self, step: int) -> int:
        """How many samples of this rank's batch of `step` (from 0) are not padding; they are first in the batch."""
        if not 0 <= step < self.steps_per_epoch:
            raise ValueError(f"step must be in 0 ... {self.steps_per_epoch - 1}: {step}")
        return int(np.count_nonzero(self._positions(step) < self.samples))

    def _positions(self, step: int) -> SampleIds:
        return step * self.global_batch + self.rank + self.world_size * np.arange(self.batch_size, dtype=np.int64)


def evaluation_shard(samples: int, batch_size: int, world_size: int, rank: int) -> list[SampleIds]:
    """This rank's batches of an evaluation: each sample exactly once over all ranks, ascending, no padding.

    The last batch may be short. Ranks may differ by one batch, and a rank has none when samples are fewer than ranks:
    an evaluation may communicate after its last batch only.
    """
    if samples < 0 or batch_size < 1 or world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"no shard for {samples} samples, batch {batch_size}, world size {world_size}, rank {rank}")
    start = samples * rank // world_size
    stop = samples * (rank + 1) // world_size
    ids = np.arange(start, stop, dtype=np.int64)
    return [ids[at : at + batch_size] for at in range(0, ids.size, batch_size)]


# ----------------------------------------------------------------------------------------------------
# The samples of an epoch: every sample of the training set once, or those that a member of an ensemble has drawn.
#
# Orders, shards and random crops use *positions*: places in the list of all draws, ascending by id. A sample that was
# drawn three times has three positions, and so three crops in an epoch. Without draws, positions are ids.


ALL = "none"


@dataclass(frozen=True, eq=False)
class TrainingSamples:
    """The samples of an epoch.

    Attributes:
        samples: size of the training set.
        drawn: ids of the draws, ascending, with repeats; None if every sample is trained on once.
        facts: of the draws, for the event `dataset`; empty without draws.
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
        return positions if self.drawn is None else self.drawn[positions]


def training_samples(recipe: Recipe, samples: int, strata: Mapping[str, Sequence[int]]) -> TrainingSamples:
    """The training samples of a run of this recipe, of one model or of a member of an ensemble.

    `samples` is the size of the training set. `strata` has, by name (`class`, `year`), the sizes of the
    groups for stratified draws; ids of a group are contiguous.

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
            "samples: use more data, or another seed"
        )
    facts = asdict(drawn_facts(drawn, samples, options.sampling, sizes))
    return TrainingSamples(samples, drawn, {"drawn": {**facts, "strata": list(sizes)}})


# ----------------------------------------------------------------------------------------------------
# The shares of an update that one process computes: one for each backward pass.
#
# An update is cut into as many shares as the recipe has backward passes, over all ranks. The samples of a share depend
# on the number of shares alone, so a run can continue with fewer ranks, each of which then computes several shares.


@dataclass(frozen=True)
class Share:
    """Sample ids of one backward pass; the first `real` of them are not padding."""

    ids: SampleIds
    real: int


def evaluation_passes(samples: int, batch_size: int, world_size: int, rank: int) -> list[Share]:
    """As `evaluation_shard`, but as many passes on each rank, as those of a sharded model must be.

    A rank with one batch less gets one of which nothing is real.
    """
    batches = evaluation_shard(samples, batch_size, world_size, rank)
    most = -(-samples // world_size)
    passes = -(-most // batch_size)
    shares = [Share(ids, len(ids)) for ids in batches]
    return [*shares, *[Share(np.zeros(1, np.int64), 0)] * (passes - len(shares))]


class Shares:
    """Shares `mine` out of `total` of every update.

    Args:
        samples: size of the training set.
        batch_size: samples of one share.
        total: shares of an update over all processes.
        mine: numbers of the shares that this process computes, in that order.
        tail: rule for the last update of an epoch (`Sharding`).

    Raises DataError and ValueError as `Sharding` does.
    """

    def __init__(self, samples: int, batch_size: int, total: int, mine: Sequence[int], tail: Tail) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.total = total
        self._shardings = [Sharding(samples, batch_size, total, number, tail) for number in mine]

    @property
    def steps_per_epoch(self) -> int:
        """Updates of one epoch."""
        return self._shardings[0].steps_per_epoch

    def of_epoch(self, order: SampleIds, first_step: int = 0) -> Iterator[Share]:
        """Shares out of `order` from update `first_step` on: all of this process's of one update, then the next."""
        streams = [list(sharding.batches(order)) for sharding in self._shardings]
        for step in range(first_step, self.steps_per_epoch):
            for sharding, stream in zip(self._shardings, streams, strict=True):
                yield Share(stream[step], sharding.real_count(step))
