"""N ranks of one job on this host: started together, watched, and none left when one is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from hpcai500.errors import ExitCode
from hpcai500.hostlist import name_ranks
from hpcai500.launch.affinity import cores_for
from hpcai500.launch.child import Patience, SignalRelay, start_child
from hpcai500.launch.in_job import told_code
from hpcai500.launch.meeting import listen_at
from hpcai500.placement import LAUNCHER, LISTEN_FD, without_placement
from hpcai500.streams import say

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
    (`affinity.cores_for`). Rank 0 inherits the socket that listens at that port already, as HPCAI500_LISTEN_FD: nobody
    can take the port in between.

    Args:
        grace_seconds: how long after the first failure the others may take to end by themselves, because they say
            what they lost and rank 0 closes the record; then SIGTERM, and 10 s later SIGKILL.
        environment: what the ranks get, beside where they stand.
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
            # From here on only rank 0 listens: when it dies, nobody can connect to a job that is gone.
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
    """Wait for all; (rank, code) of the first that failed."""
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
    """The failure to tell of those that are there.

    A rank that a signal killed, or that has a reason of its own, comes before those that only report a lost neighbour.
    """
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
