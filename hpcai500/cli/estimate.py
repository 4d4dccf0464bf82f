"""`hpcai500 ic --estimate` and `ewa --estimate`: node-hours, time and energy of a run that is not made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.ranks import on_ranks
from hpcai500.errors import ExitCode, UsageError
from hpcai500.placement import find_placement
from hpcai500.streams import show

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew
    from hpcai500.launch.estimate import EstimateRequest
    from hpcai500.results.estimate import Estimate

EstimateOption = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Run nothing: print what the reference run (or --recipe) will take in time, node-hours and energy. A "
        "quick look that is never scored: exit 0, no RESULT line.",
    ),
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="FILE|NAME",
        help="With --estimate: a machine file, a shipped one (v100-64) or what `hpcai500 micro -o` wrote.  [default: "
        "some steps are timed here]",
    ),
]


def is_estimate(wanted: bool, machine: str | None, of_runs: Mapping[str, object]) -> bool:
    """Whether an estimate is asked for; `of_runs` are the options that only a run has, and what was given.

    Raises:
        UsageError: options contradict each other.
    """
    if machine is not None and not wanted:
        raise UsageError("--machine: a run takes place on this machine; add --estimate to ask what it will take there")
    given = [name for name, value in of_runs.items() if value]
    if wanted and given:
        raise UsageError(f"--estimate runs nothing: leave out {', '.join(given)}")
    return wanted


def estimate(
    benchmark: str,
    recipe: str | None,
    settings: list[str] | None,
    machine: str | None,
    procs: int | None,
    as_json: bool,
) -> None:
    """Print the estimate; ends the command.

    Raises:
        HpcAi500Error: it cannot be made.
    """
    from hpcai500.launch.estimate import EstimateRequest  # noqa: PLC0415 - keeps `--help` fast

    request = EstimateRequest(benchmark, recipe, settings or ())
    if machine is None:
        on_ranks(procs, lambda crew: _print(_here(request, crew), as_json))
        return
    _print(_elsewhere(request, machine), as_json)


def _here(request: EstimateRequest, crew: Crew) -> Estimate:
    from hpcai500.launch.estimate import measured_here, planned_here  # noqa: PLC0415
    from hpcai500.results.estimate import estimate_here, require_known_data  # noqa: PLC0415

    setting = planned_here(request, crew)
    # Before anything is timed, which takes a minute.
    require_known_data(setting.recipe)
    return estimate_here(request.recipe_name, setting.recipe, measured_here(setting, crew))


def _elsewhere(request: EstimateRequest, name: str) -> Estimate:
    from hpcai500.launch.estimate import planned_on  # noqa: PLC0415
    from hpcai500.methodology.cost.facts import StepFacts  # noqa: PLC0415
    from hpcai500.results.estimate import estimate_on  # noqa: PLC0415
    from hpcai500.results.given_files import given_machine  # noqa: PLC0415

    machine, sources = given_machine(name)
    recipe, document = planned_on(request, machine, find_placement(os.environ))
    return replace(estimate_on(machine, request.recipe_name, recipe, StepFacts.of(document)), sources=sources)


def _print(estimate: Estimate, as_json: bool) -> int:
    show(estimate.document() if as_json else estimate.lines())
    return ExitCode.PASS
