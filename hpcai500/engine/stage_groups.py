"""With whom a rank shares one model, where models are cut into stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch.distributed as dist

from hpcai500.comm.base import Communicator
from hpcai500.comm.torch_backend import TorchCommunicator
from hpcai500.engine.layout import Layout, layout_of
from hpcai500.engine.ranks import Ranks
from hpcai500.layers import Recipe


@dataclass(frozen=True)
class Neighbours:
    """The ranks of one model.

    Attributes:
        column: for the training thread, first stage first.
        process_group: the same ranks, as torch's pipelining takes them.
    """

    column: Communicator
    process_group: dist.ProcessGroup


@dataclass(frozen=True)
class StageGroups:
    """With whom this rank shares what.

    Attributes:
        layout: who holds which part.
        neighbours: the ranks of this rank's model.
        replicas: the ranks that hold the same part, for any thread.
        watched_replicas: the same, for the training thread.
    """

    layout: Layout
    neighbours: Neighbours
    replicas: Communicator
    watched_replicas: Communicator


def stage_groups(recipe: Recipe, ranks: Ranks) -> StageGroups | None:
    """The groups of this rank, made by all ranks together; None where every rank has a whole model.

    Raises:
        RunError: another rank is lost.
    """
    layout = layout_of(recipe, ranks.world.size)
    if layout is None or layout.stages == 1:
        return None
    # A recipe with stages names the backend `torch`, and a column has two ranks at least.
    world = cast(TorchCommunicator, ranks.unwatched)
    column = world.split([layout.column(replica) for replica in range(layout.replicas)])
    row = world.split([layout.row(stage) for stage in range(layout.stages)])
    process_group: dist.ProcessGroup = cast(TorchCommunicator, column).process_group
    return StageGroups(layout, Neighbours(ranks.watched(column), process_group), row, ranks.watched(row))
