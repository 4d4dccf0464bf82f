"""`hpcai500 ensemble submit`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.ensemble.options import AtOnce, Folder, Members
from hpcai500.errors import EnvironmentLacksError
from hpcai500.streams import say, show

if TYPE_CHECKING:
    from hpcai500.ensemble.reading import Ensemble


def submit(
    folder: Folder,
    site: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Site file: partition, ranks of a node, launcher, image.  [default: that of the last submission, or "
            "srun, in the image that this command runs in]",
        ),
    ] = None,
    at_once: AtOnce = None,
    members: Members = None,
    exclude: Annotated[str | None, typer.Option(metavar="HOSTS", help="Use none of these: n7,n[10-12].")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the scripts, and submit nothing.")] = False,
    after: Annotated[str | None, typer.Option(hidden=True)] = None,
    queued: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Submit all members that are not done to Slurm, one element of a job array each, and a job that collects.

    DIR/slurm/ has the scripts, to be read and changed. Slurm's commands are on the host: inside the image, this prints
    the line to type there. A member that is warned before its time is up stops with a checkpoint and comes back; one
    that fails is tried again, on other nodes if need be. Site files: hpcai500 slurm example.

    hpcai500 ensemble submit DIR --site mysite.toml --at-once 8
    """
    from hpcai500.ensemble.reading import read_ensemble  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.ensemble.slurm import SlurmScheduler  # noqa: PLC0415
    from hpcai500.ensemble.slurm_submission import (  # noqa: PLC0415
        SubmitRequest,
        plan_submission,
        warnings_of,
        write_submission,
    )
    from hpcai500.system.container import find_container  # noqa: PLC0415

    ensemble = read_ensemble(folder)
    if queued is not None:
        _tell_journal(ensemble, queued, members, at_once, exclude, after)
        return
    command = ["hpcai500", *sys.argv[1:]]
    request = SubmitRequest(os.environ, site, members, at_once, exclude, after, command)
    submission = plan_submission(ensemble, request)
    if submission is None:
        say("nothing to submit: no member is missing" if after is None else "no member has to be run again, or may be")
        return
    script = write_submission(submission)
    for warning in warnings_of(submission):
        say(f"warning: {warning}")
    scheduler = SlurmScheduler(submission.site, os.environ)
    if not (dry_run or scheduler.can_submit or find_container(os.environ)):
        name = shlex.quote(str(folder))
        raise EnvironmentLacksError(
            f"no sbatch here: type this on a host of the cluster: {_line(script)}; or run the members on this machine: "
            f"hpcai500 ensemble run {name}"
        )
    if dry_run or not scheduler.can_submit:
        say("submit it on the host:")
        show(_line(script))
        return
    *arrays, collector = scheduler.queue(ensemble, script)
    count = len(submission.members)
    show(f"submitted  {count} member{'s' * (count > 1)} as job {', '.join(arrays)}; job {collector} collects")
    say(f"watch them: hpcai500 ensemble status {shlex.quote(str(folder))}")


def _tell_journal(
    ensemble: Ensemble, queued: str, members: str | None, at_once: int | None, exclude: str | None, after: str | None
) -> None:
    """What the script that submits calls when it has."""
    from hpcai500.ensemble.reading import parse_members  # noqa: PLC0415 - as above
    from hpcai500.ensemble.writing import append  # noqa: PLC0415

    value = {
        "scheduler": "slurm",
        "jobs": queued.split(","),
        "members": parse_members(members, ensemble) if members else list(ensemble.members),
        "at_once": at_once,
        "exclude": exclude.split(",") if exclude else [],
        "after": after,
    }
    append(ensemble, "submit", value)


def _line(script: Path) -> str:
    return f"bash {shlex.quote(str(script))}"
