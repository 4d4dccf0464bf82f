"""`hpcai500 ensemble cancel`."""

from __future__ import annotations

import os
import shlex

from hpcai500.cli.ensemble.options import Folder
from hpcai500.streams import say, show

_MOST_NAMES = 16


def cancel(folder: Folder) -> None:
    """End all jobs of an ensemble in Slurm; members that run stop with a checkpoint.

    What waits leaves the queue, and nothing is collected. Who has not stopped after the time of the site's warning is
    killed: its last checkpoint stays. `hpcai500 ensemble submit DIR` goes on.
    """
    from hpcai500.ensemble.reading import read_ensemble  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.ensemble.slurm import SlurmScheduler  # noqa: PLC0415
    from hpcai500.ensemble.slurm_submission import last_site  # noqa: PLC0415
    from hpcai500.ensemble.writing import append  # noqa: PLC0415

    ensemble = read_ensemble(folder)
    scheduler = SlurmScheduler(last_site(ensemble), os.environ)
    jobs = scheduler.in_queue(ensemble)
    if not jobs:
        show("cancelled  nothing: no job of it is in the queue")
        return
    # Before anything ends: what collects meanwhile shall know.
    ensemble = append(ensemble, "cancel", {"jobs": list(jobs)})
    ended = scheduler.cancel(ensemble)
    more = " …" if len(ended) > _MOST_NAMES else ""
    show(f"cancelled  {len(ended)} job{'s' * (len(ended) > 1)}: {', '.join(ended[:_MOST_NAMES])}{more}")
    say(f"go on with: hpcai500 ensemble submit {shlex.quote(str(folder))}")
