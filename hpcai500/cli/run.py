"""Commands that run benchmarks: `ic`, `ewa`, plug-ins, `campaign …`; and `demo`, `watch` and `score`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcai500.cli.options import (
    Input,
    InputKind,
    Json,
    Out,
    Oversubscribe,
    Power,
    Procs,
    Restarts,
    Resume,
    Set,
    Trials,
    WithPlugins,
    add_command,
    command_alone,
    new_group,
    on_ranks,
    recipes_with,
    report_error,
    say_next,
)
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.hosts import find_placement
from hpcai500.stopping import Stopped
from hpcai500.streams import lost_output, print_error, say, show
from hpcai500.text import next_lines, text_table

if TYPE_CHECKING:
    from hpcai500.launch.launcher import Launcher, Outcome
    from hpcai500.plugins import Found
    from hpcai500.results.watch import Look


# ----------------------------------------------------------------------------------------------------
# Run or score several runs, and print one verdict.


def run_and_report(runs: Callable[[Launcher], Iterator[Outcome]], procs: int | None, as_json: bool) -> None:
    """On rank 0, run `runs` with its launcher and print the result; on other ranks, do what rank 0 requests.

    Ends the command on all ranks, with its exit code.
    """
    from hpcai500.launch.launcher import launcher_of  # keeps `--help` fast
    from hpcai500.launch.rendezvous import follow

    try:
        placement = find_placement(os.environ)
    except HpcAi500Error as error:
        raise typer.Exit(report_runs(failing(error), as_json)) from error
    if placement.rank > 0:
        raise typer.Exit(follow(placement))
    launcher = launcher_of(placement, procs)
    code = report_runs(((run.record, run.exit_code) for run in runs(launcher)), as_json, with_next=True)
    # A launcher kills all ranks when one fails, so flush the output before.
    sys.stdout.flush()
    launcher.end(code)
    raise typer.Exit(code)


def job_error(record: Path) -> str | None:
    """The error that the job wrote into its record; the job has printed it already."""
    path = record / "ERROR"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def failing(error: HpcAi500Error) -> Iterator[tuple[Path, int]]:
    """Runs that fail with `error` before the first one."""
    yield from ()
    raise error


def report_runs(
    runs: Iterable[tuple[Path, int]],
    as_json: bool,
    edition: str | None = None,
    convention: str = "analytic",
    *,
    with_next: bool = False,
) -> int:
    """Score `runs` = (record, exit code of its job) as they come, and print the outcome; returns the exit code.

    Even after a failure, stdout ends with a verdict, or is one JSON document. `with_next`: print suggested next
    commands on stderr.
    """
    from hpcai500.results.outcome import CommandOutcome, RunOutcome  # keeps `--help` fast
    from hpcai500.results.score import score_record

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
                outcomes.append(RunOutcome(record, error=print_error(error), exit_code=error.exit_code))
    except (HpcAi500Error, KeyboardInterrupt) as error:
        ended = CommandOutcome(outcomes, *report_error(error))
    # Before the result, so that the verdict is the last line if both streams go to one file.
    if with_next and not as_json:
        say_next(ended.next_lines())
    show(ended.document() if as_json else ended.lines())
    return ended.exit_code


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ic --estimate` and `ewa --estimate`: estimate time, node-hours and energy of a run.


def estimate(
    benchmark: str, recipe: str, settings: Sequence[str], machine_name: str | None, procs: int | None, as_json: bool
) -> None:
    """Print the estimate; ends the command.

    Raises:
        HpcAi500Error: it cannot be made.
    """
    from hpcai500.launch.measuring import measured_here, planned_here, planned_on  # keeps `--help` fast
    from hpcai500.methodology.cost import StepFacts
    from hpcai500.results.estimate import estimate_here, estimate_on, require_known_data
    from hpcai500.results.given_files import given_machine

    if machine_name is not None:
        machine, sources = given_machine(machine_name)
        planned, document = planned_on(benchmark, recipe, settings, machine, find_placement(os.environ))
        found = replace(estimate_on(machine, recipe, planned, StepFacts.of(document)), sources=sources)
        show(found.document() if as_json else found.lines())
        return

    def body(launcher: Launcher) -> int:
        setting = planned_here(benchmark, recipe, settings, launcher)
        # Check it before steps are timed, which takes a minute.
        require_known_data(setting.recipe)
        found = estimate_here(recipe, setting.recipe, measured_here(setting, launcher))
        show(found.document() if as_json else found.lines())
        return ExitCode.PASS

    on_ranks(procs, body)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 ic`, `ewa` and benchmarks of plug-ins.


# The heading of commands that run benchmarks.
RUN = "Run"

_IC = """\
Image Classification: train ResNet-50 on JPEG files for its target epochs, and score the run.

Without --recipe and --data it runs the smoke recipe on synthetic images: a few minutes on two cores, not rankable.
With --data it runs the reference recipe. With --estimate it runs nothing, and estimates time and energy
(docs/cost-model.md).

--procs N trains on N ranks of this machine. On several machines, start the command itself by a launcher: `srun
hpcai500 ic …`, mpirun, torchrun or horovodrun; rank 0 prints the result (docs/launching.md).
"""
_EWA = """\
Extreme Weather Analytics: train Faster R-CNN on 16-channel climate years for its target epochs, and score the run.

Without --recipe and --data it runs the smoke recipe on synthetic weather: a few minutes on two cores, not rankable.
With --data it runs the reference recipe. The record contains a picture of detections. With --estimate it runs nothing,
and estimates time and energy (docs/cost-model.md).

--procs N trains on N ranks of this machine. On several machines, start the command itself by a launcher: `srun
hpcai500 ewa …`, mpirun, torchrun or horovodrun; rank 0 prints the result (docs/launching.md).
"""


def benchmark_command(
    name: str, help_of_recipe: str, help_of_data: str, *, can_be_estimated: bool = True
) -> Callable[..., None]:
    """The command of the benchmark `name`: run it, or estimate a run."""
    recipe_option = typer.Option(None, help=help_of_recipe, autocompletion=recipes_with)
    data_option = typer.Option(None, help=help_of_data)
    estimate_option = typer.Option(
        False,
        "--estimate",
        help="Run nothing: estimate time, node-hours and energy of the reference run (or of --recipe). It is never "
        "scored: exit 0, no RESULT line.",
        hidden=not can_be_estimated,
    )
    machine_option = typer.Option(
        None,
        "--machine",
        metavar="FILE|NAME",
        help="With --estimate: a machine file, a shipped one (v100-64) or the output of `hpcai500 micro -o`.  "
        "[default: time some steps here]",
        hidden=not can_be_estimated,
    )

    def benchmark(
        recipe: str | None = recipe_option,
        data: Path | None = data_option,
        out: Out = None,
        set_: Set = None,
        input_: Input = InputKind.FILES,
        trials: Trials = 1,
        resume: Resume = False,
        restarts: Restarts = 0,
        procs: Procs = None,
        oversubscribe: Oversubscribe = False,
        power: Power = "auto",
        estimate_: bool = estimate_option,
        machine: str | None = machine_option,
        as_json: Json = False,
    ) -> None:
        from hpcai500.launch.runs import Request, run_benchmark  # keeps `--help` fast

        if machine is not None and not estimate_:
            raise UsageError("--machine is for estimates only, as a run uses this machine: add --estimate")
        if estimate_:
            given = [option for option, value in (("--data", data), ("--out", out), ("--resume", resume)) if value]
            if given:
                raise UsageError(f"--estimate runs nothing: leave out {', '.join(given)}")
            estimate(name, recipe or f"{name}/reference", set_ or (), machine, procs, as_json)
            return
        settings = [*(set_ or ()), *input_.overrides]

        def runs(launcher: Launcher) -> Iterator[Outcome]:
            request = Request(name, recipe, data, out, settings, trials, resume, power, restarts)
            yield from run_benchmark(request, launcher)

        run_and_report(runs, procs, as_json)

    return benchmark


def add_benchmarks(app: typer.Typer) -> None:
    """Add `ic` and `ewa`."""
    ic = benchmark_command(
        "ic", "TOML file, or ic/smoke, ic/reference.", "Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."
    )
    ewa = benchmark_command(
        "ewa", "TOML file, or ewa/smoke, ewa/reference.", "Folder with climo_YYYY.h5, one file per year."
    )
    for name, command, summary, about, data in (
        ("ic", ic, "Image Classification: from JPEG files to a score.", _IC, "imagenet"),
        ("ewa", ewa, "Extreme Weather Analytics: from HDF5 years to a score.", _EWA, "weather"),
    ):
        add_command(app, command, summary, *_examples(name, data), heading=RUN, name=name, help=about)


def _examples(name: str, data: str) -> tuple[str, ...]:
    return (
        f"hpcai500 {name}                              # the smoke recipe, on synthetic data",
        f"hpcai500 {name} --data /data/{data} --set accelerator.precision=bf16",
        f"srun -N 4 --ntasks-per-node=8 --kill-on-bad-exit=1 hpcai500 {name} --data /data/{data}",
        f"hpcai500 {name} --resume                     # after Ctrl-C, a kill or a full disk",
    )


# ----------------------------------------------------------------------------------------------------
# `hpcai500 demo`: examples of all pages.


def demo(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder, new or empty.")] = Path("hpcai500-demo"),
) -> None:
    """Write example runs and the pages that hpcai500 makes from them, in seconds: nothing is trained.

    They are real, tiny runs of both benchmarks, a campaign, a submission and an ensemble; their reports, comparison,
    ranking and acceptance pages; and index.html, which links them. None of them is rankable.
    """
    from hpcai500.demo.layout import lay_out  # keeps `--help` fast
    from hpcai500.progress import track

    made = lay_out(folder, track)
    show(text_table("", [(str(folder / one.path), one.sentence) for one in made]))
    show(["", f"Open {folder / 'index.html'} in a browser. Try a command on the records:"])
    steps = (
        (("score", folder / "ic"), "the result of a run"),
        (("campaign", "status", folder / "campaign"), "all runs, and why they are not rankable"),
        (("verify", folder / "submission.zip"), "why it is refused"),
        (("watch", folder / "ewa"), "the progress of a run"),
    )
    show(next_lines(steps))


# ----------------------------------------------------------------------------------------------------
# `hpcai500 watch`: the progress of a run, during the run and afterwards.


_STYLES = {
    r"\b(ended without a result|silent|failed|lost|diverged)\b": "bold red",
    r"\b(training|evaluating|running)\b": "green",
}


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="RECORD|CAMPAIGN|ENSEMBLE", help="Folder of a run, campaign or ensemble.")
    ],
    interval: Annotated[float, typer.Option(min=0.5, metavar="SECONDS", help="Refresh interval.")] = 2.0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page that refreshes itself.")
    ] = None,
) -> None:
    """Show the progress of a run, live: step, epoch, loss, rate, time left, stragglers, watts.

    It only reads the files of the record, so it works on any machine that sees the folder. Ctrl-C ends `watch`, not the
    run. A run that has ended is shown once. If stdout is not a terminal, each change is a line.
    """
    from hpcai500.progress import Redrawn, is_terminal  # keeps `--help` fast
    from hpcai500.results.watch import follow

    is_live = is_terminal(sys.stdout)
    screen, last = Redrawn(sys.stdout, _STYLES), [""]

    def display(look: Look) -> None:
        if look.is_over and not last[0]:
            show(look.lines)
        elif is_live:
            screen.draw(look.lines)
        elif look.headline != last[0]:
            say(look.headline, prefix="", stream=sys.stdout)
        last[0] = look.headline
        if html is None and lost_output("stdout"):
            # Nobody watches any more.
            raise typer.Exit

    try:
        follow(_looker(folder), display, interval, html)
    except KeyboardInterrupt as error:
        if isinstance(error, Stopped) and error.number != signal.SIGINT:
            raise
        screen.close()
        say(f"stopped watching; the run goes on. To watch again: hpcai500 watch {shlex.quote(str(folder))}")
    finally:
        screen.close()


def _looker(folder: Path) -> Callable[[], Look]:
    from hpcai500.ensemble.journal import is_ensemble  # keeps `--help` fast
    from hpcai500.results.watch import Look, watch_of

    if not is_ensemble(folder):
        return watch_of(folder).look
    from hpcai500.cli.ensemble import slurm_of
    from hpcai500.ensemble.status import Watch, headline, lines_for

    members = Watch(folder, {"slurm": lambda: slurm_of(None)})

    def look() -> Look:
        found = members.look()
        is_over = not found.is_going_on and not found.states["unread"]
        return Look(folder, is_over, headline(found), tuple(lines_for(sys.stdout, found)), found.progress)

    return look


def score(
    records: Annotated[list[Path], typer.Argument(help="Folders of records.")],
    edition: Annotated[str | None, typer.Option(help="Score by this edition of the rules.")] = None,
    convention: Annotated[str, typer.Option(help="How to count operations: analytic, or paper.")] = "analytic",
    as_json: Json = False,
) -> None:
    """Compute the score of records again, from their events."""
    from hpcai500.results.score import expand  # keeps `--help` fast

    def finished() -> Iterator[tuple[Path, int]]:
        for record in expand(records):
            yield record, ExitCode.PASS

    raise typer.Exit(report_runs(finished(), as_json, edition, convention))


# ----------------------------------------------------------------------------------------------------
# Benchmarks of plug-ins as commands, like `hpcai500 ic`. A plug-in is imported only when its command is run.


_HELP = """\
Benchmark {name} of the plug-in {package} {version}. {summary}

Without --recipe and --data it runs the plug-in's smoke recipe on synthetic data, if it has them. Otherwise it works
like `hpcai500 ic`; no edition ranks it (docs/plugins.md).
"""


class Benchmarks(WithPlugins):
    """The commands of hpcai500, then a benchmark of each plug-in."""

    @staticmethod
    def command_of(found: Found) -> Any:
        """Like `hpcai500 ic`."""
        about = _HELP.format(name=found.name, package=found.package, version=found.version, summary=found.summary)
        in_short = f"Plug-in {found.package} {found.version}{': cannot be used' if found.problem else '.'}"
        command = benchmark_command(
            found.name,
            "TOML file, or NAME/reference, NAME/smoke.",
            "Folder of the data set.",
            can_be_estimated=False,
        )
        return command_alone(command, in_short, heading=f"{RUN}: plug-ins", name=found.name, help=about)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 campaign …`: plan all runs of a result before the first one, and run them.


app = new_group(
    "Plan all runs of a result before the first one, run them, and see whether it is rankable (docs/campaigns.md).",
    "hpcai500 campaign init runs/campaign --recipe ic/reference --data /data/imagenet",
    "hpcai500 campaign run runs/campaign       # if it was stopped, the same command continues",
    "hpcai500 campaign status runs/campaign",
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the campaign.")]


def init(
    folder: Folder,
    recipe: Annotated[
        str, typer.Option(help="TOML file, or a shipped recipe: ic/reference.", autocompletion=recipes_with)
    ],
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs, each with its own seed.  [default: two more than the edition's minimum, because the highest "
            "and the lowest are dropped: ic 12, ewa 7]",
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set, the same on every node.")] = None,
    set_: Set = None,
    procs: Procs = None,
    as_json: Json = False,
) -> None:
    """Plan a campaign in DIR: recipe, number of runs, seeds. Nothing is run.

    Prints the campaign's identity: send it to your committee before the first run, so that they can check later that
    this plan was made first. To show that you did not choose the best of several copies, also send the heads (campaign
    heads).

    Plan for the ranks that will run it: `--procs N` on one machine; for a cluster, `--set hardware.nodes=4 --set
    hardware.accelerators_per_node=8 --set communication.backend=torch`, or start this with the launcher of the runs.
    """
    from hpcai500.launch.runs import plan_campaign  # keeps `--help` fast

    def body(launcher: Launcher) -> int:
        plan = plan_campaign(folder, recipe, launcher, trials=trials, data=data, overrides=set_ or ())
        for warning in plan.warnings:
            say(f"warning: {warning}")
        show(plan.document() if as_json else plan.lines())
        return ExitCode.PASS

    on_ranks(procs, body)


def run(
    folder: Folder,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    power: Power = "auto",
    only: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Run only this trial, for example one in each Slurm job."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="New folder of the data set, if it moved.  [default: the planned one]")
    ] = None,
    restarts: Restarts = 0,
    as_json: Json = False,
) -> None:
    """Run all unfinished runs, one after the other; if it was stopped, the same command continues.

    Each attempt is written into the campaign's journal before it begins. A stopped or killed attempt is resumed; if it
    has no checkpoint, it is kept and another attempt is made. When an attempt begins or ends, stderr gets a line
    HPCAI500 HEAD: send it to your committee at once (docs/campaigns.md).

    On several machines, start it by a launcher, as `ic`: srun hpcai500 campaign run DIR (docs/launching.md).
    """
    from hpcai500.launch.runs import run_campaign  # keeps `--help` fast
    from hpcai500.system.power import parse_power

    def runs(launcher: Launcher) -> Iterator[Outcome]:
        launcher.open()
        source = str(parse_power(power).from_anywhere())
        yield from run_campaign(folder, launcher, data=data, only=only, power=source, restarts=restarts)

    run_and_report(runs, procs, as_json)


def status(folder: Folder, as_json: Json = False) -> None:
    """Show every attempt, the means with their variation, and whether the campaign is rankable, or why not.

    It also writes the end of a killed attempt into the journal, and its head to stderr.
    """
    from hpcai500.campaign.attempts import settle  # keeps `--help` fast
    from hpcai500.campaign.journal import heads_of, read_campaign
    from hpcai500.campaign.standing import standing
    from hpcai500.recipe import rulebook
    from hpcai500.results.campaign_status import CampaignStatus

    before = read_campaign(folder)
    campaign = settle(before, rulebook(before.edition, before.benchmark))
    for head in heads_of(campaign)[len(before.events) - 1 :]:
        say(str(head), prefix="")
    shown = CampaignStatus(campaign, standing(campaign))
    show(shown.document() if as_json else shown.lines())


def heads(folder: Folder) -> None:
    """Print the head of each line of the journal: HPCAI500 HEAD, identity, number of the line, hash.

    A committee that received each head when its line was written can check that this copy of the campaign was not
    chosen for its results: `hpcai500 verify FILE --heads HEADS` (docs/campaigns.md).
    """
    from hpcai500.campaign.journal import heads_of, read_campaign

    show(map(str, heads_of(read_campaign(folder))))


# In this order `hpcai500 campaign --help` lists them.
add_command(
    app,
    init,
    "Plan recipe, number of runs and seeds.",
    "hpcai500 campaign init runs/campaign --recipe ic/reference --data /data/imagenet",
)
add_command(app, run, "Run all unfinished runs.", "hpcai500 campaign run runs/campaign")
add_command(
    app, status, "Show all attempts, the means, and whether it is rankable.", "hpcai500 campaign status runs/campaign"
)
add_command(app, heads, "Print the heads to send to the committee.", "hpcai500 campaign heads runs/campaign")
