"""`hpcai500 replicate`: repeat somebody's submission, and say whether it came out the same."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hpcai500.cli.options import Json, Set
from hpcai500.errors import UsageError
from hpcai500.streams import say, show


def replicate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `hpcai500 submit` wrote: the original.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Lay out there.  [default: FILE-replication, beside it]"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the same data set here. Needed unless hpcai500 has made the data.")
    ] = None,
    set_: Set = None,
    same_seeds: Annotated[
        bool, typer.Option("--same-seeds", help="Take the original's seeds.  [default: as many others]")
    ] = False,
    repetition: Annotated[
        Path | None,
        typer.Option("--with", metavar="CAMPAIGN|FILE", help="Compare with this repetition; lay out nothing."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="With --with: speed may differ by this share of the original.")
    ] = 0.05,
    quality_tolerance: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="The same of quality.  [default: what changes VFLOPS by --tolerance]"),
    ] = None,
    signers: Annotated[
        Path | None, typer.Option(metavar="ALLOWED_SIGNERS", help="Keys that you vouch for: others are refused.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Repeat a submission, on the same system or another one: docs/replication.md.

    The submission is verified first, as by `hpcai500 verify`. Then DIR gets its recipe, a new campaign of as many runs,
    and a README.md: image and version to fetch, fingerprint of the data, launch lines, what differs here. For another
    system: --set hardware.nodes=2 and the like.

    When the runs are done, --with compares: means and variations of both, the difference of the means with its 95 %
    interval, and a verdict. Exit code 0 if it is `replicated`; 2 if it is not, or if that cannot be told.
    """
    if repetition is None:
        _lay_out(file, output, data, set_ or [], same_seeds=same_seeds, signers=signers, as_json=as_json)
        return
    for option, given in (("-o", output), ("--data", data), ("--set", set_), ("--same-seeds", same_seeds)):
        if given:
            raise UsageError(f"--with compares and lays out nothing: leave out {option}")
    from hpcai500.progress import track  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.replication.comparison import compare_sides  # noqa: PLC0415
    from hpcai500.results.replication.side import read_side, read_submission  # noqa: PLC0415
    from hpcai500.results.replication.text import replication_lines  # noqa: PLC0415

    # Before the original is verified, which takes a while.
    if not repetition.exists():
        raise UsageError(f"--with {repetition}: no such campaign (its folder) or submission (its file)")
    original = read_submission(file, signers, track)
    found = compare_sides(original, read_side(repetition, signers, track), tolerance, quality_tolerance)
    show(found.document() if as_json else replication_lines(found))
    raise typer.Exit(found.exit_code)


def _lay_out(
    file: Path,
    output: Path | None,
    data: Path | None,
    settings: list[str],
    *,
    same_seeds: bool,
    signers: Path | None,
    as_json: bool,
) -> None:
    from hpcai500.progress import track  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.replication.data import require_data  # noqa: PLC0415
    from hpcai500.results.replication.plan import PlanRequest, plan_replication  # noqa: PLC0415
    from hpcai500.results.replication.side import read_submission  # noqa: PLC0415
    from hpcai500.results.replication.system_table import this_system  # noqa: PLC0415

    original = read_submission(file, signers, track)
    if warning := require_data(original, data):
        say(f"warning: {warning}")
    folder = output or file.with_name(f"{file.stem}-replication")
    request = PlanRequest(folder, data, settings, same_seeds)
    plan = plan_replication(original, request, this_system(), _launch_line)
    document = {
        "folder": str(plan.folder),
        "campaign": str(plan.campaign.path),
        "identity": plan.campaign.identity,
        "trials": [{"trial": one.trial, "seed": one.seed} for one in plan.campaign.trials],
        "guide": str(plan.guide),
    }
    lines = [
        f"verified    {file}",
        f"campaign    {plan.campaign.path}: {len(plan.campaign.trials)} runs planned",
        f"identity    {plan.campaign.identity}",
        f"guide       {plan.guide}",
    ]
    show(document if as_json else lines)


def _launch_line(launcher: str, nodes: int, per_node: int, campaign: Path) -> str:
    """The line that runs `campaign`; names of hosts, where a launcher needs them, are for the user to fill in."""
    from hpcai500.launch.launchers import Layout, horovodrun, mpirun, srun, torchrun  # noqa: PLC0415

    command = ["hpcai500", "campaign", "run", str(campaign)]
    hosts = [f"HOST{number}" for number in range(1, nodes + 1)] if nodes > 1 else []
    match launcher:
        case "srun" | "slurm":
            tokens = srun(Layout(nodes, per_node), command)
        case "mpirun":
            tokens = mpirun(Layout(nodes, per_node, hosts), command)
        case "horovodrun":
            tokens = horovodrun(Layout(nodes, per_node, hosts), command)
        case "torchrun":
            tokens = torchrun(Layout(nodes, per_node, hosts), command)
        case _:
            tokens = [*command, *(["--procs", str(per_node)] if nodes == 1 and per_node > 1 else [])]
            tokens = srun(Layout(nodes, per_node), command) if nodes > 1 else tokens
    return shlex.join(tokens)
