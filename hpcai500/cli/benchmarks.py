"""`hpcai500 ic`, `ewa` and `score`: runs, and what they amount to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from hpcai500.cli.estimate import EstimateOption, MachineOption, estimate, is_estimate
from hpcai500.cli.options import Input, InputKind, Json, Out, Power, Procs, Resume, Set, Trials
from hpcai500.cli.telling import job_error, tell
from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.placement import find_placement


def ic(
    recipe: Annotated[str | None, typer.Option(help="TOML file, or ic/smoke, ic/reference.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with train/<class>/*.JPEG and val/<class>/*.JPEG.")] = None,
    out: Out = None,
    set_: Set = None,
    input_: Input = InputKind.FILES,
    trials: Trials = 1,
    resume: Resume = False,
    procs: Procs = None,
    power: Power = "auto",
    estimate_: EstimateOption = False,
    machine: MachineOption = None,
    as_json: Json = False,
) -> None:
    """Image Classification: train ResNet-50 on JPEG files, to its target epochs, to a score.

    Without --recipe and --data it runs the smoke recipe on images that it makes itself: a few minutes on two cores,
    not rankable. With --data it runs the reference recipe. With --estimate it runs nothing, and prints what that will
    take (docs/cost-model.md).

    --procs N trains on N ranks of this machine. On several machines, start the command itself by a launcher: `srun
    hpcai500 ic …`, mpirun, torchrun or horovodrun; rank 0 prints the result (docs/launching.md).
    """
    if is_estimate(estimate_, machine, {"--data": data, "--out": out, "--resume": resume}):
        estimate("ic", recipe, set_, machine, procs, as_json)
        return
    _run("ic", recipe, data, out, [*(set_ or ()), *input_.overrides], trials, resume, procs, power, as_json)


def ewa(
    recipe: Annotated[str | None, typer.Option(help="TOML file, or ewa/smoke, ewa/reference.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with climo_YYYY.h5, a file for each year.")] = None,
    out: Out = None,
    set_: Set = None,
    input_: Input = InputKind.FILES,
    trials: Trials = 1,
    resume: Resume = False,
    procs: Procs = None,
    power: Power = "auto",
    estimate_: EstimateOption = False,
    machine: MachineOption = None,
    as_json: Json = False,
) -> None:
    """Extreme Weather Analytics: train Faster R-CNN on 16-channel climate years, to its target epochs, to a score.

    Without --recipe and --data it runs the smoke recipe on weather that it makes itself: a few minutes on two cores,
    not rankable. With --data it runs the reference recipe. The record holds a picture of what was found. With
    --estimate it runs nothing, and prints what that will take (docs/cost-model.md).

    --procs N trains on N ranks of this machine. On several machines, start the command itself by a launcher: `srun
    hpcai500 ewa …`, mpirun, torchrun or horovodrun; rank 0 prints the result (docs/launching.md).
    """
    if is_estimate(estimate_, machine, {"--data": data, "--out": out, "--resume": resume}):
        estimate("ewa", recipe, set_, machine, procs, as_json)
        return
    _run("ewa", recipe, data, out, [*(set_ or ()), *input_.overrides], trials, resume, procs, power, as_json)


def _run(
    benchmark: str,
    recipe: str | None,
    data: Path | None,
    out: Path | None,
    settings: list[str],
    trials: int,
    resume: bool,
    procs: int | None,
    power: str,
    as_json: bool,
) -> None:
    from hpcai500.launch.benchmark import Request, run_benchmark  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.launch.crew import crew_of  # noqa: PLC0415
    from hpcai500.launch.follower import follow  # noqa: PLC0415

    try:
        placement = find_placement(os.environ)
    except HpcAi500Error as error:
        raise typer.Exit(_report(_failing(error), as_json)) from error
    if placement.rank > 0:
        raise typer.Exit(follow(placement))
    crew = crew_of(placement, procs)
    request = Request(benchmark, recipe, data, out, settings, trials, resume, power)
    code = _report(((run.record, run.exit_code) for run in run_benchmark(request, crew)), as_json)
    # A launcher ends all copies when one ends with a failure: what is printed is out before.
    sys.stdout.flush()
    crew.end(code)
    raise typer.Exit(code)


def _failing(error: HpcAi500Error) -> Iterator[tuple[Path, int]]:
    """Runs that ended before the first one."""
    yield from ()
    raise error


def score(
    records: Annotated[list[Path], typer.Argument(help="Folders that runs wrote.")],
    edition: Annotated[str | None, typer.Option(help="Score under this edition of the rules.")] = None,
    convention: Annotated[str, typer.Option(help="How operations are counted: analytic, or paper.")] = "analytic",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Compute the score of records again, from their events."""
    from hpcai500.results.score import expand  # noqa: PLC0415 - keeps `--help` fast

    def finished() -> Iterator[tuple[Path, int]]:
        for record in expand(records):
            yield record, ExitCode.PASS

    raise typer.Exit(_report(finished(), as_json, edition, convention))


def _report(
    runs: Iterable[tuple[Path, int]], as_json: bool, edition: str | None = None, convention: str = "analytic"
) -> int:
    """Score `runs` = (record, exit code of its job) as they come, and print the outcome; returns the exit code.

    Whatever fails, stdout ends with a verdict, or is one JSON document.
    """
    from hpcai500.results.outcome import CommandOutcome, RunOutcome  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.score import score_record  # noqa: PLC0415

    outcomes: list[RunOutcome] = []
    ended = CommandOutcome(outcomes)
    try:
        for record, code in runs:
            if code != ExitCode.PASS:
                outcomes.append(RunOutcome(record, error=job_error(record), exit_code=code))
                continue
            try:
                outcomes.append(RunOutcome(record, score_record(record, edition, convention)))
            except HpcAi500Error as error:
                outcomes.append(RunOutcome(record, error=tell(error), exit_code=error.exit_code))
    except HpcAi500Error as error:
        ended = CommandOutcome(outcomes, tell(error), error.exit_code)
    except KeyboardInterrupt:
        ended = CommandOutcome(outcomes, tell("stopped by Ctrl-C"), ExitCode.RUN_FAILED)
    print(json.dumps(ended.document()) if as_json else "\n".join(ended.lines()))  # noqa: T201
    return ended.exit_code
