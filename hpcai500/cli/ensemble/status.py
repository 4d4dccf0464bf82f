"""`hpcai500 ensemble status`."""

from __future__ import annotations

import shutil
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.ensemble.options import Folder
from hpcai500.cli.options import Json
from hpcai500.errors import ExitCode, UsageError
from hpcai500.stopping import Stopped
from hpcai500.streams import show

if TYPE_CHECKING:
    from hpcai500.ensemble.scheduler import Scheduler
    from hpcai500.ensemble.watching import Watch

# Of fewer, a bar would be gone before it is seen.
_MANY = 1000


def status(
    folder: Folder,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Show it again and again, until all have ended or Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(min=1.0, metavar="SECONDS", help="Between two looks of --follow; more where Slurm is busy."),
    ] = 10.0,
    everyone: Annotated[bool, typer.Option("--all", help="A row for each member, however many they are.")] = False,
    site: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Site file, as for submit.  [default: none]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how all members stand: who waits, runs, is done or in trouble, how far and how fast, and for how long yet.

    Slurm is asked once a look (squeue, sacct); the rest is read from the members' records. Nothing is written, and
    nothing has to be asked: where no scheduler answers, the records alone tell. With more members than rows, those in
    trouble and the slowest are shown.

    Ends with 0 where all is well or goes on, with 2 where a member has failed, diverged or is lost.
    """
    from hpcai500.ensemble.live import is_ascii, is_terminal  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.ensemble.watching import Watch  # noqa: PLC0415
    from hpcai500.progress import silent, track  # noqa: PLC0415

    if following and as_json:
        raise UsageError("--follow --json: --json prints one document: leave one of them out")
    watch = Watch(folder, {"slurm": lambda: _slurm(site)})
    if following:
        raise typer.Exit(_follow(watch, interval))
    found = watch.look_at_all(track if watch.members > _MANY else silent)
    if as_json:
        show(found.document())
    else:
        width = shutil.get_terminal_size((100, 24)).columns if is_terminal(sys.stdout) else None
        lines = found.lines(width, None if everyone else 20, ascii_only=is_ascii(sys.stdout))
        show(lines)
    raise typer.Exit(found.exit_code)


def _follow(watch: Watch, interval: float) -> int:
    from hpcai500.ensemble.live import Screen, is_terminal  # noqa: PLC0415
    from hpcai500.ensemble.watching import follow  # noqa: PLC0415

    try:
        with Screen(sys.stdout, interval, prefix="") as screen:
            found = follow(watch, screen.show, interval)
    except KeyboardInterrupt as error:
        if isinstance(error, Stopped) and error.number != signal.SIGINT:
            raise
        return ExitCode.PASS
    if not is_terminal(sys.stdout):
        show(found.lines())
    return found.exit_code


@cache
def _slurm(site: str | None) -> Scheduler:
    from hpcai500.ensemble.slurm import SlurmScheduler  # noqa: PLC0415
    from hpcai500.launch.site import Site, load_site  # noqa: PLC0415

    return SlurmScheduler(load_site(site) if site else Site())
