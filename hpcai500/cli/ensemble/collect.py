"""`hpcai500 ensemble collect`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.ensemble.options import Folder
from hpcai500.cli.options import Json
from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.stopping import why_stopped
from hpcai500.streams import show, tell

if TYPE_CHECKING:
    from hpcai500.ensemble.collect import Collected


def collect(
    folder: Folder,
    accept_incomplete: Annotated[
        bool,
        typer.Option("--accept-incomplete", help="Have those who are there vote; it says so, and is never rankable."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Have the members vote, and say what the ensemble amounts to: FLOPS, VFLOPS, quality (V3.0 section 3.5).

    A member counts if its record is the one that its journal vouches for, of the planned recipe, seed and data. While
    one is missing, nobody votes, and the command ends with 1 and INVALID. It writes DIR/vote.json, result.json and
    pictures; collecting again gives the same, and counts members that have come since. It needs no accelerator. Two
    that collect at once wait for each other.

    Exit codes: 0, target reached; 2, target missed; 1, members are missing or the vote failed; 64, DIR is no ensemble,
    or cannot be written.
    """
    raise typer.Exit(report_collected(folder, as_json, accept_incomplete=accept_incomplete))


def report_collected(folder: Path, as_json: bool, *, accept_incomplete: bool = False) -> int:
    """Collect the ensemble in `folder`, print what it amounts to, and return the exit code of the command."""
    from hpcai500.ensemble.collect import CollectOrder, collect_ensemble  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.progress import track  # noqa: PLC0415

    order = CollectOrder(folder, accept_incomplete)
    return report(lambda: collect_ensemble(order, track), as_json, accept_incomplete=accept_incomplete)


def report(collected: Callable[[], Collected], as_json: bool, *, accept_incomplete: bool = False) -> int:
    """Print what `collected` gives, or why it gives nothing, and return the exit code of the command."""
    from hpcai500.ensemble.show import CollectReport  # noqa: PLC0415 - keeps `--help` fast

    try:
        told = CollectReport(collected(), accept_incomplete)
    except HpcAi500Error as error:
        told = CollectReport(None, error=tell(error), error_code=error.exit_code)
    except KeyboardInterrupt as error:
        told = CollectReport(None, error=tell(why_stopped(error)), error_code=ExitCode.RUN_FAILED)
    show(told.document() if as_json else told.lines())
    return told.exit_code
