"""N ranks of one job on this host: started together, watched, and all ended when one is lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hpcai500.errors import EnvironmentLacksError, ExitCode
from hpcai500.files import with_temporary_folder
from hpcai500.hosts import LAUNCHER, LISTEN_FD, name_ranks, without_placement
from hpcai500.interpreter import module_command, python_command
from hpcai500.launch.layout import Layout, cores_for, horovodrun, mpirun
from hpcai500.launch.processes import Patience, SignalRelay, start_child, told_code, wait_for
from hpcai500.launch.rendezvous import listen_at
from hpcai500.stopping import STOPPING
from hpcai500.streams import say

# ----------------------------------------------------------------------------------------------------
# Ranks that are our own children.


Ranks = Sequence[subprocess.Popen[bytes]]

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.05
_KILL_SECONDS = 10.0


def run_local_ranks(
    command: Sequence[str],
    size: int,
    *,
    grace_seconds: float,
    environment: Mapping[str, str] = os.environ,
    hold: bool = False,
    patience: Patience | None = None,
) -> int:
    """Run `size` ranks of `command` on this host and return the exit code of the job: 0, or the first that failed.

    Each rank has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and cores of its own
    (`launchers.cores_for`). Rank 0 inherits the socket that already listens at that port, as HPCAI500_LISTEN_FD, so
    that nobody can take the port in between.

    Args:
        grace_seconds: after the first failure, for the others to end by themselves: they say what they lost, and rank 0
            closes the record. Then they get SIGTERM, and 10 s later SIGKILL.
        environment: of the ranks, without their places.
        hold: as `start_child`'s.
        patience: as `SignalRelay`'s.

    Raises:
        KeyboardInterrupt: a signal stopped them before they could handle it, or while they measured.
        OutOfTimeError: `patience` was over.
        UsageError: HPCAI500_AFFINITY is wrong.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    cores = [cores_for(rank, size) for rank in range(size)]
    with SignalRelay(patience=patience) as relay, listen_at(_HOST) as listener:
        try:
            for rank in range(size):
                inherit = [listener.fileno()] if rank == 0 else []
                placed = without_placement(environment) | _place(rank, size, listener)
                ranks.append(start_child(command, environment=placed, cores=cores[rank], inherit=inherit, hold=hold))
                relay.add(ranks[-1])
            # From here on only rank 0 listens: when it dies, nobody can connect to a dead job.
            listener.close()
            failure = _wait(ranks, grace_seconds)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    relay.conclude(process.returncode for process in ranks)
    return told_code(failure[1], f"rank {failure[0]}") if failure else ExitCode.PASS


def _place(rank: int, size: int, listener: socket.socket) -> dict[str, str]:
    port = listener.getsockname()[1]
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    meeting = {"MASTER_ADDR": _HOST, "MASTER_PORT": port, LAUNCHER: "hpcai500"}
    ours = place | meeting | ({LISTEN_FD: listener.fileno()} if rank == 0 else {})
    return {name: str(value) for name, value in ours.items()}


def _wait(ranks: Ranks, grace_seconds: float) -> tuple[int, int] | None:
    """Wait for all; returns (rank, code) of the failure to report."""
    failure: tuple[int, int] | None = None
    while failure is None and any(process.poll() is None for process in ranks):
        time.sleep(_POLL_SECONDS)
        failure = _failure(ranks)
    failure = failure or _failure(ranks)
    if failure and not _end_within(ranks, grace_seconds):
        say(f"rank {failure[0]} has ended, and {_running(ranks)} did not within {grace_seconds:g} s: stopped (SIGTERM)")
        _send(ranks, signal.SIGTERM)
        if not _end_within(ranks, _KILL_SECONDS):
            say(f"{_running(ranks)} killed (SIGKILL)")
            _send(ranks, signal.SIGKILL)
            _end_within(ranks, float("inf"))
    return failure


def _failure(ranks: Ranks) -> tuple[int, int] | None:
    """The failure to report: one by a signal or with a reason of its own, before those that only lost a neighbour."""
    codes = [(rank, process.returncode) for rank, process in enumerate(ranks) if process.poll()]
    secondary = (ExitCode.RUN_FAILED, -signal.SIGALRM)
    return min(codes, key=lambda it: (it[1] in secondary, it[1] > 0, it[0]), default=None)


def _end_within(ranks: Ranks, seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while any(process.poll() is None for process in ranks):
        if time.monotonic() > limit:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _running(ranks: Ranks) -> str:
    return name_ranks(rank for rank, process in enumerate(ranks) if process.poll() is None)


def _send(ranks: Ranks, number: signal.Signals) -> None:
    for process in ranks:
        process.send_signal(number)


# ----------------------------------------------------------------------------------------------------
# Ranks for the backend `horovod`, which needs its own kind of launcher.


# mpirun takes SIGINT and SIGTERM as "kill all", and keeps SIGURG to itself; SIGUSR1 it passes on to the ranks, where it
# means "stop with a checkpoint".
_TO_RANKS: dict[int, signal.Signals] = dict.fromkeys((*STOPPING, signal.SIGURG), signal.SIGUSR1)
# Ranks that measure have nothing to keep.
_KILL_ALL: dict[int, signal.Signals] = dict.fromkeys((*STOPPING, signal.SIGUSR1, signal.SIGURG), signal.SIGTERM)
# Launchers ask ranks to end, wait a second or two, then kill them.
_LAUNCHER_SECONDS = 3.0


def run_horovod_ranks(
    module: str,
    arguments: Sequence[str | Path],
    size: int,
    *,
    launcher: Literal["mpirun", "horovodrun"] | None = None,
    environment: Mapping[str, str] = os.environ,
    patience: Patience | None = None,
) -> int:
    """Run `size` ranks of `python -m hpcai500.MODULE` under mpirun, or under horovodrun where there is none.

    Returns the exit code of the job. `launcher` allows only that one. `environment` is that of the ranks, without
    their places, which come from the launcher; `patience` as `SignalRelay`'s.

    Raises:
        EnvironmentLacksError: there is no launcher.
        KeyboardInterrupt: a signal stopped ranks that measured.
        OutOfTimeError: `patience` was over.
    """
    command = module_command("launch.rank_command", module, *arguments)
    # Slurm's variables would lead to other hosts.
    environment = with_temporary_folder(
        {name: value for name, value in without_placement(environment).items() if not name.startswith("SLURM_")},
        Path.cwd(),
    )
    layout = Layout(nodes=1, per_node=size)
    if launcher != "horovodrun" and shutil.which("mpirun"):
        name, tokens = "mpirun", mpirun(layout, command, as_root=os.geteuid() == 0, oversubscribe=True)
        relay, last_will = SignalRelay(_TO_RANKS), signal.SIGUSR1
    elif launcher != "mpirun" and (found := _horovodrun()):
        # Its cache in ~/.horovod would need a home folder.
        name, tokens = "horovodrun", [*found, "--disable-cache", *horovodrun(layout, command)[1:]]
        relay, last_will = SignalRelay(), signal.SIGTERM
    else:
        raise EnvironmentLacksError(
            "communication.backend is horovod, but there is no mpirun and no horovodrun here: install Open MPI and "
            "Horovod, or use --set communication.backend=torch"
        )
    if patience:
        patience = replace(patience, grace_seconds=_LAUNCHER_SECONDS)
        relay, last_will = SignalRelay(_KILL_ALL, patience), signal.SIGTERM
    with relay:
        child = start_child(tokens, environment=environment, last_will=last_will, own_session=True)
        relay.add(child)
        code = wait_for(child)
    relay.conclude()
    # A launcher turns a rank's signal into an exit code of its own.
    return told_code(code, name) if code < 0 or code in list(ExitCode) else ExitCode.RUN_FAILED


def _horovodrun() -> list[str] | None:
    """The script beside our Python comes first: it belongs to the Horovod that the ranks import."""
    beside = Path(sys.executable).with_name("horovodrun")
    if beside.is_file():
        return [*python_command(), str(beside)]
    found = shutil.which("horovodrun")
    return [found] if found else None
