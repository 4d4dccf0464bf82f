"""Commands that measure on one rank or on many: started once here, or as copies by a launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from hpcai500.errors import HpcAi500Error
from hpcai500.launch.crew import Crew
from hpcai500.placement import find_placement


def on_ranks(procs: int | None, body: Callable[[Crew], int]) -> None:
    """Run `body` where rank 0 is, with its crew; the other copies of this command do what it asks of them.

    `body` prints the result and returns the exit code of the command, which this ends with on all ranks.

    Raises:
        HpcAi500Error: as `body`, after the other ranks have been sent home.
    """
    from hpcai500.launch.crew import crew_of  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.launch.follower import follow  # noqa: PLC0415

    placement = find_placement(os.environ)
    if placement.rank > 0:
        raise typer.Exit(follow(placement))
    crew = crew_of(placement, procs)
    crew.open()
    try:
        code = body(crew)
    except HpcAi500Error as error:
        crew.end(error.exit_code)
        raise
    # A launcher ends all copies when one ends with a failure: what is printed is out before.
    sys.stdout.flush()
    crew.end(code)
    raise typer.Exit(code)
