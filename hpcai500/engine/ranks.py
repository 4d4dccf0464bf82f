"""The processes of one job, as each of them sees the others: layout, communicators, signs of life, and lost ranks.

A rank that hangs is found by its silence: each rank reports its phase to a monitor, which allows a rank to wait for
others in a collective. One process alone has the monitor, too. A watcher thread ends the job when the mount with the
data stops responding.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from hpcai500.comm.communicator import Communicator, LocalCommunicator
from hpcai500.comm.connect import connect
from hpcai500.comm.liveness import (
    EVALUATING,
    STARTING,
    TOGETHER,
    WAITING,
    WRITING,
    Lost,
    Monitor,
    shortened,
    start_watcher,
)
from hpcai500.comm.torch_backend import TorchCommunicator
from hpcai500.engine.signals import StopRequest
from hpcai500.errors import (
    CommunicationError,
    HpcAi500Error,
    NotFiniteError,
    PeerError,
    RecipeError,
    RunError,
    StoppedError,
    UsageError,
)
from hpcai500.hosts import Placement
from hpcai500.layers import Recipe
from hpcai500.progress import Progress, Tracker, silent, track
from hpcai500.restarts import rank_side
from hpcai500.streams import report_fatal
from hpcai500.system.mounts import unreachable

# ----------------------------------------------------------------------------------------------------
# Which rank holds which stage of which replica of the model.


# Normalisations over the samples of a batch; `sync-batch` uses those of all replicas.
_OF_SAMPLES = ("batch", "sync-batch")


@dataclass(frozen=True)
class Layout:
    """`replicas` groups of ranks that work on the same samples; each is consecutive, so that most share a node.

    The ranks of a group are `stages` of one model, or `tensor_ranks` of a sharded one.
    """

    stages: int
    replicas: int
    tensor_ranks: int = 1

    @property
    def ranks_per_replica(self) -> int:
        return self.stages * self.tensor_ranks

    def stage(self, rank: int) -> int:
        """The stage that `rank` computes, or its place among the tensor ranks, from 0."""
        return rank % self.ranks_per_replica

    def replica(self, rank: int) -> int:
        """The group of `rank`, from 0."""
        return rank // self.ranks_per_replica

    def column(self, replica: int) -> range:
        """The ranks of one group, first stage first."""
        return range(replica * self.ranks_per_replica, (replica + 1) * self.ranks_per_replica)

    def row(self, stage: int) -> range:
        """The ranks with the same place in their groups."""
        return range(stage, self.ranks_per_replica * self.replicas, self.ranks_per_replica)


def layout_of(recipe: Recipe, size: int) -> Layout | None:
    """The layout of `recipe` on `size` ranks: its groups if they fit, else ranks of their own; None if neither fits."""
    together, shards = recipe.programming.ranks_per_replica, recipe.shards
    if size % together == 0 and shards % (size // together) == 0:
        stages = recipe.programming.stages
        return Layout(stages, size // together, together // stages)
    return Layout(1, size) if shards % size == 0 else None


def shares_of(recipe: Recipe, world: Communicator) -> tuple[int, ...]:
    """Numbers of the backward passes of an update (`data.samplers`) in which this rank of `world` takes part."""
    layout = layout_of(recipe, world.size)
    assert layout, "the number of ranks was checked before"
    return tuple(range(layout.replica(world.rank), recipe.shards, layout.replicas))


def changes_statistics(recipe: Recipe, layout: Layout) -> bool:
    """Whether batch norm would use other samples than on the ranks that `recipe` asks for."""
    norm = getattr(recipe.workload, "norm", None)
    over_replicas = norm == "sync-batch" or getattr(recipe.workload, "norm_statistics", None) == "last-batch"
    in_parts = norm in _OF_SAMPLES and recipe.programming.micro_batches > 1
    return (over_replicas and layout.replicas != recipe.replicas) or (
        in_parts and layout.stages != recipe.programming.stages
    )


# ----------------------------------------------------------------------------------------------------
# A communicator that reports to the monitor when its rank waits for others.


class WatchedCommunicator:
    """A communicator (protocol `Communicator`) whose calls, and those of its groups, run in a context of `waiting`.

    It is for the training thread. Other threads use the communicator itself, because their waiting says nothing about
    training.
    """

    def __init__(self, communicator: Communicator, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._communicator, self._waiting = communicator, waiting
        self.backend, self.library = communicator.backend, communicator.library
        self.rank, self.size = communicator.rank, communicator.size
        self.hosts, self.world_ranks = communicator.hosts, communicator.world_ranks

    def all_reduce(self, tensor: Tensor) -> None:
        with self._waiting():
            self._communicator.all_reduce(tensor)

    def reduce(self, tensor: Tensor, root: int) -> None:
        with self._waiting():
            self._communicator.reduce(tensor, root)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        with self._waiting():
            self._communicator.broadcast(tensor, root)

    def reduce_scatter(self, source: Tensor, target: Tensor) -> None:
        with self._waiting():
            self._communicator.reduce_scatter(source, target)

    def all_gather(self, source: Tensor, target: Tensor) -> None:
        with self._waiting():
            self._communicator.all_gather(source, target)

    def all_to_all(self, source: Tensor, target: Tensor) -> None:
        with self._waiting():
            self._communicator.all_to_all(source, target)

    def exchange(self, source: Tensor, target: Tensor, peer: int) -> None:
        with self._waiting():
            self._communicator.exchange(source, target, peer)

    def substitute(self, collective: str, tensor: Tensor) -> str | None:
        with self._waiting():
            return self._communicator.substitute(collective, tensor)

    def gather_objects(self, thing: Any) -> list[Any]:
        with self._waiting():
            return self._communicator.gather_objects(thing)

    def broadcast_object(self, thing: Any, root: int = 0) -> Any:
        with self._waiting():
            return self._communicator.broadcast_object(thing, root)

    def barrier(self) -> None:
        with self._waiting():
            self._communicator.barrier()

    def group(self, members: Sequence[int]) -> Communicator | None:
        with self._waiting():
            group = self._communicator.group(members)
        return WatchedCommunicator(group, self._waiting) if group else None

    def close(self) -> None:
        self._communicator.close()


# ----------------------------------------------------------------------------------------------------
# All ranks of the job.


# A collective fails as soon as a connection breaks; the monitor knows which rank is lost a moment later.
_VERDICT_SECONDS = 10.0
# For an error of rank 0 to reach a rank that may have met the same error, or was stopped by it.
_RANK_0_SECONDS = 2.0
# Phases in which a rank may be silent for longer, in seconds.
_LONG_SECONDS = {STARTING: 3600.0, EVALUATING: 600.0, WRITING: 600.0, TOGETHER: 600.0}
# For the first collectives of a job: NCCL connects all ranks in the first one: minutes on thousands of GPUs.
_CONNECTING_SECONDS = 600.0
# Interval of checks of the main thread's progress, and how long it may make none after a signal to stop.
_LOOK_SECONDS = 1.0
# Entries of the data folder that are checked.
_MOST_TOUCHED = 1000


class Ranks:
    """All processes of the job: `world` is their communicator for the training thread, `unwatched` for others."""

    def __init__(self, placement: Placement, communicator: Communicator, timeout_seconds: float) -> None:
        self.placement = placement
        self.unwatched = communicator
        self._on_lost: list[tuple[Callable[[str], None], int | None]] = []
        self._phase, self._moved = STARTING, time.monotonic()
        self._monitor = Monitor(
            communicator,
            timeout_seconds,
            on_lost=self._lose,
            last_words=self._report_stuck,
        )
        self.world = self.watched(communicator)

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes the record."""
        return self.world.rank == 0

    @property
    def name(self) -> str:
        """`rank 3 on host n1`, for messages."""
        return f"rank {self.world.rank} on host {self.world.hosts[self.world.rank]}"

    def phase(self, name: str, allowance_seconds: float = 0.0) -> None:
        """Report to the monitor the phase that begins; some phases allow a longer silence, or this one does."""
        self._phase, self._moved = name, time.monotonic()
        self._monitor.phase(name, allowance_seconds or _LONG_SECONDS.get(name, 0.0))

    def progress(self) -> None:
        """Give a sign of life."""
        self._moved = time.monotonic()
        self._monitor.progress()

    def stopped_seconds(self) -> float:
        """For how long this process was stopped, as by `scontrol suspend`, or its host suspended."""
        return self._monitor.stopped_seconds()

    def on_lost(self, callback: Callable[[str], None], *, only: int | None = None) -> None:
        """Call `callback` with the reason, in another thread, as soon as another rank, or `only` this one, is lost."""
        self._on_lost.append((callback, only))

    def tracker(self, doing: Callable[[], str] | None = None) -> Tracker:
        """A tracker for long work before training: rank 0 shows progress, and all ranks give signs of life.

        `doing` is as in `progress.track`.
        """
        shown: Tracker = partial(track, doing=doing) if self.leads else silent

        @contextmanager
        def tracked(total: int, description: str, unit: str) -> Iterator[Progress]:
            with shown(total, description, unit) as bar:
                yield _SignOfLife(bar, self.progress)

        return tracked

    def _lose(self, lost: Lost) -> None:
        if (command := rank_side()) and lost.rank != self.unwatched.rank and not lost.by_own_error:
            command.report(lost.rank, lost.message)
        for callback, only in self._on_lost:
            if only in (None, lost.rank):
                callback(lost.message)

    def explained(self, error: HpcAi500Error) -> HpcAi500Error:
        """`error`, or an error that names the lost rank that caused it.

        An error of this rank itself is reported to the other ranks.
        """
        if isinstance(error, StoppedError | NotFiniteError):
            return error
        lost = self._monitor.wait_for_verdict(_VERDICT_SECONDS) if isinstance(error, CommunicationError) else None
        if lost is not None and lost.rank != self.world.rank:
            is_printed = self._rank_0_prints(lost.rank, _RANK_0_SECONDS)
            return PeerError(lost.message) if is_printed else RunError(lost.message)
        self._monitor.failed(str(error))
        return error

    def rank_0_has_same_error(self, error: HpcAi500Error) -> bool:
        """Whether rank 0 on the same machine prints the same error. Call it after `explained`; waits 2 s at most."""
        if not self._is_beside_rank_0 or isinstance(error, StoppedError | NotFiniteError):
            return False
        return self._monitor.failure_of_rank_0(_RANK_0_SECONDS) == shortened(str(error))

    @property
    def _is_beside_rank_0(self) -> bool:
        """Whether rank 0 is another rank on this machine, under the launcher that lets it print before it is killed."""
        return self.placement.launcher == "hpcai500" and not self.leads

    def _rank_0_prints(self, lost: int | None, seconds: float) -> bool:
        """Whether rank 0 prints that the rank `lost` is lost: not if rank 0 itself was killed or hangs.

        Waits `seconds` at most.
        """
        if not self._is_beside_rank_0:
            return False
        return lost != 0 or self._monitor.failure_of_rank_0(seconds) is not None

    def _report_stuck(self, message: str) -> None:
        """Print why this process ends although its main thread is stuck, unless rank 0 prints it."""
        if (command := rank_side()) and command.has_lost:
            return
        lost = self._monitor.verdict()
        # Without a wait: the kernel's timer is about to end this process.
        if lost is None or lost.rank == self.world.rank or not self._rank_0_prints(lost.rank, 0.0):
            report_fatal(message)

    def cores(self) -> int:
        """Number of cores for this process: those it may run on, divided by the ranks that share them.

        All ranks call it together.
        """
        mine = tuple(sorted(os.sched_getaffinity(0)))
        same = Counter(self.world.gather_objects((self.world.hosts[self.world.rank], mine)))
        return max(1, len(mine) // same[self.world.hosts[self.world.rank], mine])

    def watched(self, communicator: Communicator) -> Communicator:
        """A wrapper of `communicator`, a group of this job, for the training thread."""
        return WatchedCommunicator(communicator, self._waiting) if self.unwatched.size > 1 else communicator

    @contextmanager
    def reading(self, data: Path, stop: StopRequest, remedy: str = ", then go on with --resume") -> Iterator[None]:
        """While it is entered, end the job, naming the mount, if the mount of `data` stops responding.

        On a dead mount all ranks may wait for their next batch for ever, deaf to signals and outside any collective.
        So when the main thread makes no progress for half of the job's timeout, or for a second after a signal to stop,
        a child process accesses `data` and its entries, and has 15 s to do so (`system.mounts`).
        `remedy` follows that of the mount.
        """
        # Entries may be links to other mounts.
        paths = [data, *islice(data.glob("*"), _MOST_TOUCHED)]
        over = threading.Event()
        start_watcher(
            "monitor-data",
            lambda: self._watch_data(paths, stop, over, remedy),
            lambda error: self._monitor.give_up(str(error)),
        )
        try:
            yield
        finally:
            over.set()

    def _watch_data(self, paths: Sequence[Path], stop: StopRequest, over: threading.Event, remedy: str) -> None:
        touched = 0.0
        while not over.wait(_LOOK_SECONDS):
            moved = self._moved
            patience = _LOOK_SECONDS if stop.signal else self._monitor.timeout_seconds / 2
            if time.monotonic() - max(moved, touched) < patience:
                continue
            dead = []
            with suppress(OSError):  # no process can be started
                dead = unreachable(paths)
            touched = time.monotonic()
            if dead and self._moved == moved and not over.is_set():
                self._monitor.give_up(
                    f"no progress for {touched - moved:.0f} s in its phase `{self._phase}`, and {dead[0].detail}; "
                    f"{dead[0].fix}{remedy}"
                )
                return

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        before = self._phase
        self.phase(WAITING, _CONNECTING_SECONDS if before == STARTING else 0.0)
        try:
            yield
        finally:
            self.phase(before)

    def close(self) -> None:
        self._monitor.close()
        self.unwatched.close()
        # Gloo gives up a collective when a rank is gone. NCCL ends its process, and Horovod connects only once.
        if (command := rank_side()) and command.has_lost and self.unwatched.library == "Gloo":
            self._monitor.stay()
            command.stays = True


@contextmanager
def joined(recipe: Recipe, placement: Placement) -> Iterator[Ranks]:
    """Connect the job's ranks for as long as the context is open.

    Raises:
        EnvironmentLacksError: they cannot be connected.
    """
    # One process that resumes a run of several does not need the recipe's backend.
    is_alone_now = placement.is_alone and recipe.world_size > 1
    communicator = LocalCommunicator() if is_alone_now else connect(recipe, placement)
    ranks = Ranks(placement, communicator, recipe.communication.timeout_seconds)
    try:
        yield ranks
    finally:
        ranks.close()


class _SignOfLife:
    def __init__(self, bar: Progress, alive: Callable[[], None]) -> None:
        self._bar, self._alive = bar, alive

    def advance(self, n: int = 1) -> None:
        self._alive()
        self._bar.advance(n)


def require_size(recipe: Recipe, size: int, *, going_on: bool) -> None:
    """Require that `size` processes can run the recipe.

    A resumed run may have fewer or more ranks if the mathematics of an update stays the same: its backward passes can
    be shared evenly, and batch norm uses the same samples.

    Raises:
        RecipeError: a new run has another number of ranks than its recipe.
        UsageError: a run cannot be resumed on so many ranks.
    """
    if going_on:
        _require_same_update(recipe, size)
    if not going_on and recipe.world_size != size:
        raise RecipeError(
            f"hardware: the recipe asks for {recipe.world_size} ranks (nodes x accelerators_per_node), but {size} "
            f"{'was' if size == 1 else 'were'} started: start as many (--procs {recipe.world_size}, or your launcher), "
            "or change hardware.nodes and hardware.accelerators_per_node"
        )


def _require_same_update(recipe: Recipe, size: int) -> None:
    layout = layout_of(recipe, size)
    if layout is None:
        most = recipe.shards * recipe.programming.ranks_per_replica
        possible = ", ".join(str(count) for count in range(1, most + 1) if layout_of(recipe, count))
        raise UsageError(
            f"{size} ranks cannot share the {recipe.shards} backward passes of an update evenly; resume with one of "
            f"these numbers of ranks: {possible}"
        )
    if changes_statistics(recipe, layout):
        seen = "micro-batches" if recipe.programming.micro_batches > 1 else "all ranks"
        raise UsageError(
            f"batch norm over {seen} gives other results on {size} ranks than on the {recipe.world_size} of this run; "
            f"resume with {recipe.world_size}"
        )


def tensor_row(recipe: Recipe, ranks: Ranks) -> Communicator | None:
    """The ranks with the same place among the tensor ranks of their groups; None without tensor parallelism.

    Called by all ranks together.

    Raises:
        RunError: another rank is lost.
    """
    layout = layout_of(recipe, ranks.world.size)
    if layout is None or layout.tensor_ranks == 1:
        return None
    world = cast(TorchCommunicator, ranks.unwatched)
    return ranks.watched(world.split([layout.row(place) for place in range(layout.tensor_ranks)]))


@dataclass(frozen=True)
class Neighbours:
    """The ranks of one model, first stage first: `column` is for the training thread, `process_group` for torch."""

    column: Communicator
    process_group: dist.ProcessGroup


@dataclass(frozen=True)
class StageGroups:
    """The ranks of this rank's model, and the ranks that hold the same stage.

    `replicas` is for any thread, `watched_replicas` for the training thread.
    """

    layout: Layout
    neighbours: Neighbours
    replicas: Communicator
    watched_replicas: Communicator


def stage_groups(recipe: Recipe, ranks: Ranks) -> StageGroups | None:
    """Make the groups of this rank; called by all ranks together. None if every rank has a whole model.

    Raises:
        RunError: another rank is lost.
    """
    layout = layout_of(recipe, ranks.world.size)
    if layout is None or layout.stages == 1:
        return None
    # A recipe with stages requires the backend `torch`, and a column has at least two ranks.
    world = cast(TorchCommunicator, ranks.unwatched)
    column = world.split([layout.column(replica) for replica in range(layout.replicas)])
    row = world.split([layout.row(stage) for stage in range(layout.stages)])
    process_group: dist.ProcessGroup = cast(TorchCommunicator, column).process_group
    return StageGroups(layout, Neighbours(ranks.watched(column), process_group), row, ranks.watched(row))
