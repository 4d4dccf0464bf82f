"""`hpcai500 scale`: how a benchmark gets on with more and more processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpcai500.cli.options import Set
from hpcai500.cli.telling import job_error, tell
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, UsageError


def scale(
    what: Annotated[list[str], typer.Argument(metavar="ic|ewa|RECORD...", help="A benchmark, or records (--records).")],
    procs: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Numbers of processes.  [default: 1,2,4,... up to accelerators or cores]"),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of records and pictures.")] = None,
    set_: Set = None,
    from_records: Annotated[bool, typer.Option("--records", help="Draw records that are there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a benchmark with 1, 2, 4, ... processes on this machine and draw FLOPS and efficiency (V2.0 Fig. 12).

    The same command with the same --out goes on where it was. With --records it draws runs that were made elsewhere.
    """
    from hpcai500.launch.scale import ScaleRequest, run_scaling  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.scale_report import report_broken_scaling, report_scaling  # noqa: PLC0415

    done: list[Path] = []
    try:
        if from_records:
            done, folder = [Path(one) for one in what], out
        else:
            request = ScaleRequest(_one(what), procs, recipe, data, out, set_ or ())
            folder = request.folder
            for run in run_scaling(request, folder):
                if run.exit_code != ExitCode.PASS:
                    raise RunError(f"{run.record}: {job_error(run.record) or 'the run failed (see above)'}")
                done.append(run.record)
        report = report_scaling(done, folder)
    except HpcAi500Error as error:
        report = report_broken_scaling(done, tell(error), error.exit_code)
    except KeyboardInterrupt:
        report = report_broken_scaling(done, tell("stopped by Ctrl-C"), ExitCode.RUN_FAILED)
    print(json.dumps(report.document()) if as_json else "\n".join(report.lines()))  # noqa: T201
    raise typer.Exit(report.error_code)


def _one(what: list[str]) -> str:
    if len(what) != 1:
        raise UsageError(f"scale: expected one benchmark, got {' '.join(what)}; records are drawn with --records")
    return what[0]
