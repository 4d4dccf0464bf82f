"""How the ranks of a job meet: at a store that rank 0 keeps, by TCP."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from hpcai500.comm.failures import first_line
from hpcai500.comm.interfaces import prefer_route
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.hostlist import name_ranks
from hpcai500.placement import Placement
from hpcai500.streams import say

# Rank 0 may have data to make, or an index to read, before it comes.
PATIENCE_SECONDS = 1800.0
# Whoever waits longer than that says so.
_QUIET_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
_STORE_TIMEOUT = timedelta(minutes=5)


class Waiting:
    """A wait with an end, during which one line on stderr says what is waited for.

    Args:
        what: tells what is missing, when asked.
        patience: seconds until it is given up.
    """

    def __init__(self, what: Callable[[], str], patience: float = PATIENCE_SECONDS) -> None:
        self._what, self._patience = what, patience
        self._start = time.monotonic()
        self._pause, self._has_spoken = 0.01, False

    def pause(self) -> None:
        """Sleep a little, longer each time.

        Raises:
            RunError: the patience is over.
        """
        waited = time.monotonic() - self._start
        if waited > self._patience:
            raise RunError(
                f"waited {self._patience:.0f} s for {self._what()}: look for its error message, and whether this host "
                "can reach it (a firewall?)"
            )
        if waited > _QUIET_SECONDS and not self._has_spoken:
            self._has_spoken = True
            say(f"waiting for {self._what()}, for {self._patience / 60:.0f} minutes at most")
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.5)


def meet(placement: Placement, patience: float = PATIENCE_SECONDS) -> tuple[dist.Store, tuple[str, ...]]:
    """The store where all ranks of the job are, and the host name of each rank.

    Where there are several hosts, Gloo is told the interface that connects them.

    Raises:
        EnvironmentLacksError: nobody knows where to meet, or rank 0 cannot listen there.
        RunError: a rank did not come, or two claim the same rank.
    """
    host, port = _address(placement)
    own_address = seen_of_root = ""
    if placement.rank == 0:
        store = _listen(host, port, placement)
    else:
        place = f"rank 0 at {host}:{port}"
        own_address, seen_of_root = _wait_for_listener(host, port, Waiting(lambda: place, patience))
        store = _store(host, port)
    if store.add(f"seat {placement.rank}", 1) != 1:
        raise RunError(
            f"two processes of this job say that they are rank {placement.rank} of {placement.size}: give each its own "
            "RANK, or another MASTER_PORT to each job"
        )
    store.set(f"rank {placement.rank}", f"{socket.gethostname()} {seen_of_root}")
    seats = [f"rank {rank}" for rank in range(placement.size)]
    waiting = Waiting(lambda: _missing(store, seats), patience)
    while not store.check(seats):
        waiting.pause()
    told = [store.get(seat).decode().partition(" ") for seat in seats]
    hosts = tuple(name for name, _, _ in told)
    prefer_route(own_address, [address for _, _, address in told], placement.rank, hosts)
    return store, hosts


def _address(placement: Placement) -> tuple[str, int]:
    if placement.rendezvous is None:
        raise EnvironmentLacksError(
            "this job has several hosts, and nothing tells where rank 0 is: export MASTER_ADDR (its host) and "
            "MASTER_PORT on all of them, with Open MPI by `mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500`"
        )
    host, _, port = placement.rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int, placement: Placement) -> dist.Store:
    try:
        return _store(host, port, is_master=True, master_listen_fd=placement.listen_fd)
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"rank 0 cannot listen on port {port}: {first_line(error)}; if another job has it, export another "
            f"MASTER_PORT; if {host} is another host, correct MASTER_ADDR"
        ) from error


def _store(host: str, port: int, *, is_master: bool = False, master_listen_fd: int | None = None) -> dist.TCPStore:
    return dist.TCPStore(
        host,
        port,
        is_master=is_master,
        timeout=_STORE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=master_listen_fd,
    )


def _wait_for_listener(host: str, port: int, waiting: Waiting) -> tuple[str, str]:
    """Knock until somebody answers: torch's own waiting prints a warning each second, and no signal ends it.

    Returns the addresses of both ends, this one first.
    """
    while True:
        try:
            with socket.create_connection((host, port), _ANSWER_SECONDS) as stream:
                return str(stream.getsockname()[0]), str(stream.getpeername()[0])
        except OSError:
            waiting.pause()


def _missing(store: dist.Store, seats: list[str]) -> str:
    return name_ranks(rank for rank, seat in enumerate(seats) if not store.check([seat]))
