"""The copies of a command that are not rank 0: they wait for it, become the jobs that it names, and print no result."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence

from hpcai500 import __version__
from hpcai500.errors import ExitCode, RunError
from hpcai500.interpreter import module_command
from hpcai500.launch.affinity import cores_of_launched
from hpcai500.launch.child import Patience
from hpcai500.launch.in_job import run_to_end
from hpcai500.launch.meeting import Hello, Job, meeting_point, receive, send
from hpcai500.placement import LISTEN_FD, RENDEZVOUS, Placement

PATIENCE_SECONDS = 300.0
_RETRY_SECONDS = 0.1
# After a rank of the job has failed, rank 0's ends within seconds (`comm.monitor`), and its command says so.
_LAST_WORD_SECONDS = 15.0
# A host that is gone is noticed after idle + count * interval, while we wait for rank 0 to make data or to score.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


def follow(placement: Placement) -> int:
    """Run rank 0's jobs, as our rank of them, until it ends; returns its exit code.

    Raises:
        RunError: rank 0 is nowhere, or something else is in its place.
    """
    if placement.rendezvous is None:
        return ExitCode.USAGE  # rank 0 says why
    with _connect(placement) as connection, connection.makefile("rb") as stream:
        send(connection, Hello(hpcai500=__version__, rank=placement.rank, size=placement.size))
        while isinstance(order := receive(stream), Job):
            # Whatever its exit code: rank 0 has seen that the job failed, and says when all ends.
            if run_rank(placement, order.command, order.rendezvous) != ExitCode.PASS:
                # Rank 0's job ends with ours: its command has no more to wait for than that, unless its host is gone.
                connection.settimeout(_LAST_WORD_SECONDS)
        # From here to our end, which has its code already, a launcher that ends all ranks because one failed is late.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return order.code if order else ExitCode.RUN_FAILED


def run_rank(
    placement: Placement,
    command: Sequence[str],
    rendezvous: str,
    listen_fd: int | None = None,
    patience: Patience | None = None,
) -> int:
    """Be one rank of a job: run `command` (a module of ours and its arguments) here and return its exit code.

    Args:
        rendezvous: where the ranks of this job meet.
        listen_fd: on rank 0, the socket that listens there.
        patience: of a measurement, on rank 0; the others end with it.
    """
    cores = cores_of_launched(placement)
    environment = {**os.environ, RENDEZVOUS: rendezvous}
    if listen_fd is not None:
        environment[LISTEN_FD] = str(listen_fd)
    inherit = [] if listen_fd is None else [listen_fd]
    return run_to_end(
        module_command(*command), environment=environment, cores=cores, inherit=inherit, hold=True, patience=patience
    )


def _connect(placement: Placement) -> socket.socket:
    """A connection to rank 0, which may come later than we."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection = socket.create_connection(meeting_point(placement), timeout=PATIENCE_SECONDS)
            break
        except OSError as error:
            if time.monotonic() > limit:
                raise RunError(
                    f"rank {placement.rank}: rank 0 was not at {placement.rendezvous} within {PATIENCE_SECONDS:g} s "
                    f"({error.strerror}): see what {placement.launcher} says of it, and whether MASTER_ADDR is its host"
                ) from error
            time.sleep(_RETRY_SECONDS)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection
