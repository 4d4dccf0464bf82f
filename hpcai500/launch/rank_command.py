"""`python -m hpcai500.launch.rank_command MODULE …`: a rank of our mpirun takes its share of cores, then is the job."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from hpcai500.errors import HpcAi500Error
from hpcai500.interpreter import module_command
from hpcai500.launch.affinity import cores_for
from hpcai500.launch.in_job import become
from hpcai500.placement import find_placement


def main() -> NoReturn:
    """Become `python -m hpcai500.MODULE …`."""
    try:
        placement = find_placement(os.environ)
        cores = cores_for(placement.local_rank, placement.local_size or 1)
        if cores is not None:
            os.sched_setaffinity(0, cores)
    except HpcAi500Error as error:
        print(f"hpcai500: error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    become(module_command(sys.argv[1], *sys.argv[2:]))


if __name__ == "__main__":
    main()
