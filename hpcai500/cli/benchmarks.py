"""`hpcai500 ic`, `ewa` and `score`: runs, and what they amount to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.estimate import EstimateOption, MachineOption, estimate, is_estimate
from hpcai500.cli.options import Input, InputKind, Json, Out, Oversubscribe, Power, Procs, Resume, Set, Trials
from hpcai500.cli.running import report_runs, run_and_report
from hpcai500.errors import ExitCode

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew
    from hpcai500.launch.outcome import Outcome


def ic(
    recipe: Annotated[str | None, typer.Option(help="TOML file, or ic/smoke, ic/reference.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with train/<class>/*.JPEG and val/<class>/*.JPEG.")] = None,
    out: Out = None,
    set_: Set = None,
    input_: Input = InputKind.FILES,
    trials: Trials = 1,
    resume: Resume = False,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
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
    run_named("ic", recipe, data, out, [*(set_ or ()), *input_.overrides], trials, resume, procs, power, as_json)


def ewa(
    recipe: Annotated[str | None, typer.Option(help="TOML file, or ewa/smoke, ewa/reference.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with climo_YYYY.h5, a file for each year.")] = None,
    out: Out = None,
    set_: Set = None,
    input_: Input = InputKind.FILES,
    trials: Trials = 1,
    resume: Resume = False,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
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
    run_named("ewa", recipe, data, out, [*(set_ or ()), *input_.overrides], trials, resume, procs, power, as_json)


def run_named(
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
    """Run a benchmark as its command was asked to, and print what comes of it; ends the command."""
    from hpcai500.launch.benchmark import Request, run_benchmark  # noqa: PLC0415 - keeps `--help` fast

    def runs(crew: Crew) -> Iterator[Outcome]:
        yield from run_benchmark(Request(benchmark, recipe, data, out, settings, trials, resume, power), crew)

    run_and_report(runs, procs, as_json)


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

    raise typer.Exit(report_runs(finished(), as_json, edition, convention))
