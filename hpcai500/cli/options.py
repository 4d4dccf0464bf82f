"""What several commands have in common: options, ranks that measure, files that are asked for, how errors end them."""

from __future__ import annotations

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
from hpcai500.streams import say, tell

if TYPE_CHECKING:
    from hpcai500.launch.launcher import Launcher
    from hpcai500.plugins import Found

# ----------------------------------------------------------------------------------------------------
# How every command shows its help: commands under headings, then options, then examples.


# typer names a value by its type: `--procs <int range>`, `--input <files|memory>`, `--data <path>`.
_READABLE = re.compile(r"(?P<option>--(?P<name>\S+))? <(?P<type>.*)>$")


# And its least value by `[default: 1; x>=1]`, which the error of a smaller one says.
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
        """`RECORD...` and `[DIR]`, where typer writes `{RECORD...}...` and `[[DIR]]`."""
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
        """Write the examples as they stand: a line that was wrapped could not be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.split("\n"):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Group(TyperGroup):
    """Commands under the headings that they name by `rich_help_panel`. Without an argument it shows its help."""

    format_epilog = Command.format_epilog

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`COMMAND ...`."""
        return ["COMMAND ..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As without arguments, so with --help."""
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


class WithPlugins(Group):
    """Commands of ours, then those of plug-ins, which are looked for where they are listed or none is found."""

    @staticmethod
    def command_of(found: Found) -> Any:
        """The command of a plug-in's benchmark."""
        raise NotImplementedError

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        from hpcai500.plugins import installed_plugins  # only where they are listed

        ours = super().list_commands(ctx)
        return [*ours, *dict.fromkeys(one.name for one in installed_plugins() if one.name not in ours)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        from hpcai500.plugins import find_plugin  # only where the name is not ours

        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        found = find_plugin(cmd_name)
        return None if found is None else self.command_of(found)


def add_command(
    app: typer.Typer,
    command: Callable[..., None],
    summary: str,
    *examples: str,
    heading: str | None = None,
    name: str | None = None,
    **rest: Any,
) -> None:
    """Add `command` to `app`: a line in the list under `heading`, and examples below its own help."""
    app.command(
        name, cls=Command, short_help=summary, rich_help_panel=heading, epilog="\n".join(examples) or None, **rest
    )(command)


def command_alone(command: Callable[..., None], summary: str, *examples: str, **rest: Any) -> Any:
    """As `add_command`, for a group that makes its commands when they are asked for."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    add_command(app, command, summary, *examples, **rest)
    return get_command(app)


def new_group(about: str, *examples: str, cls: type[TyperGroup] = Group, **rest: Any) -> typer.Typer:
    """A group of commands that looks as all others do."""
    app = typer.Typer(
        cls=cls,
        help=about,
        epilog="\n".join(examples) or None,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **{"add_completion": False, "pretty_exceptions_enable": False, **rest},
    )
    # With a callback, an app of one command is a group, too.
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
        """What it changes in a recipe."""
        return ["accelerator.loader=memory"] if self is InputKind.MEMORY else []


Out = Annotated[Path | None, typer.Option(help="Folder of the record.  [default: runs/<benchmark>-<time>]")]


def recipes_with(start: str) -> list[str]:
    """Short names of recipes, for a shell to complete; of files it knows by itself."""
    from hpcai500.recipe import shipped_recipes  # only where a key was pressed

    return [name for name in shipped_recipes() if name.startswith(start)]


RecipeOption = Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.", autocompletion=recipes_with)]
Data = Annotated[Path | None, typer.Option(help="Folder of the data set.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one field of the recipe.")
]
Trials = Annotated[int, typer.Option(min=1, help="Runs, each with its own seed: a campaign (docs/campaigns.md).")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a stopped run (--out, or the latest).")]
Procs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Ranks on this machine, one an accelerator or a share of the cores.  [default: as the recipe says; "
        "smoke and reference: 1]",
    ),
]


def _oversubscribe(wanted: bool) -> bool:
    if wanted:
        # By the environment, so that what this command starts, such as members of an ensemble, may do it too.
        os.environ[OVERSUBSCRIBE] = "1"
    return wanted


Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        callback=_oversubscribe,
        help="Let more ranks than cores run: they show that they work together, not how fast.",
    ),
]
Input = Annotated[
    InputKind,
    typer.Option("--input", help="files, or memory: repeat a few batches and read nothing, to see what input costs."),
]
Power = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="What tells the power: auto, none, nvml, rapl, ipmi, or csv:FILE[,offset=SECONDS][,scope=pdu|node|device] "
        "of a meter; auto takes the widest scope that can be read.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
JsonDocument = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Registered = Annotated[
    str | None, typer.Option(metavar="HASH", help="Identity of the campaign, from before its first run.")
]
Heads = Annotated[
    Path | None,
    typer.Option("--heads", metavar="FILE", help="Heads of journals, as they were given while campaigns ran."),
]


# ----------------------------------------------------------------------------------------------------
# Commands that measure on one rank or on many: started once here, or as copies by a launcher.


def on_ranks(procs: int | None, body: Callable[[Launcher], int]) -> None:
    """Run `body` where rank 0 is, with its launcher; the other copies of this command do what it asks of them.

    `body` prints the result and returns the exit code of the command, which this ends with on all ranks.

    Raises:
        HpcAi500Error: as `body`, after the other ranks have been sent home.
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
    # A launcher ends all copies when one ends with a failure: what is printed is out before.
    sys.stdout.flush()
    launcher.end(code)
    raise typer.Exit(code)


# ----------------------------------------------------------------------------------------------------
# How commands end, and files that they write beside their result.


def told(error: HpcAi500Error | KeyboardInterrupt) -> tuple[str, int]:
    """Say what has ended a command early; returns its text, and the exit code."""
    if isinstance(error, HpcAi500Error):
        return tell(error), error.exit_code
    return tell(why_stopped(error)), ExitCode.RUN_FAILED


def say_next(lines: Iterable[str]) -> None:
    """Say on stderr what to type now; nothing in a batch job, where nobody types.

    The log of one holds both streams, in any order, and its last line must be the verdict.
    """
    if any(name in os.environ for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")):
        return
    sys.stdout.flush()
    for line in lines:
        say(line, prefix="")


def write_asked_for(target: Path, content: bytes, option: str) -> None:
    """Write `content` to `target`, as the user named it by `option`, whole or not at all, and say so on stderr.

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
