"""`hpcai500 ensemble …`: many base models that vote, planned, run on a cluster or here, and collected (V3.0)."""

from __future__ import annotations

import typer

from hpcai500.cli.ensemble.cancel import cancel
from hpcai500.cli.ensemble.collect import collect
from hpcai500.cli.ensemble.member import member
from hpcai500.cli.ensemble.plan import plan
from hpcai500.cli.ensemble.run import run
from hpcai500.cli.ensemble.status import status
from hpcai500.cli.ensemble.submit import submit

app = typer.Typer(
    help="Many base models, each on a bootstrap of the data, that vote: plan, run or submit, watch, collect (V3.0).",
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def _ensemble() -> None:
    """Many base models, each on a bootstrap of the data, that vote (V3.0, docs/ensemble.md).

    hpcai500 ensemble plan DIR --recipe ic/smoke --members 2 && hpcai500 ensemble run DIR
    """


# In this order `hpcai500 ensemble --help` lists them.
app.command(short_help="Fix members, accelerators of each, seeds, and who runs where.")(plan)
app.command(short_help="Run all members on this machine, then collect.")(run)
app.command(short_help="Have Slurm run all members, a job each, then collect.")(submit)
app.command(short_help="How all members stand: a table, live with --follow.")(status)
app.command(short_help="Vote, and say what the ensemble amounts to.")(collect)
app.command(short_help="End all jobs in Slurm; members stop with a checkpoint.")(cancel)
app.command(short_help="Run one member: what a job of a cluster calls.")(member)
