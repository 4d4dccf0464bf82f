"""`hpcai500 campaign …`: all runs of a result, fixed before the first of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.options import Json, Oversubscribe, Power, Procs, Set
from hpcai500.cli.ranks import on_ranks
from hpcai500.cli.running import run_and_report
from hpcai500.errors import ExitCode
from hpcai500.streams import say, show

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew
    from hpcai500.launch.outcome import Outcome

app = typer.Typer(
    help="Plan all runs of a result before the first, run them, and see whether they can be ranked.",
    rich_markup_mode=None,
    add_completion=False,
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the campaign.")]


@app.callback()
def _campaign() -> None:
    """Plan all runs of a result before the first, run them, and see whether they can be ranked (docs/campaigns.md)."""


@app.command(short_help="Fix recipe, number of runs and seeds.")
def init(
    folder: Folder,
    recipe: Annotated[str, typer.Option(metavar="R", help="TOML file, or a shipped recipe: ic/reference.")],
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs, each with its own seed.  [default: two more than the edition's least runs, because the highest "
            "and the lowest are dropped: ic 12, ewa 7]",
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set, the same on every node.")] = None,
    set_: Set = None,
    procs: Procs = None,
    as_json: Json = False,
) -> None:
    """Fix a campaign in DIR: recipe, number of runs, seeds. Nothing is run.

    Prints the campaign's identity: register it with your committee. Whoever is told of it before the first run can
    check later that this plan was made first. To show that no better copy was chosen, send the heads (campaign heads).

    Plan for the ranks that will run it: `--procs N` on one machine; for a cluster, `--set hardware.nodes=4 --set
    hardware.accelerators_per_node=8 --set communication.backend=torch`, or call this by the launcher of the runs.
    """
    from hpcai500.launch.campaign_plan import PlanRequest, plan_campaign  # noqa: PLC0415 - keeps `--help` fast

    def body(crew: Crew) -> int:
        plan = plan_campaign(PlanRequest(folder, recipe, trials, data, set_ or ()), crew)
        for warning in plan.warnings:
            say(f"warning: {warning}")
        show(plan.document() if as_json else plan.lines())
        return ExitCode.PASS

    on_ranks(procs, body)


@app.command(short_help="Run what is not done yet.")
def run(
    folder: Folder,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    power: Power = "auto",
    only: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Run this trial alone, for example one in each Slurm job."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the data set lies now.  [default: where the plan says]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run what is not done yet, one run after the other; the same command goes on after whatever has stopped it.

    Each attempt is in the campaign's journal before it begins. One that was stopped or killed is gone on with; one that
    ended before there was anything to go on with is kept, and another attempt is made. As each attempt begins and
    ends, stderr gets a line HPCAI500 HEAD: send it to your committee at once (docs/campaigns.md).

    On several machines, start it by a launcher, as `ic`: srun hpcai500 campaign run DIR (docs/launching.md).
    """
    from hpcai500.launch.campaign import CampaignOrder, run_campaign  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.system.power.choice import parse_power  # noqa: PLC0415

    def runs(crew: Crew) -> Iterator[Outcome]:
        crew.open()
        order = CampaignOrder(folder, data, only, str(parse_power(power).from_anywhere()))
        yield from run_campaign(order, crew)

    run_and_report(runs, procs, as_json)


@app.command(short_help="All attempts, the means, and whether it can be ranked.")
def status(folder: Folder, as_json: Json = False) -> None:
    """Show every attempt, the means with their variation, and whether the campaign can be ranked, or why not.

    The end of an attempt that was killed is written into the journal by this, too; stderr has its head.
    """
    from hpcai500.campaign.attempts import settle  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.campaign.heads import heads_of  # noqa: PLC0415
    from hpcai500.campaign.reading import read_campaign  # noqa: PLC0415
    from hpcai500.campaign.standing import standing  # noqa: PLC0415
    from hpcai500.results.campaign_status import CampaignStatus  # noqa: PLC0415
    from hpcai500.rulebook import rulebook  # noqa: PLC0415

    before = read_campaign(folder)
    campaign = settle(before, rulebook(before.edition, before.benchmark))
    for head in heads_of(campaign)[len(before.events) - 1 :]:
        say(str(head), prefix="")
    shown = CampaignStatus(campaign, standing(campaign))
    show(shown.document() if as_json else shown.lines())


@app.command(short_help="What the committee is sent while it runs.")
def heads(folder: Folder) -> None:
    """Print the head of each line of the journal: HPCAI500 HEAD, identity, number of the line, hash.

    A committee that was sent each of them when its line was written sees that this copy of the campaign was not chosen
    by its results: `hpcai500 verify FILE --heads HEADS` (docs/campaigns.md).
    """
    from hpcai500.campaign.heads import heads_of  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.campaign.reading import read_campaign  # noqa: PLC0415

    show(map(str, heads_of(read_campaign(folder))))
