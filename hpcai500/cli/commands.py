"""All commands by name, what is looked at before each, and how each error ends: one line and an exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from hpcai500 import __version__, streams
from hpcai500.cli.ensemble import app as ensemble
from hpcai500.cli.procure import accept, rank
from hpcai500.cli.prove import replicate, submit, verify
from hpcai500.cli.run import WithPlugins, add_benchmarks, failing, report_runs, score
from hpcai500.cli.run import app as campaign
from hpcai500.cli.site import app as slurm
from hpcai500.cli.site import doctor, micro, self_test, system, version
from hpcai500.cli.understand import compare, export, profile, report, roofline, rules, scale, timeline
from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error
from hpcai500.hosts import find_placement
from hpcai500.interpreter import module_command
from hpcai500.launch.processes import become
from hpcai500.plugins import TAKEN
from hpcai500.stopping import why_stopped
from hpcai500.streams import prepare_streams, show, tell
from hpcai500.system.mounts import require_reachable

app = typer.Typer(
    cls=WithPlugins,
    help="HPC AI500: measure, score and verify HPC AI systems. Start with `hpcai500 ic`: a small run on this machine.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Passed through untouched: the in-job half parses these arguments itself.
_PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _version(wanted: bool) -> None:
    if wanted:
        show(f"hpcai500 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def data(context: typer.Context) -> None:
    """Make, check, index, repack or stage a data set: `hpcai500 data --help`."""
    become(module_command("data", *context.args), hold=True)


def flops(context: typer.Context) -> None:
    """Count the operations of a benchmark's model: `hpcai500 flops --help`."""
    become(module_command("measure.flops_command", *context.args), hold=True)


# In this order `hpcai500 --help` lists them.
add_benchmarks(app)
app.command()(score)
app.command(short_help="Which level a recipe or record qualifies for, and which changes force it.")(rules)
app.command(short_help="One page about records: score, curves, costs, machine, recipe, hashes.")(report)
app.command(short_help="Two records side by side, with what differs between them.")(compare)
app.command(short_help="What communication cost: stages, stragglers, bytes.")(timeline)
app.command(short_help="A record as `:::MLLOG` lines, for tools that read such logs.")(export)
app.command(short_help="A campaign in one signed file, for whoever verifies or ranks it.")(submit)
app.command(short_help="A submission, computed again: what of it holds, and what does not.")(verify)
app.command(short_help="Repeat a submission, and say whether it came out the same.")(replicate)
app.command(short_help="The verdict on a system: contracted, measured, margin; JUnit XML, a page to sign.")(accept)
app.command(short_help="Verified submissions in order, by benchmark and level; a site of them.")(rank)
app.command(short_help="Weak scaling: more and more processes, and the efficiency drawn.")(scale)
app.command(short_help="Where training steps spend their time: kernels, layouts, device, network.")(profile)
app.command(short_help="What each node is: processors, accelerators, links, settings, software.")(system)
app.command(short_help="What binds a run, computation or communication, and what would move it.")(roofline)
app.command(short_help="What this machine and container lack for a run.")(doctor)
app.command(short_help="What this machine does at best: products, copy, all-reduce, input.")(micro)
app.command(short_help="Image, package, rules and libraries, by hash and version.")(version)
app.command(context_settings=_PASS_THROUGH, short_help="Make, check, index, repack or stage a data set.")(data)
app.command(context_settings=_PASS_THROUGH, short_help="Count the operations of a model.")(flops)
app.command("self-test", short_help="Check what this installation computes here: kernels, ranks, a tiny run.")(
    self_test
)
app.add_typer(campaign, name="campaign", short_help="Plan the runs of a result, run them, see how they stand.")
app.add_typer(ensemble, name="ensemble", short_help="Many models that vote: plan, run, submit, watch, collect.")
app.add_typer(slurm, name="slurm")


# `--data=/x`, `-o/x`, `--set table.key=/x`, `--power csv:/x,offset=1`.
_SEPARATORS = re.compile(r"[=:,]")
# What typer makes of Ctrl-C, without a word.
_INTERRUPTED = 128 + signal.SIGINT


def run() -> int:
    """Run the command that the process was started for; returns its exit code."""
    prepare_streams()
    # typer's own base of usage errors is private in some versions and click's in others; its ancestor is public.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = _refuse_dead_paths(sys.argv[1:]) or app(standalone_mode=False) or ExitCode.PASS
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except HpcAi500Error as error:
        tell(error)
        return error.exit_code
    except usage_error as error:
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context else ""
        tell(f"{_reason(error)}{hint}")
        return ExitCode.USAGE
    except OSError as error:
        _tell_of_system(error)
        return ExitCode.RUN_FAILED
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        tell(why_stopped(KeyboardInterrupt()))
        return ExitCode.RUN_FAILED


def _refuse_dead_paths(arguments: Sequence[str]) -> int | None:
    """None where all that `arguments` may name answers; else say what does not, and return the exit code.

    They are touched before any command does: a dead mount would hang it for ever, without a word. A command whose
    stdout ends with a verdict, or is one JSON document, keeps to that.
    """
    try:
        require_reachable(_named_paths(arguments))
    except EnvironmentLacksError as error:
        return _tell_of_dead_path(error, arguments)
    return None


def _named_paths(arguments: Sequence[str]) -> Iterator[str]:
    """Every word that may be a path, beside the folders that every command uses.

    A word that is none names nothing, which answers at once. Help needs none of them. `doctor` is left out: a folder
    that is dead is a check of it that fails.
    """
    if "--help" in arguments or arguments[:1] in ([], ["version"]):
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


def _tell_of_dead_path(error: EnvironmentLacksError, arguments: Sequence[str]) -> int:
    command, as_json = next(iter(arguments), ""), "--json" in arguments
    scores = command in ("ic", "ewa", "score") or command not in TAKEN or list(arguments[:2]) == ["campaign", "run"]
    if not (scores or command == "scale") or _is_follower():
        tell(error)
    elif scores:
        return report_runs(failing(error), as_json)
    else:
        from hpcai500.results.scaling import report_broken_scaling  # keeps `--help` fast

        report = report_broken_scaling([], tell(error), error.exit_code)
        show(report.document() if as_json else report.lines())
    return error.exit_code


def _is_follower() -> bool:
    """Whether another rank prints the result."""
    try:
        return find_placement(os.environ).rank > 0
    except HpcAi500Error:
        return False


def _tell_of_system(error: OSError) -> None:
    if not _is_of_stdout(error):
        tell(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror or error))
        return
    # Nothing can be printed any more, and Python must not try again when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):  # `hpcai500 score … | head` has what it wants
        tell(f"the result cannot be written: {error.strerror}")


def _is_of_stdout(error: OSError) -> bool:
    """Whether it was the result that could not be written: then it still waits, and fails again."""
    if error.filename is not None:
        return False
    try:
        sys.stdout.flush()
    except OSError:
        return True
    # Unbuffered (PYTHONUNBUFFERED), nothing waits; but all that is printed is printed there.
    return traceback.extract_tb(error.__traceback__)[-1].filename == streams.__file__


def _reason(error: Exception) -> str:
    """What typer would print: its usage errors format themselves."""
    formatted = getattr(error, "format_message", None)
    # Some have a line for each choice.
    return " ".join(str(formatted() if formatted else error).split())
