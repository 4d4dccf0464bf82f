"""A `Launcher` runs the jobs of a command: on processes that it starts here, or on the copies of the command that srun,
mpirun, torchrun or horovodrun has started.

This module also fits a recipe to the ranks that exist, and watches the ranks of this host.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from hpcai500.errors import EnvironmentLacksError, ExitCode, RecipeError, UsageError
from hpcai500.files import with_temporary_folder
from hpcai500.hosts import LAUNCHER, OVERSUBSCRIBE, Placement, name_ranks, without_placement
from hpcai500.interpreter import module_command, python_command
from hpcai500.launch.layout import Layout, cores_for, cores_of_launched, horovodrun, mpirun, visible_devices
from hpcai500.launch.processes import Patience, RankProcess, SignalRelay, checked_code, start_child, wait_for
from hpcai500.launch.rendezvous import RendezvousServer, listen_at
from hpcai500.layers import Recipe
from hpcai500.recipe import find_recipe, is_shipped
from hpcai500.restarts import Loss, Restarts, find_loss
from hpcai500.stopping import STOPPING
from hpcai500.streams import say
from hpcai500.toml_source import parse_tables, read_source


@dataclass(frozen=True)
class Outcome:
    """One run: where its record is, and how its job ended."""

    record: Path
    exit_code: int


# ----------------------------------------------------------------------------------------------------
# A recipe and the ranks: fields that the recipe leaves open follow the ranks, those that it states must agree.


Field = tuple[str, str]
_FIELDS = _NODES, _PER_NODE, _RANKS, _BACKEND = (
    ("hardware", "nodes"),
    ("hardware", "accelerators_per_node"),
    ("hardware", "ranks"),
    ("communication", "backend"),
)


@dataclass(frozen=True)
class World:
    """The ranks that exist, or are asked for.

    Attributes:
        layout: ranks of each node; empty if their launcher does not say.
        backend: for a recipe that names none, if there are several ranks.
        source: what determines them, for messages: `--procs 2`, `mpirun`.
        fix: what to do where a recipe asks for another number.
    """

    size: int
    layout: Sequence[int]
    backend: str
    source: str
    fix: str


def fitting_overrides(name: str | Path, overrides: Sequence[str], world: World) -> list[str]:
    """Overrides (`table.key=value`) that fit the recipe `name`, changed by `overrides`, to `world`.

    A shipped reference recipe states no number of ranks: its one rank is only a default.

    Raises:
        RecipeError: there is no such recipe.
        UsageError: it states another number of ranks.
    """
    stated = _stated(find_recipe(name), overrides)
    nodes, per_node, ranks = (_whole(stated.get(field)) for field in (_NODES, _PER_NODE, _RANKS))
    changes: dict[Field, Any] = {}
    if _NODES not in stated:
        nodes = changes[_NODES] = _nodes(world, per_node)
    if _PER_NODE not in stated and nodes:
        per_node = changes[_PER_NODE] = _ranks_of_the_fullest(world, nodes)
        if _RANKS not in stated and nodes + per_node - 1 <= world.size < nodes * per_node:
            ranks = changes[_RANKS] = world.size
    if nodes is not None and per_node is not None and (ranks or nodes * per_node) != world.size:
        raise UsageError(
            f"{world.source}: {in_words(world.size)}, but the recipe's hardware is {nodes} x {per_node} (nodes x "
            f"accelerators_per_node){f' with {in_words(ranks)}' if ranks else ''}: {world.fix}"
        )
    if _BACKEND not in stated:
        changes[_BACKEND] = "local" if world.size == 1 else world.backend
    return [f"{table}.{key}={value}" for (table, key), value in changes.items()]


def require_full_rows(recipe: Recipe, size: int, *, is_uneven: bool) -> None:
    """Refuse a 2D torus whose rows `size` ranks do not fill, before any of them starts.

    `is_uneven`: nodes are known to have different numbers of them.

    Raises:
        RecipeError: a row is a node and nodes have different numbers of ranks, or a stated row does not divide them.
    """
    way = recipe.communication
    if way.topology != "torus" or size == 1 or recipe.programming.stages > 1:
        return
    if way.torus_columns == 0 and is_uneven:
        raise RecipeError(
            f"communication.torus_columns: 0 makes each node a row, but nodes have different numbers of the {size} "
            "ranks: start as many on each node, or give the ranks of a row"
        )
    if way.torus_columns and size % way.torus_columns:
        raise RecipeError(
            f"communication.torus_columns: {size} ranks do not fill rows of {way.torus_columns}: use one of "
            f"{', '.join(str(count) for count in range(1, size + 1) if size % count == 0)}"
        )


def _stated(path: Path, overrides: Sequence[str]) -> Mapping[Field, Any]:
    """The fields of interest that the file or a --set states; errors in the file are left to load_recipe."""
    stated: dict[Field, Any] = {}
    if path.name != "reference.toml" or not is_shipped(path):
        try:
            tables = parse_tables(read_source(path, RecipeError), RecipeError)
        except RecipeError:
            tables = {}
        for table, values in tables.items():
            # A value that is not a table must reach load_recipe unchanged.
            fields = (
                values if isinstance(values, dict) else dict.fromkeys(key for name, key in _FIELDS if name == table)
            )
            stated |= {(table, key): value for key, value in fields.items()}
    for text in overrides:
        target, _, value = text.partition("=")
        table, _, key = target.strip().partition(".")
        stated[table, key] = value.strip()
    return stated


def _whole(value: Any) -> int | None:
    """None if not stated, or not a number, which load_recipe reports."""
    return int(value) if str(value).isdecimal() else None


def _nodes(world: World, per_node: int | None) -> int:
    if world.layout:
        return len(world.layout)
    if per_node is None:
        raise UsageError(
            f"{world.source}: {in_words(world.size)} on an unknown number of nodes: set LOCAL_WORLD_SIZE for each "
            "rank, or add --set hardware.nodes=N"
        )
    return max(1, world.size // per_node)


def _ranks_of_the_fullest(world: World, nodes: int) -> int:
    """The most ranks on one of `nodes`, as even as they can be if the layout is unknown."""
    if len(world.layout) == nodes:
        return max(world.layout)
    # Another number than the true one is believed if ranks divide evenly: two nodes tried as four.
    return max(1, world.size // nodes) if world.layout else -(-world.size // nodes)


def in_words(size: int) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{size} rank{'s' if size > 1 else ''}"


# ----------------------------------------------------------------------------------------------------
# The launchers.


# Time for the other ranks to report which neighbour they lost, and for rank 0 to close the record; the monitor has
# informed all of them when the first rank ends.
_CLOSE_SECONDS = 15.0
TRAIN = "train"

Tokens = Sequence[str | Path]


class Launcher(Protocol):
    """Runs jobs, one after the other, on its ranks."""

    @property
    def size(self) -> int | None:
        """Ranks of every job; None: as many as its recipe says."""

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this host."""

    def open(self) -> None:
        """Get ready; called before anything that takes long."""

    def fit(self, name: str | Path, overrides: Sequence[str]) -> list[str]:
        """Overrides that fit a recipe to this launcher.

        Raises:
            UsageError: the recipe states another number of ranks.
        """

    def check(self, recipe: Recipe, jobs: int) -> None:
        """Refuse `jobs` runs of `recipe` that are impossible, before the first.

        Raises:
            UsageError: with the reason.
        """

    def run(
        self,
        recipe: Recipe,
        arguments: Tokens,
        module: str = TRAIN,
        patience: Patience | None = None,
        restarts: Restarts | None = None,
    ) -> int:
        """Run `python -m hpcai500.MODULE` with `arguments` on every rank, and return its exit code.

        `patience` is for measurements, which end at the first signal or when their time is over; `restarts` for runs,
        which continue from their last checkpoint after a rank is lost.

        Raises:
            UsageError: the recipe's ranks are not those of this launcher.
            KeyboardInterrupt: a signal stopped it before it could handle it, or while it measured.
            OutOfTimeError: `patience` was over.
        """

    def end(self, code: int) -> None:
        """Let all ranks end; `code` is the exit code of the command."""


def launcher_of(placement: Placement, procs: int | None) -> Launcher:
    """The launcher of this command; `procs` is its --procs."""
    return _LocalLauncher(procs) if placement.is_alone else _OuterLauncher(placement, procs)


class _LocalLauncher:
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
        return fitting_overrides(name, overrides, World(self.size, (self.size,), "torch", f"--procs {self.size}", fix))

    def check(self, recipe: Recipe, jobs: int) -> None:
        _check_size(recipe, self.size)
        self._refuse_other_nodes(recipe)
        # A recipe that states its ranks refuses another --procs.
        option = "--procs " if self.size else "--set hardware.accelerators_per_node="
        require_room(self.size or recipe.world_size, recipe.accelerator.device, option)

    def run(
        self,
        recipe: Recipe,
        arguments: Tokens,
        module: str = TRAIN,
        patience: Patience | None = None,
        restarts: Restarts | None = None,
    ) -> int:
        self._refuse_other_nodes(recipe)
        # A resumed run may have another number of ranks than its recipe.
        size = self.size or recipe.world_size
        require_full_rows(recipe, size, is_uneven=False)
        require_room(size, recipe.accelerator.device)
        if size == 1:
            return _run_alone(module, arguments, patience, restarts)
        device = recipe.accelerator.device
        cores = cores_for(0, size, device) or os.sched_getaffinity(0)
        say(f"{size} ranks on this host, {recipe.communication.backend}, {len(cores)} of {os.cpu_count()} cores each")
        if size > (own := len(os.sched_getaffinity(0))):
            say(f"warning: {_shared(size, own)}")
        if recipe.communication.backend == "horovod":
            return run_horovod_ranks(module, arguments, size, device=device, patience=patience, restarts=restarts)
        return run_local_ranks(
            module_command(module, *arguments),
            size,
            device,
            grace_seconds=_CLOSE_SECONDS,
            hold=True,
            patience=patience,
            restarts=restarts,
        )

    def end(self, code: int) -> None:
        """The ranks have ended already."""

    def _refuse_other_nodes(self, recipe: Recipe) -> None:
        if self.size is None and recipe.hardware.nodes > 1:
            raise UsageError(
                f"hardware.nodes is {recipe.hardware.nodes}: start the command on all of them with srun, mpirun or "
                f"torchrun (docs/launching.md), or try it on this host with --procs {recipe.world_size}"
            )


class _OuterLauncher:
    """The copies of this command that a launcher has started; this one is rank 0."""

    is_local = False

    def __init__(self, placement: Placement, procs: int | None) -> None:
        self.size = placement.size
        self._procs = procs
        self._placement = placement
        self._server = RendezvousServer(placement)

    def open(self) -> None:
        self._server.open()
        if self._procs is not None:
            raise UsageError(
                f"--procs starts the ranks itself, but {self._placement.launcher} has started {self.size} already: "
                "leave out --procs"
            )

    def fit(self, name: str | Path, overrides: Sequence[str]) -> list[str]:
        local_size, launcher, layout = self._placement.local_size, self._placement.launcher, self._placement.layout
        if not layout and local_size and not self._placement.is_uneven:
            layout = (local_size,) * (self.size // local_size)
        backend = "horovod" if launcher == "horovodrun" else "torch"
        fix = (
            "start as many, or change the recipe: --set hardware.nodes=N --set hardware.accelerators_per_node=N, and "
            f"--set hardware.ranks={self.size} if some nodes have fewer"
        )
        return fitting_overrides(name, overrides, World(self.size, layout, backend, launcher, fix))

    def check(self, recipe: Recipe, jobs: int) -> None:
        _check_size(recipe, self.size)
        require_full_rows(recipe, self.size, is_uneven=self._placement.is_uneven)
        if jobs > 1 and recipe.communication.backend == "horovod":
            raise UsageError(
                f"--trials: Horovod starts only once under one {self._placement.launcher}: plan a campaign, and start "
                "each of its runs with `hpcai500 campaign run DIR --only K`; or use --procs, or --set "
                "communication.backend=torch"
            )

    def run(
        self,
        recipe: Recipe,
        arguments: Tokens,
        module: str = TRAIN,
        patience: Patience | None = None,
        restarts: Restarts | None = None,
    ) -> int:
        require_full_rows(recipe, self.size, is_uneven=self._placement.is_uneven)
        device = recipe.accelerator.device
        cores = cores_of_launched(self._placement, device) or os.sched_getaffinity(0)
        say(
            f"{self.size} ranks of {self._placement.launcher}, {recipe.communication.backend}, {len(cores)} of "
            f"{os.cpu_count()} cores for rank 0"
        )
        return self._server.run(module, arguments, patience, device, restarts)

    def end(self, code: int) -> None:
        # A launcher may end all ranks when one has failed; by now our exit code is settled.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._server.end(code)


def require_room(size: int, device: str = "cpu", option: str = "--procs ") -> None:
    """Refuse more ranks on this host than it has devices, or cores unless --oversubscribe lets them share.

    `option` is the one for fewer ranks, without their number.

    Raises:
        UsageError: with the largest possible number.
    """
    devices = len(visible_devices(os.environ))
    if device == "cuda" and 0 < devices < size:
        raise UsageError(f"{size} ranks, but {devices} CUDA device{'s' if devices > 1 else ''} here: {option}{devices}")
    cores = len(os.sched_getaffinity(0))
    if size > cores and not os.environ.get(OVERSUBSCRIBE):
        raise UsageError(
            f"{_shared(size, cores, option)}, or add --oversubscribe ({OVERSUBSCRIBE}=1) to run them anyway"
        )


def _shared(size: int, cores: int, option: str = "--procs ") -> str:
    return (
        f"{size} ranks share {cores} core{'s' if cores > 1 else ''}: this shows that they work, not how fast they are; "
        f"{option}{cores} gives each its own core"
    )


def _check_size(recipe: Recipe, size: int | None) -> None:
    if size not in (None, recipe.world_size):
        raise UsageError(
            f"hardware: the runs of this series have {in_words(recipe.world_size)} each, but here are {size}: start as "
            "many, so that the runs are comparable"
        )


# ----------------------------------------------------------------------------------------------------
# Ranks of this host that are our own children: started together, watched, and all ended when one is lost.


Ranks = Sequence[RankProcess]

_HOST = "127.0.0.1"
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.05
_KILL_SECONDS = 10.0


def run_local_ranks(
    command: Sequence[str],
    size: int,
    device: str = "cpu",
    *,
    grace_seconds: float,
    environment: Mapping[str, str] = os.environ,
    hold: bool = False,
    patience: Patience | None = None,
    restarts: Restarts | None = None,
) -> int:
    """Run `size` ranks of `command` on this host and return the exit code of the job: 0, or the first that failed.

    Each rank has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and its own cores
    (`layout.cores_for`). Rank 0 inherits the socket that already listens at that port, as HPCAI500_LISTEN_FD, so
    that no other process can take the port in between.

    Args:
        device: the recipe's accelerator.device.
        grace_seconds: after the first failure, for the others to end by themselves: they report what they lost, and
            rank 0 closes the record. Then they get SIGTERM, and 10 s later SIGKILL.
        environment: of the ranks, without the variables above.
        hold: as `start_child`'s.
        patience: as `SignalRelay`'s.
        restarts: of the run, if `command` trains: after a rank is lost, all ranks continue from its last checkpoint.

    Raises:
        KeyboardInterrupt: a signal stopped them before they could handle it, or while they measured.
        OutOfTimeError: `patience` was over.
        EnvironmentLacksError: the loopback interface is down.
        UsageError: HPCAI500_AFFINITY is wrong.
    """
    require_loopback()
    ranks = [RankProcess() for _ in range(size)]
    cores = [cores_for(rank, size, device) for rank in range(size)]
    next_job: Tokens | None = None
    with SignalRelay(patience=patience) as relay:
        try:
            while True:
                # Each job meets at another port, where from its start on only rank 0 listens.
                with listen_at(_HOST) as listener:
                    for rank, process in enumerate(ranks):
                        process.start(
                            command,
                            relay=relay,
                            environment=without_placement(environment) | _place(rank, size, listener),
                            cores=cores[rank],
                            listener=None if rank else listener,
                            hold=hold,
                            next_job=next_job,
                            may_restart=restarts is not None,
                        )
                failure = _wait(ranks, grace_seconds)
                loss = _loss(ranks, relay) if restarts else None
                next_job = restarts.after(loss) if restarts and loss else None
                if next_job is None:
                    break
                command = module_command(TRAIN, *next_job)
        finally:
            codes = [process.code or ExitCode.PASS for process in ranks]
            for process in ranks:
                process.kill()
    relay.conclude(codes)
    if loss:
        return ExitCode.RUN_FAILED  # `restarts` has printed why
    return checked_code(failure[1], f"rank {failure[0]}") if failure else ExitCode.PASS


def require_loopback() -> None:
    """Refuse to start ranks on this host where they cannot meet: libraries would retry for minutes.

    Raises:
        EnvironmentLacksError: this host's own address does not answer.
    """
    try:
        with listen_at(_HOST) as listener:
            socket.create_connection(listener.getsockname(), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise EnvironmentLacksError(
            f"{_HOST}, where ranks of one host meet, does not answer ({error.strerror or error}): the loopback "
            "interface of this host or network namespace is down; `ip link set lo up` as root, or start outside of "
            "`unshare --net`"
        ) from error


def _run_alone(module: str, arguments: Tokens, patience: Patience | None, restarts: Restarts | None) -> int:
    """Run the only rank of a job; as `run_local_ranks`."""
    process = RankProcess()
    with SignalRelay(patience=patience) as relay:
        try:
            while True:
                process.start(module_command(module, *arguments), relay=relay, environment=os.environ, hold=True)
                code = process.wait()
                loss = _loss([process], relay) if restarts else None
                next_job = restarts.after(loss) if restarts and loss else None
                if next_job is None:
                    break
                arguments = next_job
        finally:
            process.kill()
    relay.conclude([code])
    return ExitCode.RUN_FAILED if loss else checked_code(code, "the job")


def _place(rank: int, size: int, listener: socket.socket) -> dict[str, str]:
    port = listener.getsockname()[1]
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    meeting = {"MASTER_ADDR": _HOST, "MASTER_PORT": port, LAUNCHER: "hpcai500"}
    return {name: str(value) for name, value in (place | meeting).items()}


def _loss(ranks: Ranks, relay: SignalRelay) -> Loss | None:
    """The lost rank, unless the user has stopped the job."""
    return None if relay.has_signal else find_loss({rank: process.end for rank, process in enumerate(ranks)})


# For a rank that is lost, and not stopped, to report that it hangs (`comm.liveness.Monitor`).
_LOST_SECONDS = 8.0
# Codes of ranks that may only have lost another one.
_SECONDARY = (ExitCode.RUN_FAILED, -signal.SIGALRM)


def _wait(ranks: Ranks, grace_seconds: float) -> tuple[int, int] | None:
    """Wait until no rank is busy; returns (rank, code) of the failure to report."""
    failure: tuple[int, int] | None = None
    while failure is None and any(process.is_busy for process in ranks):
        time.sleep(_POLL_SECONDS)
        failure = _failure(ranks)
    failure = failure or _failure(ranks)
    if failure and not _end_within(ranks, grace_seconds):
        say(f"rank {failure[0]} has ended, but {_running(ranks)} did not within {grace_seconds:g} s: stopped (SIGTERM)")
        _send(ranks, signal.SIGTERM)
        if not _end_within(ranks, _KILL_SECONDS):
            say(f"{_running(ranks)} killed (SIGKILL)")
            _send(ranks, signal.SIGKILL)
            _end_within(ranks, float("inf"))
        return failure
    # The first to end may be one that has only heard of the failure.
    return _failure(ranks) if failure and failure[1] in _SECONDARY else failure


def _failure(ranks: Ranks) -> tuple[int, int] | None:
    """The failure to report: one by a signal or with its own reason comes before those that only lost a neighbour.

    Those that were ended from here come last.
    """
    codes = [(process.is_ended_by_us, rank, code) for rank, process in enumerate(ranks) if (code := _code(process))]
    ordered = sorted(codes, key=lambda it: (it[0], it[2] in _SECONDARY, it[2] > 0, it[1]))
    return ordered[0][1:] if ordered else None


def _code(process: RankProcess) -> int:
    return ExitCode.RUN_FAILED if process.is_waiting else process.code or ExitCode.PASS


def _end_within(ranks: Ranks, seconds: float) -> bool:
    start = time.monotonic()
    while busy := [rank for rank, process in enumerate(ranks) if process.is_busy]:
        passed = time.monotonic() - start
        if passed > seconds:
            return False
        _send([ranks[rank] for rank in busy if _is_hopeless(ranks, rank, passed > _LOST_SECONDS)], signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return True


def _is_hopeless(ranks: Ranks, rank: int, is_late: bool) -> bool:
    """Whether a rank that still runs has been given up by the others, and cannot end itself."""
    is_lost = any(not process.is_busy and (loss := process.end.loss) and loss.rank == rank for process in ranks)
    # Others that wait for their next job wait for this one to be started anew.
    return is_lost and (is_late or ranks[rank].is_stopped or any(process.is_waiting for process in ranks))


def _running(ranks: Ranks) -> str:
    return name_ranks(rank for rank, process in enumerate(ranks) if process.is_busy)


def _send(ranks: Ranks, number: signal.Signals) -> None:
    for process in ranks:
        if process.is_busy:
            process.send_signal(number)


# ----------------------------------------------------------------------------------------------------
# Ranks for the backend `horovod`, which needs its own kind of launcher.


# mpirun takes SIGINT and SIGTERM as "kill all", and does not pass on SIGURG. It passes SIGUSR1 on to the ranks, where
# it means "stop with a checkpoint".
_TO_RANKS: dict[int, signal.Signals] = dict.fromkeys((*STOPPING, signal.SIGURG), signal.SIGUSR1)
# Ranks that measure have no checkpoint to write.
_KILL_ALL: dict[int, signal.Signals] = dict.fromkeys((*STOPPING, signal.SIGUSR1, signal.SIGURG), signal.SIGTERM)
# Launchers ask ranks to end, wait a second or two, then kill them.
_LAUNCHER_SECONDS = 3.0


def run_horovod_ranks(
    module: str,
    arguments: Sequence[str | Path],
    size: int,
    *,
    device: str = "cpu",
    launcher: Literal["mpirun", "horovodrun"] | None = None,
    environment: Mapping[str, str] = os.environ,
    patience: Patience | None = None,
    restarts: Restarts | None = None,
) -> int:
    """Run `size` ranks of `python -m hpcai500.MODULE` under mpirun, or under horovodrun if there is none.

    Returns the exit code of the job. `device` is the recipe's accelerator.device. `launcher` allows only that one.
    `environment` is that of the ranks, without the rank variables, which the launcher sets; `patience` as
    `SignalRelay`'s. After a loss, `restarts` start all ranks anew, since Horovod connects the ranks of a launcher only
    once.

    Raises:
        EnvironmentLacksError: there is no launcher, or the loopback interface is down.
        KeyboardInterrupt: a signal stopped ranks that measured.
        OutOfTimeError: `patience` was over.
    """
    require_loopback()
    command = module_command("launch.rank_command", device, module, *arguments)
    # Slurm's variables would lead to other hosts.
    environment = with_temporary_folder(
        {name: value for name, value in without_placement(environment).items() if not name.startswith("SLURM_")},
        Path.cwd(),
    )
    layout = Layout(nodes=1, per_node=size)
    if launcher != "horovodrun" and shutil.which("mpirun"):
        name, tokens = "mpirun", mpirun(layout, command, as_root=os.geteuid() == 0, oversubscribe=True)
        relay, death_signal = SignalRelay(_TO_RANKS), signal.SIGUSR1
    elif launcher != "mpirun" and (found := _horovodrun()):
        # Its cache in ~/.horovod would need a home folder.
        name, tokens = "horovodrun", [*found, "--disable-cache", *horovodrun(layout, command)[1:]]
        # A script found on PATH starts its own Python, and that another one: neither may import from this folder.
        environment = {**environment, "PYTHONSAFEPATH": "1"}
        relay, death_signal = SignalRelay(), signal.SIGTERM
    else:
        raise EnvironmentLacksError(
            "communication.backend is horovod, but neither mpirun nor horovodrun is here: install Open MPI and "
            "Horovod, or use --set communication.backend=torch"
        )
    if patience:
        patience = replace(patience, grace_seconds=_LAUNCHER_SECONDS)
        relay, death_signal = SignalRelay(_KILL_ALL, patience), signal.SIGTERM
    with relay:
        while True:
            child = start_child(tokens, environment=environment, death_signal=death_signal, own_session=True)
            relay.add(child)
            code = wait_for(child)
            # Launchers end with 128 + the signal that killed a rank.
            is_killed = code - 128 in set(signal.Signals) - {*STOPPING} and not relay.has_signal
            loss = Loss(None, f"a rank was killed by {signal.Signals(code - 128).name}") if is_killed else None
            next_job = restarts.after(loss) if restarts and loss else None
            if next_job is None:
                break
            tokens = [*tokens[: -len(command)], *module_command("launch.rank_command", device, TRAIN, *next_job)]
    relay.conclude()
    if restarts and loss:
        return ExitCode.RUN_FAILED
    # A launcher turns a rank's signal into its own exit code.
    return checked_code(code, name) if code < 0 or code in list(ExitCode) else ExitCode.RUN_FAILED


def _horovodrun() -> list[str] | None:
    """The script beside our Python comes first: it belongs to the Horovod that the ranks import."""
    beside = Path(sys.executable).with_name("horovodrun")
    if beside.is_file():
        return [*python_command(), str(beside)]
    found = shutil.which("horovodrun")
    return [found] if found else None
