"""Who runs the jobs of a command: processes that are started here, or the copies that a launcher has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hpcai500.errors import UsageError
from hpcai500.interpreter import module_command
from hpcai500.launch.affinity import cores_for, cores_of_launched
from hpcai500.launch.child import Patience
from hpcai500.launch.conductor import Conductor
from hpcai500.launch.devices import visible_devices
from hpcai500.launch.fitting import World, fitting_overrides, in_words, require_full_rows
from hpcai500.launch.horovod_ranks import run_horovod_ranks
from hpcai500.launch.in_job import run_to_end
from hpcai500.launch.local_ranks import run_local_ranks
from hpcai500.layers import Recipe
from hpcai500.placement import OVERSUBSCRIBE, Placement
from hpcai500.streams import say

# What a rank needs to say which neighbour it lost, and rank 0 to close the record: when the first of them ends, the
# monitor has told all of them.
_CLOSE_SECONDS = 15.0
TRAIN = "train"

Tokens = Sequence[str | Path]


class Crew(Protocol):
    """Runs jobs, one after the other, on as many ranks as there are."""

    @property
    def size(self) -> int | None:
        """Ranks of every job; None: as many as its recipe says."""

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this host."""

    def open(self) -> None:
        """Get ready, before anything that takes long."""

    def fit(self, name: str | Path, overrides: Sequence[str]) -> list[str]:
        """What to add to the overrides of a recipe so that it is one for this crew.

        Raises:
            UsageError: it states another number of ranks.
        """

    def check(self, recipe: Recipe, jobs: int) -> None:
        """Refuse `jobs` runs of `recipe`, before the first, where they cannot be.

        Raises:
            UsageError: with the reason.
        """

    def run(self, recipe: Recipe, arguments: Tokens, module: str = TRAIN, patience: Patience | None = None) -> int:
        """Run `python -m hpcai500.MODULE` with `arguments` on every rank, and return its exit code.

        Args:
            patience: of a measurement, which ends at the first signal and when its time is over.

        Raises:
            UsageError: the recipe's ranks are not those of this crew.
            KeyboardInterrupt: a signal stopped it before it could handle it, or while it measured.
            OutOfTimeError: `patience` was over.
        """

    def end(self, code: int) -> None:
        """Let all go; `code` is what the command ends with."""


def crew_of(placement: Placement, procs: int | None) -> Crew:
    """The crew of this command: `procs` is its --procs."""
    return _Here(procs) if placement.is_alone else _Launched(placement, procs)


class _Here:
    """Ranks on this host, started for each job."""

    is_local = True

    def __init__(self, procs: int | None) -> None:
        self.size = procs

    def open(self) -> None:
        """Nothing to wait for."""

    def fit(self, name: str | Path, overrides: Sequence[str]) -> list[str]:
        if self.size is None:
            return []
        fix = f"leave out --procs, or add --set hardware.nodes=1 --set hardware.accelerators_per_node={self.size}"
        return fitting_overrides(name, overrides, World(self.size, 1, "torch", f"--procs {self.size}", fix))

    def check(self, recipe: Recipe, jobs: int) -> None:
        _check_size(recipe, self.size)
        self._refuse_other_nodes(recipe)
        require_room(self.size or recipe.world_size, recipe.accelerator.device)

    def run(self, recipe: Recipe, arguments: Tokens, module: str = TRAIN, patience: Patience | None = None) -> int:
        self._refuse_other_nodes(recipe)
        # A run that is gone on with may have another number of ranks than its recipe.
        size = self.size or recipe.world_size
        require_full_rows(recipe, size, size)
        require_room(size, recipe.accelerator.device)
        if size == 1:
            return run_to_end(module_command(module, *arguments), hold=True, patience=patience)
        cores = cores_for(0, size) or os.sched_getaffinity(0)
        say(f"{size} ranks on this host, {recipe.communication.backend}, {len(cores)} of {os.cpu_count()} cores each")
        if size > (own := len(os.sched_getaffinity(0))):
            say(f"warning: {_shared(size, own)}")
        if recipe.communication.backend == "horovod":
            return run_horovod_ranks(module, arguments, size, patience=patience)
        command = module_command(module, *arguments)
        return run_local_ranks(command, size, grace_seconds=_CLOSE_SECONDS, hold=True, patience=patience)

    def end(self, code: int) -> None:
        """Nobody is left."""

    def _refuse_other_nodes(self, recipe: Recipe) -> None:
        if self.size is None and recipe.hardware.nodes > 1:
            raise UsageError(
                f"hardware.nodes is {recipe.hardware.nodes}: start the command on all of them with srun, mpirun or "
                f"torchrun (docs/launching.md), or try it on this host with --procs {recipe.world_size}"
            )


class _Launched:
    """The copies of this command that a launcher has started; this one is rank 0."""

    is_local = False

    def __init__(self, placement: Placement, procs: int | None) -> None:
        self.size = placement.size
        self._procs = procs
        self._placement = placement
        self._conductor = Conductor(placement)

    def open(self) -> None:
        self._conductor.open()
        if self._procs is not None:
            raise UsageError(
                f"--procs starts the ranks itself, but {self._placement.launcher} has started {self.size} already: "
                "leave out --procs"
            )

    def fit(self, name: str | Path, overrides: Sequence[str]) -> list[str]:
        local_size, launcher = self._placement.local_size, self._placement.launcher
        nodes = self.size // local_size if local_size and self.size % local_size == 0 else None
        backend = "horovod" if launcher == "horovodrun" else "torch"
        fix = "start as many, or change the recipe: --set hardware.nodes=N --set hardware.accelerators_per_node=N"
        return fitting_overrides(name, overrides, World(self.size, nodes, backend, launcher, fix))

    def check(self, recipe: Recipe, jobs: int) -> None:
        _check_size(recipe, self.size)
        require_full_rows(recipe, self.size, self._placement.local_size)
        if jobs > 1 and recipe.communication.backend == "horovod":
            raise UsageError(
                f"--trials: Horovod starts only once under one {self._placement.launcher}: plan a campaign, and start "
                "each of its runs by `hpcai500 campaign run DIR --only K`; or use --procs, or --set "
                "communication.backend=torch"
            )

    def run(self, recipe: Recipe, arguments: Tokens, module: str = TRAIN, patience: Patience | None = None) -> int:
        require_full_rows(recipe, self.size, self._placement.local_size)
        cores = cores_of_launched(self._placement) or os.sched_getaffinity(0)
        say(
            f"{self.size} ranks of {self._placement.launcher}, {recipe.communication.backend}, {len(cores)} of "
            f"{os.cpu_count()} cores for rank 0"
        )
        return self._conductor.run(module, arguments, patience)

    def end(self, code: int) -> None:
        # A launcher ends all ranks when the first has ended with a failure: the code of this one is told already.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._conductor.end(code)


def require_room(size: int, device: str = "cpu") -> None:
    """Refuse more ranks on this host than it has devices, or cores unless --oversubscribe lets them share.

    Raises:
        UsageError: with the most that there may be.
    """
    devices = len(visible_devices(os.environ))
    if device == "cuda" and 0 < devices < size:
        raise UsageError(f"{size} ranks, but {devices} CUDA device{'s' if devices > 1 else ''} here: --procs {devices}")
    cores = len(os.sched_getaffinity(0))
    if size > cores and not os.environ.get(OVERSUBSCRIBE):
        raise UsageError(f"{_shared(size, cores)}, or add --oversubscribe ({OVERSUBSCRIBE}=1) to run them all the same")


def _shared(size: int, cores: int) -> str:
    return (
        f"{size} ranks share {cores} core{'s' if cores > 1 else ''}: this shows that they work together, not how fast; "
        f"--procs {cores} gives each one of its own"
    )


def _check_size(recipe: Recipe, size: int | None) -> None:
    if size not in (None, recipe.world_size):
        raise UsageError(
            f"hardware: the runs of this series have {in_words(recipe.world_size)} each, and here are {size}: start as "
            "many, so that they can be compared"
        )
