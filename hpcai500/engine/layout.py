"""Which rank holds which part of which replica of the model."""

from __future__ import annotations

from dataclasses import dataclass

from hpcai500.comm.base import Communicator
from hpcai500.layers import Recipe

# Normalisations whose result depends on which samples are together; `sync-batch` is over all replicas besides.
_OF_SAMPLES = ("batch", "sync-batch")


@dataclass(frozen=True)
class Layout:
    """`replicas` models of `stages` ranks each; the ranks of a model follow one another, so most are on one node."""

    stages: int
    replicas: int

    def stage(self, rank: int) -> int:
        """The part that `rank` computes, from 0."""
        return rank % self.stages

    def replica(self, rank: int) -> int:
        """The model that `rank` has a part of, from 0."""
        return rank // self.stages

    def column(self, replica: int) -> range:
        """The ranks of one model, first stage first."""
        return range(replica * self.stages, (replica + 1) * self.stages)

    def row(self, stage: int) -> range:
        """The ranks that hold the same part."""
        return range(stage, self.stages * self.replicas, self.stages)


def layout_of(recipe: Recipe, size: int) -> Layout | None:
    """How `size` ranks do what `recipe` says: its stages where they fit, else whole models; None where neither does."""
    stages, shards = recipe.programming.stages, recipe.shards
    if size % stages == 0 and shards % (size // stages) == 0:
        return Layout(stages, size // stages)
    return Layout(1, size) if shards % size == 0 else None


def shares_of(recipe: Recipe, world: Communicator) -> tuple[int, ...]:
    """Numbers of an update's backward passes (`data.shares`) that this rank of `world` takes part in."""
    layout = layout_of(recipe, world.size)
    assert layout, "the number of ranks was looked at before"
    return tuple(range(layout.replica(world.rank), recipe.shards, layout.replicas))


def changes_statistics(recipe: Recipe, layout: Layout) -> bool:
    """Whether batch norm would be over other samples than on the ranks that `recipe` asks for."""
    norm = getattr(recipe.workload, "norm", None)
    over_replicas = norm == "sync-batch" or getattr(recipe.workload, "norm_statistics", None) == "last-batch"
    in_parts = norm in _OF_SAMPLES and recipe.programming.micro_batches > 1
    return (over_replicas and layout.replicas != recipe.replicas) or (
        in_parts and layout.stages != recipe.programming.stages
    )
