"""`python -m hpcai500.self_test.ranks_command FOLDER LIMIT KIND SIZE`: one rank of an all-reduce.

The launcher of KIND starts SIZE of them; rank 0 writes the finding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from hpcai500.comm.connect import connect
from hpcai500.comm.horovod_backend import Horovod
from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.findings import CannotBeChecked, FindingsLog
from hpcai500.hosts import find_placement
from hpcai500.recipe import load_recipe
from hpcai500.self_test.process import begin
from hpcai500.self_test.summing import check_sum
from hpcai500.streams import tell

NAMES = {
    "torch": "all-reduce: torch, Gloo",
    "horovod-mpi": "all-reduce: Horovod, MPI",
    "horovod-gloo": "all-reduce: Horovod, Gloo",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Be one rank; returns 0, or the exit code of the error."""
    here = begin(arguments)
    kind, size = here.words
    leads = find_placement(os.environ).rank == 0
    return _checked(here.findings if leads else None, NAMES[kind], lambda: _meet_and_sum(kind, int(size)))


def _checked(findings: FindingsLog | None, name: str, body: Callable[[], str]) -> int:
    if findings:
        return findings.check(name, body).exit_code
    try:
        body()
    except CannotBeChecked:
        return ExitCode.PASS
    except HpcAi500Error as error:
        tell(error)
        return error.exit_code
    return ExitCode.PASS


def _meet_and_sum(kind: str, size: int) -> str:
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


if __name__ == "__main__":
    sys.exit(main())
