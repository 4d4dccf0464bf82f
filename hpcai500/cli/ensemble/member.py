"""`hpcai500 ensemble member`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.ensemble.options import Folder
from hpcai500.cli.options import Oversubscribe, Power, Procs
from hpcai500.cli.ranks import on_ranks

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew


def member(
    folder: Folder,
    number: Annotated[int, typer.Option("--member", min=0, metavar="K", help="Which one, from 0.")],
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    power: Power = "auto",
) -> None:
    """Run what is not done yet of one member; where it was stopped or killed, it goes on.

    On several ranks, start it by a launcher: srun hpcai500 ensemble member DIR --member 3 (docs/launching.md). It ends
    with 0 when the member is done, whatever its quality; 1: it failed, and may be run again; 2: it diverged, which is
    final; 64 or 69: it cannot be run like this, or not here.
    """
    from hpcai500.ensemble.member import MemberOrder, run_member  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.system.power.choice import parse_power  # noqa: PLC0415

    def body(crew: Crew) -> int:
        return run_member(MemberOrder(folder, number, str(parse_power(power).from_anywhere())), crew)

    on_ranks(procs, body)
