"""Whose turn it is, where what one rank has done spares the others the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcai500.comm.base import Communicator


@contextmanager
def leader_first(ranks: Communicator) -> Iterator[None]:
    """Rank 0 does what is within before the others do it: they then find what it has left on a shared disk.

    Where disks are not shared, they do it themselves, all at once.
    """
    if ranks.rank != 0:
        ranks.barrier()
    yield
    if ranks.rank == 0:
        ranks.barrier()
