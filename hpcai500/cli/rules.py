"""`hpcai500 rules`: which level a recipe or a run qualifies for."""

from __future__ import annotations

from typing import Annotated

import typer

from hpcai500.cli.options import Set
from hpcai500.errors import UsageError
from hpcai500.streams import show


def rules(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|RECORD",
            help="A shipped recipe (ic/lars-8192), a TOML file, or the folder of a record or of a campaign.",
        ),
    ] = None,
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Fail unless it qualifies for hardware, system or free.")
    ] = None,
    edition: Annotated[
        str | None, typer.Option(help="Judge by this edition of the rules.  [default: the subject's own]")
    ] = None,
    set_: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the lowest level that a recipe or record qualifies for, and each change that forces it there.

    hardware: layers 1-4, parallel mode, batch size and learning-rate policy may differ from the reference recipe.
    system: also the framework. free: everything but the problem. docs/rules.md has every field.

    Of a record, the events are asked as well: synchronous SGD, equivalent parallelism, epochs, data and quality metric.
    Without RECIPE|RECORD it prints the rules in short (--json: all of them). With --level it ends with 2 where the
    level is missed, and names the changes that are in the way:
    hpcai500 rules ic/reference --set framework.compile=true --level hardware
    """
    if subject is None:
        if level is not None or set_:
            raise UsageError("--level and --set: of what? hpcai500 rules ic/reference --level hardware")
        _print_rules(edition, as_json)
        return
    from hpcai500.results.rules import ask_rules  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.rules_text import report_lines  # noqa: PLC0415

    report = ask_rules(subject, set_ or (), edition, level)
    show(report.document() if as_json else report_lines(report))
    raise typer.Exit(report.exit_code)


def _print_rules(edition: str | None, as_json: bool) -> None:
    from hpcai500.editions import load_edition  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.rules_page import EDITION  # noqa: PLC0415
    from hpcai500.results.rules_text import overview_lines  # noqa: PLC0415

    name = edition or EDITION
    show(load_edition(name) if as_json else overview_lines(name))
