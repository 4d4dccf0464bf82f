"""One rank of an all-reduce: sums of integers must be exact in float32, on every rank."""

from __future__ import annotations

import os

import torch

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.connect import connect
from hpcai500.comm.horovod_backend import Horovod
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, WrongAnswerError
from hpcai500.findings import CannotBeChecked, FindingsLog
from hpcai500.hosts import find_placement
from hpcai500.recipe import load_recipe
from hpcai500.streams import print_error

_NAMES = {
    "torch": "all-reduce: torch, Gloo",
    "horovod-mpi": "all-reduce: Horovod, MPI",
    "horovod-gloo": "all-reduce: Horovod, Gloo",
}
# More than one message of any library, and not a multiple of any block size.
_COUNT = 1_000_003
_PERIOD = 1009


def run_rank(findings: FindingsLog, kind: str, size: int) -> int:
    """Connect to the other ranks and sum; rank 0 writes the finding. Returns 0, or the exit code of the error."""
    if find_placement(os.environ).rank == 0:
        return findings.check(_NAMES[kind], lambda: _connect_and_sum(kind, size)).exit_code
    try:
        _connect_and_sum(kind, size)
    except CannotBeChecked:
        return ExitCode.PASS
    except HpcAi500Error as error:
        print_error(error)
        return error.exit_code
    return ExitCode.PASS


def _connect_and_sum(kind: str, size: int) -> str:
    backend, _, carrier = kind.partition("-")
    if carrier:
        horovod = Horovod("cpu")
        if not (horovod.has_mpi if carrier == "mpi" else horovod.has_gloo):
            raise CannotBeChecked(f"Horovod is built without {carrier.upper()}")
    hardware = ["hardware.nodes=1", f"hardware.accelerators_per_node={size}"]
    recipe = load_recipe("ic/smoke", [*hardware, f"communication.backend={backend}"])
    communicator = connect(recipe, find_placement(os.environ))
    try:
        return check_sum(communicator, size)
    finally:
        communicator.close()


def check_sum(communicator: Communicator, size: int) -> str:
    """All-reduce once.

    Raises:
        RunError: there are not `size` ranks.
        WrongAnswerError: wrong sums; raised on all ranks, for the first rank with a wrong sum.
    """
    if communicator.size != size:
        raise RunError(f"{communicator.size} ranks connected instead of {size}")
    values = torch.arange(_COUNT, dtype=torch.float32) % _PERIOD + 1
    tensor = values * (communicator.rank + 1)
    communicator.all_reduce(tensor)
    wrong = (tensor != values * (size * (size + 1) // 2)).nonzero()
    first = int(wrong[0]) if len(wrong) else 0
    results = communicator.gather_objects((len(wrong), first, float(tensor[first])))
    for rank, (count, index, value) in enumerate(results):
        if count:
            raise WrongAnswerError(
                f"rank {rank} has {count} of {_COUNT} sums wrong by {communicator.library}, the first at {index}: "
                f"{value}; do not measure with this library here: try another backend (communication.backend)"
            )
    return f"{size} ranks by {communicator.library}: {_COUNT} float32 sums, exactly, on each rank"
