"""`hpcai500 doctor`: what is wrong here, before node-hours are spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.options import Json, Oversubscribe, Procs, Set
from hpcai500.cli.ranks import on_ranks
from hpcai500.errors import ExitCode
from hpcai500.streams import say, show

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew
    from hpcai500.results.given_files import GivenFile
    from hpcai500.system.checks import Check


def path(text: str) -> Path:
    """A path that nobody has touched: typer's own kind of path looks at it, and here a check says which one is dead."""
    return Path(text)


def doctor(
    benchmark: Annotated[
        str | None, typer.Argument(metavar="[ic|ewa|PLUG-IN]", help="Check what its command needs.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(parser=path, help="Folder of the data set.")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=path, help="Folder of the record.  [default: runs/<benchmark>-<time>]")
    ] = None,
    set_: Set = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME", help="Hold speeds against a machine's description, or `hpcai500 micro -o FILE`."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Look only: measure nothing, start no rank.")] = False,
    as_json: Json = False,
) -> None:
    """Check container, folders, launcher, devices; measure GEMM, all-reduce, reading; say what to type: docs/doctor.md.

    A minute on all ranks, under a launcher on all of its own. Exit code 69 where a run could not start or would not be
    worth its node-hours. With --quick it takes a second; `ic` and `ewa` do the same before they start.
    """
    # Imports in here keep `--help` fast.
    from hpcai500.launch.examination import Patient, examine_command, look, why_unplaced  # noqa: PLC0415
    from hpcai500.results.given_files import given_machine  # noqa: PLC0415
    from hpcai500.system.mounts import require_reachable  # noqa: PLC0415
    from hpcai500.system.preflight import MEASURED, skipped  # noqa: PLC0415

    require_reachable(filter(None, (recipe, machine)))
    patient = Patient(benchmark, recipe, data, out, set_ or (), machine)
    if quick:
        raise typer.Exit(_print(look(patient, procs), as_json=as_json))
    if reason := why_unplaced():
        raise typer.Exit(_print([*look(patient), *skipped(MEASURED, f"not measured: {reason}")], as_json=as_json))

    def body(crew: Crew) -> int:
        sources = given_machine(machine)[1] if machine else ()
        found = examine_command(patient, crew)
        code = _print(found.checks, sources, as_json=as_json)
        if found.stopped:
            say(f"error: stopped by {found.stopped}: not all was measured")
            return ExitCode.RUN_FAILED
        return code

    on_ranks(procs, body)


def _print(checks: Sequence[Check], sources: Sequence[GivenFile] = (), *, as_json: bool) -> int:
    """Print `checks`, and who stands for what speeds were held against; returns the exit code that they stand for."""
    from hpcai500.system.checks import document, lines, verdict  # noqa: PLC0415

    found = {**document(checks), "sources": [file.document() for file in sources]}
    told = [*(f"machine {file.sentence}" for file in sources), *lines(checks)]
    show(found if as_json else told)
    return ExitCode.ENVIRONMENT if verdict(checks) == "fail" else ExitCode.PASS
