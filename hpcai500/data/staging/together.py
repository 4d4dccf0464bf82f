"""Ranks that stage on several nodes begin to train together: the slowest node's copy is waited for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcai500.errors import ExitCode, HpcAi500Error, RunError, error_kind
from hpcai500.hosts import Placement

if TYPE_CHECKING:
    from torch.distributed import Store

_DONE, _LEFT, _FAILED = "staged", "left", "failed"
_POLL_SECONDS = 0.2
_FAREWELL_SECONDS = 10.0


@contextmanager
def together(placement: Placement) -> Iterator[None]:
    """End when all ranks of the job have come to the end of theirs; on one node, its lock does the same.

    Raises:
        HpcAi500Error: another rank has failed, or is gone; of the kind of what befell it.
    """
    if placement.local_size == placement.size:
        yield
        return
    from hpcai500.comm.connect import meet  # torch: one node does without

    store, _ = meet(placement)
    try:
        yield
    except BaseException as error:
        code = error.exit_code if isinstance(error, HpcAi500Error) else ExitCode.RUN_FAILED
        _tell(store, f"{int(code)} rank {placement.rank} on {socket.gethostname()}")
        raise
    try:
        store.add(_DONE, 1)
        while store.add(_DONE, 0) < placement.size:
            if store.check([_FAILED]):
                exit_code, _, who = store.get(_FAILED).decode().partition(" ")
                raise error_kind(int(exit_code))(f"{who} could not stage what it needs (see above)")
            time.sleep(_POLL_SECONDS)
        _leave(store, placement)
    except RuntimeError as error:  # torch's, of a store that is gone
        raise RunError("rank 0 has ended before all ranks had staged what they need: see what it says") from error


def _leave(store: Store, placement: Placement) -> None:
    """Rank 0, which keeps the store, is the last to go."""
    store.add(_LEFT, 1)
    limit = time.monotonic() + _FAREWELL_SECONDS
    while placement.rank == 0 and store.add(_LEFT, 0) < placement.size and time.monotonic() < limit:
        time.sleep(_POLL_SECONDS / 10)


def _tell(store: Store, what: str) -> None:
    try:
        store.set(_FAILED, what)
        # Rank 0 takes the store with it: the others look every now and then.
        time.sleep(3 * _POLL_SECONDS)
    except RuntimeError:
        return  # rank 0 is gone already
