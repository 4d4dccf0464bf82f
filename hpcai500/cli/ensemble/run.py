"""`hpcai500 ensemble run`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.ensemble.options import AtOnce, Folder, Members
from hpcai500.cli.options import Json, Power
from hpcai500.errors import ExitCode, RunError, UsageError
from hpcai500.streams import say

if TYPE_CHECKING:
    from hpcai500.ensemble.collect import Collected
    from hpcai500.ensemble.running import RunEnd


def run(
    folder: Folder,
    members: Members = None,
    at_once: AtOnce = None,
    power: Power = "auto",
    collect: Annotated[bool, typer.Option(help="Collect when all members are done.")] = True,
    as_json: Json = False,
) -> None:
    """Run all members that are not done on this machine, each on cores or accelerators of its own, then collect.

    The same command goes on after whatever has stopped it. What a member prints goes to DIR/members/NNNNN/output.txt. A
    member that fails is tried again, from its checkpoint.
    """
    from hpcai500.cli.ensemble.collect import report  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.ensemble.collect import CollectOrder, collect_ensemble  # noqa: PLC0415
    from hpcai500.ensemble.live import Live  # noqa: PLC0415
    from hpcai500.ensemble.reading import read_ensemble  # noqa: PLC0415
    from hpcai500.ensemble.running import RunOrder, run_ensemble, starting_line  # noqa: PLC0415
    from hpcai500.progress import track  # noqa: PLC0415
    from hpcai500.system.power.choice import parse_power  # noqa: PLC0415

    if as_json and not collect:
        raise UsageError("--json --no-collect: --json prints what was collected: leave one of them out")

    def trained() -> RunEnd:
        ensemble = read_ensemble(folder)
        order = RunOrder(folder, members, at_once, str(parse_power(power).from_anywhere()))
        with Live(ensemble, ensemble.shape.members) as live:
            end = run_ensemble(
                order, lambda _, jobs: live.update(jobs), lambda left: say(starting_line(ensemble, left))
            )
        if end.stopped:
            raise RunError(f"stopped; nothing is lost: go on with `hpcai500 ensemble run {shlex.quote(str(folder))}`")
        return end

    def collected() -> Collected:
        trained()
        say(f"collecting {folder}: reads the members' records, then has the members vote")
        return collect_ensemble(CollectOrder(folder), track)

    if collect:
        raise typer.Exit(report(collected, as_json))
    raise typer.Exit(ExitCode.RUN_FAILED if trained().failed else ExitCode.PASS)
