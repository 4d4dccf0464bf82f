"""Shared by several commands: options, help texts, measuring on ranks, writing requested files, reporting errors."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.hosts import OVERSUBSCRIBE, find_placement
from hpcai500.stopping import why_stopped
from hpcai500.streams import print_error, say

if TYPE_CHECKING:
    from hpcai500.launch.launcher import Launcher
    from hpcai500.plugins import Found

# ----------------------------------------------------------------------------------------------------
# The layout of all help texts: commands under headings, then options, then examples.


# typer shows the type of a value: `--procs <int range>`, `--input <files|memory>`, `--data <path>`.
_READABLE = re.compile(r"(?P<option>--(?P<name>\S+))? <(?P<type>.*)>$")


# It also shows the minimum, `[default: 1; x>=1]`, which is left out: the error message says it.
_RANGE = re.compile(r" *\[x>=[\d.]+\]|; x>=[\d.]+|x>=[\d.]+; ")


def _readable(found: re.Match[str]) -> str:
    kind = found["type"]
    if not found["option"]:
        return ""
    value = kind if "|" in kind else {"path": "PATH"}.get(kind, found["name"].upper())
    return f"{found['option']} {value}"


class Command(TyperCommand):
    """A command whose `epilog` is lines of examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`RECORD...` and `[DIR]` instead of typer's `{RECORD...}...` and `[[DIR]]`."""
        pieces = super().collect_usage_pieces(ctx)
        plain = (re.sub(r"^\{(.*)\}", r"\1", piece).replace("[[", "[").replace("]]", "]") for piece in pieces)
        return [piece.replace("......", "...") for piece in plain]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, without their Python types, and options."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                rows[parameter.param_type_name].append((_READABLE.sub(_readable, record[0]), _RANGE.sub("", record[1])))
        for heading, kind in (("Arguments", "argument"), ("Options", "option")):
            if rows[kind]:
                with formatter.section(heading):
                    formatter.write_dl(rows[kind])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples without wrapping, so that they can be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.split("\n"):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Group(TyperGroup):
    """Commands under the headings that `rich_help_panel` names. Without an argument it shows its help."""

    format_epilog = Command.format_epilog

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`COMMAND ...`."""
        return ["COMMAND ..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat no arguments as --help, and `help COMMAND` as `COMMAND --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each heading, in the order of its first command."""
        headings: dict[str, list[tuple[str, str]]] = {}
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        for name in names:
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None) or "Commands"
                headings.setdefault(heading, []).append((name, command.get_short_help_str(limit)))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=20)


# The base class of typer's usage errors is private in some versions and click's in others; this subclass is public.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


class WithPlugins(Group):
    """Our commands, then those of plug-ins, which are searched only for a list of commands or an unknown name."""

    @staticmethod
    def command_of(found: Found) -> Any:
        """The command of a plug-in's benchmark."""
        raise NotImplementedError

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        from hpcai500.plugins import installed_plugins  # only when commands are listed

        ours = super().list_commands(ctx)
        return [*ours, *dict.fromkeys(one.name for one in installed_plugins() if one.name not in ours)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        from hpcai500.plugins import find_plugin  # only if the name is not ours

        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        found = find_plugin(cmd_name)
        return None if found is None else self.command_of(found)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As usual; the error for an unknown name that resembles none says that it may be a plug-in."""
        from hpcai500.plugins import PERHAPS_MISSING, may_be_benchmark  # only if the name is not ours

        try:
            return super().resolve_command(ctx, args)
        except USAGE_ERROR as error:
            problem: Any = error
            if args and may_be_benchmark(args[0]) and "Did you mean" not in problem.message:
                problem.message = f"{problem.message.rstrip('.')}: it {PERHAPS_MISSING}"
            raise


def add_command(
    app: typer.Typer,
    command: Callable[..., None],
    summary: str,
    *examples: str,
    heading: str | None = None,
    name: str | None = None,
    **rest: Any,
) -> None:
    """Add `command` to `app`: its summary in the list under `heading`, and examples below its help."""
    app.command(
        name, cls=Command, short_help=summary, rich_help_panel=heading, epilog="\n".join(examples) or None, **rest
    )(command)


def command_alone(command: Callable[..., None], summary: str, *examples: str, **rest: Any) -> Any:
    """As `add_command`, but return the command, for a group that creates its commands on demand."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    add_command(app, command, summary, *examples, **rest)
    return get_command(app)


def new_group(about: str, *examples: str, cls: type[TyperGroup] = Group, **rest: Any) -> typer.Typer:
    """A group of commands in the common style."""
    app = typer.Typer(
        cls=cls,
        help=about,
        epilog="\n".join(examples) or None,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **{"add_completion": False, "pretty_exceptions_enable": False, **rest},
    )
    # With a callback, an app with one command is a group, too.
    app.callback()(lambda: None)
    return app


# ----------------------------------------------------------------------------------------------------
# Options.


class InputKind(StrEnum):
    """Where training batches come from."""

    FILES = "files"
    MEMORY = "memory"

    @property
    def overrides(self) -> list[str]:
        """Settings that it changes in a recipe."""
        return ["accelerator.loader=memory"] if self is InputKind.MEMORY else []


Out = Annotated[Path | None, typer.Option(help="Folder of the record.  [default: runs/<benchmark>-<time>]")]


def recipes_with(start: str) -> list[str]:
    """Short names of recipes, for shell completion; the shell completes files by itself."""
    from hpcai500.recipe import shipped_recipes  # only for completion

    return [name for name in shipped_recipes() if name.startswith(start)]


RecipeOption = Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.", autocompletion=recipes_with)]
Data = Annotated[Path | None, typer.Option(help="Folder of the data set.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one field of the recipe.")
]
Trials = Annotated[int, typer.Option(min=1, help="Runs, each with its own seed: a campaign (docs/campaigns.md).")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a stopped run (--out, or the latest).")]
Restarts = Annotated[
    int,
    typer.Option(
        "--restarts",
        min=0,
        max=1000,
        metavar="N",
        help="If a rank is killed or hangs, start it again and continue from the last checkpoint, N times at most.",
    ),
]
Procs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Ranks on this machine, one per accelerator or a share of the cores.  [default: as the recipe says; "
        "smoke and reference: 1]",
    ),
]


def _oversubscribe(value: bool) -> bool:
    if value:
        # In the environment, so that it also applies to child processes, such as members of an ensemble.
        os.environ[OVERSUBSCRIBE] = "1"
    return value


Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        callback=_oversubscribe,
        help="Allow more ranks than cores: to test that they work together, not for speed.",
    ),
]
Input = Annotated[
    InputKind,
    typer.Option("--input", help="files, or memory: repeat a few batches, to see the cost of reading files."),
]
Power = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="Source of power readings: auto, none, pm_counters, redfish:https://ADDRESS, ipmi, nvml, amd, dcgm[:URL], "
        "hwmon[:CHIP/SENSOR][,scope=node], rapl, or a meter's csv:FILE[,offset=SECONDS][,scope=pdu|node|device]; %h is "
        "the host's name. auto takes the readable one with the widest scope. Of several, with commas between them, the "
        "first counts, and the others are compared with it: nvml,redfish:https://bmc-%h",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
JsonDocument = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Registered = Annotated[
    str | None, typer.Option(metavar="HASH", help="Identity of the campaign, as registered before its first run.")
]
Heads = Annotated[
    Path | None,
    typer.Option("--heads", metavar="FILE", help="Heads of journals that you received while campaigns ran."),
]


# ----------------------------------------------------------------------------------------------------
# Commands that measure on one rank or on many: started once here, or once per rank by a launcher.


def on_ranks(procs: int | None, body: Callable[[Launcher], int]) -> None:
    """Run `body` on rank 0, with its launcher; the other ranks of this command do what it requests.

    `body` prints the result and returns the exit code, with which the command then ends on all ranks.

    Raises:
        HpcAi500Error: as `body`, after the other ranks were ended.
    """
    from hpcai500.launch.launcher import launcher_of  # keeps `--help` fast
    from hpcai500.launch.rendezvous import follow

    placement = find_placement(os.environ)
    if placement.rank > 0:
        raise typer.Exit(follow(placement))
    launcher = launcher_of(placement, procs)
    launcher.open()
    try:
        code = body(launcher)
    except HpcAi500Error as error:
        launcher.end(error.exit_code)
        raise
    # A launcher kills all ranks when one fails, so flush the output before.
    sys.stdout.flush()
    launcher.end(code)
    raise typer.Exit(code)


# ----------------------------------------------------------------------------------------------------
# How commands end, and files that they write beside their result.


# Common names of recipe fields.
_ALIASES = {"lr": "base_learning_rate", "learning_rate": "base_learning_rate", "gpus": "accelerators_per_node"}


def field_of(option: str, benchmark: str) -> str | None:
    """`problem.epochs` for `--epochs`: the recipe field that an unknown option names, even if misspelt, or None."""
    from hpcai500.layers import RECIPE_TYPES  # only after a mistake

    kinds = [RECIPE_TYPES[benchmark]] if benchmark in RECIPE_TYPES else RECIPE_TYPES.values()
    fields = {
        key: f"{table}.{key}"
        for kind in kinds
        for table, field in kind.model_fields.items()
        for key in getattr(field.annotation, "model_fields", ())
    }
    name = option.lstrip("-").replace("-", "_")
    near = difflib.get_close_matches(_ALIASES.get(name, name), fields, n=1, cutoff=0.85)
    return fields[near[0]] if near else None


def report_error(error: HpcAi500Error | KeyboardInterrupt) -> tuple[str, int]:
    """Print the error that ended a command early; returns its text, and the exit code."""
    if isinstance(error, HpcAi500Error):
        return print_error(error), error.exit_code
    return print_error(why_stopped(error)), ExitCode.RUN_FAILED


def say_next(lines: Iterable[str]) -> None:
    """Print suggested next commands on stderr; nothing in a batch job.

    The log of a batch job contains both streams, in any order, and its last line must be the verdict.
    """
    if any(name in os.environ for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")):
        return
    sys.stdout.flush()
    for line in lines:
        say(line, prefix="")


def write_requested(target: Path, content: bytes, option: str) -> None:
    """Write `content` atomically to `target`, which the user gave as `option`, and say so on stderr.

    Raises:
        UsageError: it cannot be written there.
    """
    from hpcai500.files import write_atomically  # keeps `--help` fast

    if target.is_dir():
        raise UsageError(f"{target}: a folder; give a file: {option} {target / 'NAME'}")
    try:
        write_atomically(target, content)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}; give another {option} FILE") from error
    say(f"{target}: written")
