"""All commands by name, the checks before each, and the handling of errors: one line and an exit code."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from hpcai500 import __version__
from hpcai500.cli.data import app as data
from hpcai500.cli.ensemble import app as ensemble
from hpcai500.cli.options import USAGE_ERROR, add_command, field_of, new_group
from hpcai500.cli.procure import accept, rank, track
from hpcai500.cli.prove import replicate, submit, verify
from hpcai500.cli.run import RUN, Benchmarks, add_benchmarks, demo, failing, report_runs, score, watch
from hpcai500.cli.run import app as campaign
from hpcai500.cli.site import app as slurm
from hpcai500.cli.site import doctor, micro, self_test, storage, system, version
from hpcai500.cli.understand import compare, export, flops, profile, report, roofline, rules, scale, timeline
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error
from hpcai500.hosts import find_placement
from hpcai500.plugins import TAKEN
from hpcai500.stopping import why_stopped
from hpcai500.streams import prepare_streams, print_error, show, with_result_printed
from hpcai500.system.limits import exhausted
from hpcai500.system.mounts import require_reachable

app = new_group(
    "HPC AI500: benchmark an HPC AI system, score it, and prove the score.",
    "hpcai500 ic                   # a small run on this machine: a few minutes on two cores",
    "hpcai500 COMMAND --help       # what a command does, with examples",
    cls=Benchmarks,
    add_completion=True,
)


def _version(value: bool) -> None:
    if value:
        show(f"hpcai500 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


# In this order `hpcai500 --help` lists them.
add_benchmarks(app)
app.add_typer(campaign, name="campaign", short_help="Plan, run and follow all runs of a result.", rich_help_panel=RUN)
app.add_typer(ensemble, name="ensemble", short_help="Train many models that vote (V3.0).", rich_help_panel=RUN)
add_command(
    app,
    watch,
    "Show the progress of a run, live.",
    "hpcai500 watch runs/ic-20261123-110500",
    "hpcai500 watch runs/campaign --html progress.html",
    heading=RUN,
)
add_command(
    app,
    demo,
    "Write example runs and their pages: seconds, no training.",
    "hpcai500 demo                             # then open hpcai500-demo/index.html",
    heading=RUN,
)

_UNDERSTAND, _PROVE, _PROCURE, _SITE = "Understand", "Prove", "Procure", "Site"
add_command(
    app,
    score,
    "Compute the score of records again, from their events.",
    "hpcai500 score runs/ic-20261123-110500",
    "hpcai500 score runs/a runs/b runs/c       # runs with different seeds: mean and variation",
    heading=_UNDERSTAND,
)
add_command(
    app,
    report,
    "Write one page about records: score, curves, time, machine.",
    "hpcai500 report runs/ic-20261123-110500 -o report.html",
    heading=_UNDERSTAND,
)
add_command(
    app,
    compare,
    "Compare records: what differs, each number, curves.",
    "hpcai500 compare runs/before runs/after",
    "hpcai500 compare runs/a runs/b runs/c -o compare.html",
    heading=_UNDERSTAND,
)
add_command(
    app,
    timeline,
    "Show the cost of communication: stages, stragglers, bytes.",
    "hpcai500 timeline runs/ic-20261123-110500 --trace trace.json    # open it at ui.perfetto.dev",
    heading=_UNDERSTAND,
)
add_command(
    app,
    profile,
    "Show where training steps spend their time.",
    "hpcai500 profile ic",
    "hpcai500 profile ic --data /data/imagenet --recipe ic/reference --out profile",
    heading=_UNDERSTAND,
)
add_command(
    app,
    roofline,
    "Find the bottleneck of a run, and what would relieve it.",
    "hpcai500 micro -o micro.json && hpcai500 roofline runs/ic-20261123-110500 --micro micro.json",
    "hpcai500 roofline --machine v100-64       # the machine of the paper",
    heading=_UNDERSTAND,
)
add_command(
    app,
    scale,
    "Measure weak scaling, or predict it for a larger machine.",
    "hpcai500 scale ic --procs 1,2,4",
    "hpcai500 scale ic --predict 10000 --machine v100-64",
    heading=_UNDERSTAND,
)
add_command(
    app,
    flops,
    "Count the operations of a model, operator by operator.",
    "hpcai500 flops ic",
    "hpcai500 flops ewa --recipe ewa/smoke --json",
    heading=_UNDERSTAND,
)
add_command(
    app,
    export,
    "Write a record in the format of another tool (MLPerf's log).",
    "hpcai500 export runs/ic-20261123-110500 --mllog > mllog.txt",
    heading=_UNDERSTAND,
)
add_command(
    app,
    rules,
    "Show which level a recipe or record qualifies for, and why.",
    "hpcai500 rules ic/reference --set accelerator.precision=bf16",
    "hpcai500 rules runs/ic-20261123-110500 --level hardware",
    heading=_PROVE,
)
add_command(
    app,
    submit,
    "Pack a campaign into one signed file.",
    'hpcai500 submit runs/campaign -o mine.zip --system "My System" --organisation "My Site" --key ~/.ssh/id_ed25519',
    heading=_PROVE,
)
add_command(
    app,
    verify,
    "Check a submission: recompute everything that it claims.",
    "hpcai500 verify mine.zip",
    "hpcai500 verify mine.zip --signers allowed_signers --heads heads.txt",
    heading=_PROVE,
)
add_command(
    app,
    replicate,
    "Repeat a submission and compare the results.",
    "hpcai500 replicate mine.zip --data /data/imagenet -o replication",
    "hpcai500 replicate mine.zip --with replication/campaign",
    heading=_PROVE,
)
add_command(
    app,
    accept,
    "Check a system against its contract, for a procurement.",
    "hpcai500 accept --example > contract.toml",
    "hpcai500 accept contract.toml mine.zip --html acceptance.html --junit acceptance.xml",
    heading=_PROCURE,
)
add_command(
    app,
    track,
    "Follow a machine over months: what got slower since when.",
    "hpcai500 track /srv/hpcai500/records",
    "hpcai500 track records -o trends.html --openmetrics /var/lib/node_exporter/hpcai500.prom",
    "hpcai500 track records --since 2026-05-04     # the state after a maintenance is the new normal",
    heading=_PROCURE,
)
add_command(
    app,
    rank,
    "Rank verified submissions; write the ranking's web site.",
    "hpcai500 rank *.zip --html site",
    "hpcai500 rank --published                 # the nine systems that the project has published",
    heading=_PROCURE,
)
add_command(
    app,
    doctor,
    "Check this machine before a run: what is missing, and the fix.",
    "hpcai500 doctor --quick                   # measures nothing: a second",
    "srun -N 4 hpcai500 doctor ic --data /data/imagenet",
    heading=_SITE,
)
add_command(
    app,
    micro,
    "Measure the limits of this machine: compute, memory, links, input.",
    "hpcai500 micro -o micro.json",
    "srun -N 4 --ntasks-per-node=8 hpcai500 micro allreduce alltoall",
    "srun -N 8 hpcai500 micro pairs            # names the slow link between two nodes",
    heading=_SITE,
)
add_command(
    app,
    storage,
    "Measure a file system: samples, small files, checkpoints.",
    "hpcai500 storage /scratch/me -o storage.json",
    "srun -N 16 --ntasks-per-node=8 hpcai500 storage /scratch/me --seconds 600 --space 20T",
    "hpcai500 storage /data/me ic --accelerator-speed ic=3000 --accelerators 8   # exit code 5 if it is too slow",
    heading=_SITE,
)
add_command(
    app,
    system,
    "Describe every node: processors, devices, links, software.",
    "srun -N 4 hpcai500 system                 # lists the differences between nodes, too",
    heading=_SITE,
)
app.add_typer(data, name="data", short_help="Make, check, index, repack or stage a data set.", rich_help_panel=_SITE)
app.add_typer(slurm, name="slurm", short_help="Write batch scripts for Slurm.", rich_help_panel=_SITE)
add_command(
    app,
    self_test,
    "Check that this installation computes correctly: a minute.",
    "hpcai500 self-test",
    heading=_SITE,
    name="self-test",
)
add_command(
    app, version, "Print versions and hashes of image, package and rules.", "hpcai500 version --json", heading=_SITE
)


# `--data=/x`, `-o/x`, `--set table.key=/x`, `--power csv:/x,offset=1`.
_SEPARATORS = re.compile(r"[=:,]")
# The exit code that typer turns Ctrl-C into, without a message.
_INTERRUPTED = 128 + signal.SIGINT


@cache
def parser() -> Any:
    """The parser of all commands: the time to make it is a large part of what a short command takes."""
    return typer.main.get_command(app)


def run() -> int:
    """Run the command that the process was started for; returns its exit code."""
    prepare_streams()
    try:
        code = _refuse_dead_paths(sys.argv[1:]) or parser()(standalone_mode=False) or ExitCode.PASS
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return with_result_printed(code)
    except HpcAi500Error as error:
        print_error(error)
        return error.exit_code
    except USAGE_ERROR as error:
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context else ""
        print_error(f"{_suggested_setting(error, sys.argv[1:]) or _reason(error)}{hint}")
        return ExitCode.USAGE
    except (OSError, RuntimeError, MemoryError) as error:
        return _report_system_error(error)
    except typer.Exit as done:
        return with_result_printed(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print_error(why_stopped(KeyboardInterrupt()))
        return ExitCode.RUN_FAILED


def _refuse_dead_paths(arguments: Sequence[str]) -> int | None:
    """None if all paths in `arguments` respond; else report those that do not, and return the exit code.

    Paths are accessed here before any command does so, because a dead mount would block it forever without a message.
    If the stdout of the command ends with a verdict, or is one JSON document, so does the report.
    """
    try:
        _require_places(arguments)
        require_reachable(_named_paths(arguments))
    except EnvironmentLacksError as error:
        return _report_dead_path(error, arguments)
    return None


def _needs_places(arguments: Sequence[str]) -> bool:
    """Whether the command may use files: help and `version` do not."""
    return "--help" not in arguments and arguments[:1] not in ([], ["help"], ["version"])


def _require_places(arguments: Sequence[str]) -> None:
    """Refuse a working folder that was deleted, and a folder for caches that differs in every working folder.

    Raises:
        EnvironmentLacksError: one of them.
    """
    if not _needs_places(arguments):
        return
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise EnvironmentLacksError("the working folder was deleted: change to another one (`cd`)") from error
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if cache and not Path(cache).is_absolute():
        raise EnvironmentLacksError(
            f"XDG_CACHE_HOME={cache}: a relative path, so every working folder would have its own caches: give an "
            f'absolute one: export XDG_CACHE_HOME="{Path.cwd() / cache}"'
        )


def _named_paths(arguments: Sequence[str]) -> Iterator[str]:
    """Every word that may be a path, and the folders that every command uses.

    A word that is not a path names a missing file, which responds at once. Help needs none of them. `doctor` is left
    out, because it has its own check for dead folders.
    """
    if not _needs_places(arguments):
        return
    yield os.curdir
    if "doctor" in arguments[:1]:
        return
    yield from filter(None, map(os.environ.get, ("TMPDIR", "HOME", "XDG_CACHE_HOME")))
    for word in arguments:
        yield word
        yield from _SEPARATORS.split(word)
        if re.match(r"-[a-z].", word):
            yield word[2:]


def _report_dead_path(error: EnvironmentLacksError, arguments: Sequence[str]) -> int:
    command, as_json = next(iter(arguments), ""), "--json" in arguments
    scores = command in ("ic", "ewa", "score") or command not in TAKEN or list(arguments[:2]) == ["campaign", "run"]
    if not (scores or command == "scale") or _is_follower():
        print_error(error)
    elif scores:
        return report_runs(failing(error), as_json)
    else:
        from hpcai500.results.scaling import report_broken_scaling  # keeps `--help` fast

        report = report_broken_scaling([], print_error(error), error.exit_code)
        show(report.document() if as_json else report.lines())
    return error.exit_code


def _is_follower() -> bool:
    """Whether another rank prints the result."""
    try:
        return find_placement(os.environ).rank > 0
    except HpcAi500Error:
        return False


def _report_system_error(error: OSError | RuntimeError | MemoryError) -> int:
    """Print an error of the system or of a limit; returns the exit code. Others are raised again."""
    if found := exhausted(error):
        print_error(found)
        return found.exit_code
    if not isinstance(error, OSError):
        raise error
    print_error(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror or error))
    return ExitCode.RUN_FAILED


def _suggested_setting(error: Exception, arguments: Sequence[str]) -> str | None:
    """The message for an unknown option that is a field of recipes, such as `--epochs 2`; None for other errors."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or context is None or not any("--set" in one.opts for one in context.command.params):
        return None
    field = field_of(option, context.info_name)
    if field is None:
        return None
    # The value is in the same word or in the next one.
    at = next((index for index, word in enumerate(arguments) if word.partition("=")[0] == option), len(arguments))
    _, given, value = arguments[at].partition("=") if at < len(arguments) else ("", "", "")
    if not given and at + 1 < len(arguments) and not arguments[at + 1].startswith("--"):
        value = arguments[at + 1]
    setting = f"{field}={shlex.quote(value)}" if value else f"{field}=VALUE"
    return f"No such option: {option}. Did you mean `--set {setting}`?"


def _reason(error: Exception) -> str:
    """The message that typer would print, in one line."""
    formatted = getattr(error, "format_message", None)
    # Some messages have a line for each choice.
    return " ".join(str(formatted() if formatted else error).split())
