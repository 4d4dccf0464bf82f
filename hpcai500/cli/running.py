"""Commands that run or score runs: the crew that runs them, and the one verdict that is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.placement import find_placement
from hpcai500.stopping import why_stopped
from hpcai500.streams import show, tell

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew
    from hpcai500.launch.outcome import Outcome


def run_and_report(runs: Callable[[Crew], Iterator[Outcome]], procs: int | None, as_json: bool) -> None:
    """Where rank 0 is, run `runs` with its crew and print what they amount to; elsewhere, do what rank 0 asks for.

    Ends the command on all ranks, with its exit code.
    """
    from hpcai500.launch.crew import crew_of  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.launch.follower import follow  # noqa: PLC0415

    try:
        placement = find_placement(os.environ)
    except HpcAi500Error as error:
        raise typer.Exit(report_runs(failing(error), as_json)) from error
    if placement.rank > 0:
        raise typer.Exit(follow(placement))
    crew = crew_of(placement, procs)
    code = report_runs(((run.record, run.exit_code) for run in runs(crew)), as_json)
    # A launcher ends all copies when one ends with a failure: what is printed is out before.
    sys.stdout.flush()
    crew.end(code)
    raise typer.Exit(code)


def job_error(record: Path) -> str | None:
    """What the job wrote about its end; it has told the user already."""
    path = record / "ERROR"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def failing(error: HpcAi500Error) -> Iterator[tuple[Path, int]]:
    """Runs that ended before the first one."""
    yield from ()
    raise error


def report_runs(
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
    except KeyboardInterrupt as error:
        ended = CommandOutcome(outcomes, tell(why_stopped(error)), ExitCode.RUN_FAILED)
    show(ended.document() if as_json else ended.lines())
    return ended.exit_code
