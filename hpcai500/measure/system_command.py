"""`hpcai500 system` on many nodes: the first rank of each node describes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from hpcai500.engine.measurement import Bench, run_measurement
from hpcai500.job_options import Measurement, SystemOptions
from hpcai500.system.container import find_container
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.software import version_document


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the description; returns the exit code."""
    return run_measurement(Measurement[SystemOptions], describe, arguments)


def describe(bench: Bench[SystemOptions]) -> dict[str, Any]:
    """The document of the job, on rank 0."""
    from hpcai500.measure.host import capture_nodes  # torch, after OpenMP's variables are set

    ranks = bench.ranks
    nodes = capture_nodes(ranks.world, bench.options.places, first_of_host=ranks.placement.local_rank == 0)
    # Only rank 0 reads the file of an image.
    installation = version_document(find_container(os.environ), installed_mpi(os.environ)) if ranks.leads else None
    return {"nodes": nodes, "installation": installation}


if __name__ == "__main__":
    sys.exit(main())
