"""Benchmarks of plug-ins as commands, like `hpcai500 ic`: known by name alone until one is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from hpcai500.cli.benchmarks import run_named
from hpcai500.cli.estimate import EstimateOption, MachineOption, estimate, is_estimate
from hpcai500.cli.options import Input, InputKind, Json, Out, Oversubscribe, Power, Procs, Resume, Set, Trials

if TYPE_CHECKING:
    from hpcai500.plugins.finding import Found

_HELP = """\
Benchmark {name} of the plug-in {package} {version}. {summary}

Without --recipe and --data it runs the plug-in's small recipe on data that it makes itself, if it has such. All else is
as for `hpcai500 ic`; no edition ranks it (docs/plugins.md).
"""


class WithPlugins(TyperGroup):
    """The commands of hpcai500, then those of plug-ins, which are looked for where they are listed or none is found."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        from hpcai500.plugins.finding import installed_plugins  # noqa: PLC0415 - only where they are listed

        ours = super().list_commands(ctx)
        return [*ours, *dict.fromkeys(one.name for one in installed_plugins() if one.name not in ours)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        from hpcai500.plugins.finding import find_plugin  # noqa: PLC0415 - only where the name is not ours

        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        found = find_plugin(cmd_name)
        return None if found is None else _command_of(found)


def _command_of(found: Found) -> Any:
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    in_short = f"Plug-in {found.package} {found.version}{': cannot be used' if found.problem else '.'}"
    app.command(found.name, help=_help_of(found), short_help=in_short)(_benchmark(found.name))
    return get_command(app)


def _help_of(found: Found) -> str:
    return _HELP.format(name=found.name, package=found.package, version=found.version, summary=found.summary)


def _benchmark(name: str) -> Callable[..., None]:
    def benchmark(
        recipe: Annotated[str | None, typer.Option(help="TOML file, or NAME/reference, NAME/smoke.")] = None,
        data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
        out: Out = None,
        set_: Set = None,
        input_: Input = InputKind.FILES,
        trials: Trials = 1,
        resume: Resume = False,
        procs: Procs = None,
        oversubscribe: Oversubscribe = False,
        power: Power = "auto",
        estimate_: EstimateOption = False,
        machine: MachineOption = None,
        as_json: Json = False,
    ) -> None:
        if is_estimate(estimate_, machine, {"--data": data, "--out": out, "--resume": resume}):
            estimate(name, recipe, set_, machine, procs, as_json)
            return
        run_named(name, recipe, data, out, [*(set_ or ()), *input_.overrides], trials, resume, procs, power, as_json)

    return benchmark
