"""`hpcai500 ensemble …`: plan many base models that vote, run them on a cluster or here, collect the vote (V3.0)."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.options import (
    Json,
    Oversubscribe,
    Power,
    Procs,
    Set,
    add_command,
    new_group,
    on_ranks,
    recipes_with,
    report_error,
)
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error, RunError, UsageError
from hpcai500.stopping import Stopped
from hpcai500.streams import lost_output, say, show

if TYPE_CHECKING:
    from hpcai500.ensemble.collect import Collected
    from hpcai500.ensemble.journal import Ensemble
    from hpcai500.ensemble.local import RunEnd
    from hpcai500.ensemble.scheduler import Scheduler
    from hpcai500.ensemble.status import Watch
    from hpcai500.launch.launcher import Launcher


# ----------------------------------------------------------------------------------------------------
# Options that several commands of an ensemble have.


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the ensemble.")]
Members = Annotated[
    str | None, typer.Option("--member", metavar="LIST", help="Only these members: 3, 0-7 or 1,4-6.  [default: all]")
]
AtOnce = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Members at the same time.  [default: as many as fit]")
]


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ensemble cancel`.


_MOST_NAMES = 16


def cancel(folder: Folder) -> None:
    """Cancel all jobs of an ensemble in Slurm; running members stop with a checkpoint.

    Waiting jobs leave the queue, and nothing is collected. A member that has not stopped after the site's warning time
    is killed: its last checkpoint is kept. `hpcai500 ensemble submit DIR` continues.
    """
    from hpcai500.ensemble.journal import append, read_ensemble
    from hpcai500.ensemble.slurm import SlurmScheduler, last_site

    ensemble = read_ensemble(folder)
    scheduler = SlurmScheduler(last_site(ensemble), os.environ)
    jobs = scheduler.in_queue(ensemble)
    if not jobs:
        show("cancelled  nothing: no job of this ensemble is in the queue")
        return
    # Before any job ends, for a command that collects meanwhile.
    ensemble = append(ensemble, "cancel", {"jobs": list(jobs)})
    ended = scheduler.cancel(ensemble)
    more = " …" if len(ended) > _MOST_NAMES else ""
    show(f"cancelled  {len(ended)} job{'s' * (len(ended) > 1)}: {', '.join(ended[:_MOST_NAMES])}{more}")
    say(f"to continue: hpcai500 ensemble submit {shlex.quote(str(folder))}")


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ensemble collect`.


def collect(
    folder: Folder,
    accept_incomplete: Annotated[
        bool,
        typer.Option("--accept-incomplete", help="Let the available members vote; the result is never rankable."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Let the members vote, and print the result of the ensemble: FLOPS, VFLOPS, quality (V3.0 section 3.5).

    A member counts if its record matches its journal and has the planned recipe, seed and data. If one is missing,
    there is no vote, and the command ends with 1 and INVALID. It writes DIR/vote.json, result.json and pictures;
    collecting again gives the same, and includes members that finished since. It needs no accelerator. Only one
    process collects at a time; others wait.

    Exit codes: 0, target reached; 2, target missed; 1, members are missing or the vote failed; 64, DIR is not an
    ensemble, or cannot be written.
    """
    raise typer.Exit(report_collected(folder, as_json, accept_incomplete=accept_incomplete))


def report_collected(folder: Path, as_json: bool, *, accept_incomplete: bool = False) -> int:
    """Collect the ensemble in `folder`, print the result, and return the exit code of the command."""
    from hpcai500.ensemble.collect import CollectOrder, collect_ensemble  # keeps `--help` fast
    from hpcai500.progress import track

    order = CollectOrder(folder, accept_incomplete)
    return _report(lambda: collect_ensemble(order, track), as_json, accept_incomplete=accept_incomplete)


def _report(collected: Callable[[], Collected], as_json: bool, *, accept_incomplete: bool = False) -> int:
    """Print the result of `collected`, or why there is none, and return the exit code of the command."""
    from hpcai500.ensemble.collect import CollectReport  # keeps `--help` fast

    try:
        report = CollectReport(collected(), accept_incomplete)
    except (HpcAi500Error, KeyboardInterrupt) as error:
        text, code = report_error(error)
        report = CollectReport(None, error=text, error_code=code)
    show(report.document() if as_json else report.lines())
    return report.exit_code


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ensemble member`.


def member(
    folder: Folder,
    number: Annotated[int, typer.Option("--member", min=0, metavar="K", help="Which one, from 0.")],
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    power: Power = "auto",
) -> None:
    """Run one member, or resume it if it was stopped or killed.

    On several ranks, start it by a launcher: srun hpcai500 ensemble member DIR --member 3 (docs/launching.md). Exit
    codes: 0, the member is done, whatever its quality; 1, it failed, and may be run again; 2, it diverged, which is
    final; 64 or 69, it cannot be run like this, or not here.
    """
    from hpcai500.ensemble.member import MemberOrder, run_member  # keeps `--help` fast
    from hpcai500.system.power import parse_power

    def body(launcher: Launcher) -> int:
        return run_member(MemberOrder(folder, number, str(parse_power(power).from_anywhere())), launcher)

    on_ranks(procs, body)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ensemble plan`.


def plan(
    folder: Folder,
    recipe: Annotated[
        str,
        typer.Option(help="TOML file, or a shipped recipe: ic/ensemble, ic/smoke.", autocompletion=recipes_with),
    ],
    members: Annotated[
        int | None, typer.Option(min=1, metavar="M", help="Base models.  [default: scale / degree, or the recipe's]")
    ] = None,
    degree: Annotated[
        int | None,
        typer.Option(min=1, metavar="P", help="Accelerators per member.  [default: the recipe's, or those of a node]"),
    ] = None,
    scale: Annotated[
        int | None, typer.Option(min=1, metavar="S", help="Accelerators of all members together.  [default: M x P]")
    ] = None,
    node_accelerators: Annotated[
        int | None,
        typer.Option(min=1, metavar="A", help="Accelerators (on CPUs, ranks) per node.  [default: the recipe's]"),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Names of the nodes, n[1-8], for DIR/plan.toml; Slurm chooses its own."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data set, the same on every node.  [default: synthetic data]")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="First copy the members' data to this folder of each node; it may contain variables of the node: "
            "'$TMPDIR'.  [default: do not copy]",
        ),
    ] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Plan an ensemble in DIR: the number of members, the accelerators of each, the seeds. Nothing is trained.

    Sys_scale = M x P_degree (V3.0 Eq. 5): an omitted value of --scale, --members and --degree is computed from the
    others; for an impossible combination, the error names the nearest possible one. DIR/plan.toml maps members to
    nodes.

    hpcai500 ensemble plan DIR --recipe ic/ensemble --scale 64 --data /data/imagenet
    """
    from hpcai500.ensemble.planning import PlanRequest, plan_ensemble  # keeps `--help` fast

    request = PlanRequest(folder, recipe, members, degree, scale, node_accelerators, hosts, data, stage, set_ or ())
    planned = plan_ensemble(request)
    show(planned.document() if as_json else planned.lines())


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ensemble run`.


def run(
    folder: Folder,
    members: Members = None,
    at_once: AtOnce = None,
    power: Power = "auto",
    collect: Annotated[bool, typer.Option(help="Collect when all members are done.")] = True,
    as_json: Json = False,
) -> None:
    """Run all unfinished members on this machine, each on its own cores or accelerators, then collect.

    If it is stopped, the same command continues. The output of a member goes to DIR/members/NNNNN/output.txt. A member
    that fails is run again from its checkpoint.
    """
    from hpcai500.ensemble.collect import CollectOrder, collect_ensemble
    from hpcai500.ensemble.journal import read_ensemble
    from hpcai500.ensemble.local import RunOrder, run_ensemble, starting_line
    from hpcai500.ensemble.status import Live
    from hpcai500.progress import track
    from hpcai500.system.power import parse_power

    if as_json and not collect:
        raise UsageError("--json --no-collect: --json prints the collected result: leave one of them out")

    def trained() -> RunEnd:
        ensemble = read_ensemble(folder)
        order = RunOrder(folder, members, at_once, str(parse_power(power).from_anywhere()))
        with Live(ensemble, ensemble.shape.members) as live:
            end = run_ensemble(
                order, lambda _, jobs: live.update(jobs), lambda left: say(starting_line(ensemble, left))
            )
        if end.stopped:
            raise RunError(
                f"stopped; nothing is lost: continue with `hpcai500 ensemble run {shlex.quote(str(folder))}`"
            )
        return end

    def collected() -> Collected:
        trained()
        say(f"collecting {folder}: reads the members' records, then lets the members vote")
        return collect_ensemble(CollectOrder(folder), track)

    if collect:
        raise typer.Exit(_report(collected, as_json))
    raise typer.Exit(ExitCode.RUN_FAILED if trained().failed else ExitCode.PASS)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ensemble status`.


# With fewer members, a progress bar would be too short to see.
_MANY = 1000


def status(
    folder: Folder,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Refresh it until all have ended, or Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(min=1.0, metavar="SECONDS", help="Refresh interval of --follow; longer if Slurm is busy."),
    ] = 10.0,
    everyone: Annotated[
        bool, typer.Option("--all", help="Show a row for each member, however many there are.")
    ] = False,
    site: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Site file, as for submit.  [default: none]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the status of all members: waiting, running, done or in trouble, progress, speed and time left.

    Each refresh asks Slurm once (squeue, sacct) and reads the members' records. Nothing is written. If no scheduler
    responds, the status comes from the records only. With more members than rows, those in trouble and the slowest are
    shown.

    Exit codes: 0, all members are done or going on; 2, a member has failed, diverged or is lost.
    """
    from hpcai500.ensemble.status import Watch  # keeps `--help` fast
    from hpcai500.progress import is_ascii, is_terminal, silent, track

    if following and as_json:
        raise UsageError("--follow --json: --json prints one document: leave one of them out")
    watch = Watch(folder, {"slurm": lambda: slurm_of(site)})
    if following:
        raise typer.Exit(_follow(watch, interval))
    found = watch.look_at_all(track if watch.members > _MANY else silent)
    if as_json:
        show(found.document())
    else:
        width = shutil.get_terminal_size((100, 24)).columns if is_terminal(sys.stdout) else None
        lines = found.lines(width, None if everyone else 20, ascii_only=is_ascii(sys.stdout))
        show(lines)
    raise typer.Exit(found.exit_code)


def _follow(watch: Watch, interval: float) -> int:
    from hpcai500.ensemble.status import Screen, Status, follow
    from hpcai500.progress import is_terminal

    def display(status: Status) -> None:
        screen.show(status)
        if lost_output("stdout"):
            # Nobody watches any more.
            raise typer.Exit

    try:
        with Screen(sys.stdout, interval, prefix="") as screen:
            found = follow(watch, display, interval)
    except KeyboardInterrupt as error:
        if isinstance(error, Stopped) and error.number != signal.SIGINT:
            raise
        return ExitCode.PASS
    if not is_terminal(sys.stdout):
        show(found.lines())
    return found.exit_code


@cache
def slurm_of(site: str | None) -> Scheduler:
    """Slurm as the site file describes it, created once."""
    from hpcai500.ensemble.slurm import SlurmScheduler
    from hpcai500.launch.slurm.site import Site, load_site

    return SlurmScheduler(load_site(site) if site else Site())


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ensemble submit`.


def submit(
    folder: Folder,
    site: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Site file: partition, ranks per node, launcher, image.  [default: that of the last submission, or "
            "srun, in the image that this command runs in]",
        ),
    ] = None,
    at_once: AtOnce = None,
    members: Members = None,
    exclude: Annotated[str | None, typer.Option(metavar="HOSTS", help="Do not use these hosts: n7,n[10-12].")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the scripts, but submit nothing.")] = False,
    after: Annotated[str | None, typer.Option(hidden=True)] = None,
    queued: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Submit all unfinished members to Slurm, one element of a job array each, and a job that collects.

    DIR/slurm/ has the scripts, which you may read and change. Slurm's commands are on the host: inside the image, this
    prints the command to type there. A member that is warned before its time limit stops with a checkpoint and is
    queued again; one that fails is run again, on other nodes if necessary. Site files: hpcai500 slurm example.

    hpcai500 ensemble submit DIR --site mysite.toml --at-once 8
    """
    from hpcai500.ensemble.journal import read_ensemble  # keeps `--help` fast
    from hpcai500.ensemble.slurm import SlurmScheduler, SubmitRequest, plan_submission, warnings_of, write_submission
    from hpcai500.system.container import find_container

    ensemble = read_ensemble(folder)
    if queued is not None:
        _write_submission(ensemble, queued, members, at_once, exclude, after)
        return
    command = ["hpcai500", *sys.argv[1:]]
    request = SubmitRequest(os.environ, site, members, at_once, exclude, after, command)
    submission = plan_submission(ensemble, request)
    if submission is None:
        say("nothing to submit: no member is missing" if after is None else "no member needs to, or can, run again")
        return
    script = write_submission(submission)
    for warning in warnings_of(submission):
        say(f"warning: {warning}")
    scheduler = SlurmScheduler(submission.site, os.environ)
    if not (dry_run or scheduler.can_submit or find_container(os.environ)):
        name = shlex.quote(str(folder))
        raise EnvironmentLacksError(
            f"no sbatch here: on a host of the cluster, type: {_line(script)}; or run the members on this machine: "
            f"hpcai500 ensemble run {name}"
        )
    if dry_run or not scheduler.can_submit:
        say("submit it on the host:")
        show(_line(script))
        return
    *arrays, collector = scheduler.queue(ensemble, script)
    count = len(submission.members)
    show(f"submitted  {count} member{'s' * (count > 1)} as job {', '.join(arrays)}; job {collector} collects")
    say(f"to follow them: hpcai500 ensemble status {shlex.quote(str(folder))}")


def _write_submission(
    ensemble: Ensemble, queued: str, members: str | None, at_once: int | None, exclude: str | None, after: str | None
) -> None:
    """Write a submission into the journal; called by the script that has submitted."""
    from hpcai500.ensemble.journal import append, parse_members

    value = {
        "scheduler": "slurm",
        "jobs": queued.split(","),
        "members": parse_members(members, ensemble) if members else list(ensemble.members),
        "at_once": at_once,
        "exclude": exclude.split(",") if exclude else [],
        "after": after,
    }
    append(ensemble, "submit", value)


def _line(script: Path) -> str:
    return f"bash {shlex.quote(str(script))}"


# ----------------------------------------------------------------------------------------------------
# The group `hpcai500 ensemble`.


app = new_group(
    "Train many base models, each on a bootstrap of the data, that vote (V3.0, docs/ensemble.md).",
    "hpcai500 ensemble plan DIR --recipe ic/smoke --members 2 && hpcai500 ensemble run DIR",
)
# In this order `hpcai500 ensemble --help` lists them.
add_command(
    app,
    plan,
    "Plan members, accelerators of each, seeds, and hosts.",
    "hpcai500 ensemble plan DIR --recipe ic/ensemble --scale 64 --data /data/imagenet",
)
add_command(app, run, "Run all members on this machine, then collect.", "hpcai500 ensemble run DIR")
add_command(
    app,
    submit,
    "Submit all members to Slurm, a job each; then collect.",
    "hpcai500 ensemble submit DIR --site mysite.toml",
)
add_command(app, status, "Show the status of all members; live with --follow.", "hpcai500 ensemble status DIR --follow")
add_command(app, collect, "Let the members vote, and print the result.", "hpcai500 ensemble collect DIR")
add_command(app, cancel, "Cancel all Slurm jobs; members stop with a checkpoint.", "hpcai500 ensemble cancel DIR")
add_command(app, member, "Run one member; called by cluster jobs.", "hpcai500 ensemble member DIR --member 3")
