"""`python -m hpcai500.launch.rank_command DEVICE MODULE …` binds a rank under mpirun to its cores and becomes it.

DEVICE is the recipe's accelerator.device.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from hpcai500.errors import HpcAi500Error
from hpcai500.hosts import find_placement
from hpcai500.interpreter import module_command
from hpcai500.launch.layout import cores_for
from hpcai500.launch.processes import become
from hpcai500.streams import prepare_streams, print_error


def main() -> NoReturn:
    """Become `python -m hpcai500.MODULE …`."""
    prepare_streams()
    try:
        placement = find_placement(os.environ)
        cores = cores_for(placement.local_rank, placement.local_size or 1, sys.argv[1])
        if cores is not None:
            os.sched_setaffinity(0, cores)
    except HpcAi500Error as error:
        print_error(error)
        sys.exit(error.exit_code)
    become(module_command(sys.argv[2], *sys.argv[3:]))


if __name__ == "__main__":
    main()
