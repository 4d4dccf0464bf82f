"""`hpcai500 doctor`: what is wrong here, before node-hours are spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpcai500.cli.options import Json, Out, Set
from hpcai500.errors import ExitCode


def doctor(
    benchmark: Annotated[str | None, typer.Argument(metavar="[ic|ewa]", help="Look at what its command needs.")] = None,
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    out: Out = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Look at container, folders, launcher and devices, and say what to type where something is wrong: docs/doctor.md.

    Exit code 69 where a run could not start. `ic` and `ewa` look at the same before they start.
    """
    from hpcai500.launch.examination import Patient, examine_command  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.system.checks import document, lines, verdict  # noqa: PLC0415

    checks = examine_command(Patient(benchmark, recipe, data, out, set_ or ()))
    print(json.dumps(document(checks)) if as_json else "\n".join(lines(checks)))  # noqa: T201
    raise typer.Exit(ExitCode.ENVIRONMENT if verdict(checks) == "error" else ExitCode.PASS)
