"""`hpcai500 report` and `hpcai500 compare`: records for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpcai500.streams import say, show

Page = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page.")]


def report(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Folders that runs wrote, or a series.")],
    output: Page = Path("report.html"),
    machine: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Ceilings for the roofline: TOML, a shipped name, or micro's JSON."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="What `hpcai500 profile` wrote.  [default: RECORD/profile]")
    ] = None,
) -> None:
    """Write one self-contained page about records, also of runs that failed: docs/report.md."""
    from hpcai500.results.report.page import make_report  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.report.writing import write_page  # noqa: PLC0415

    made = make_report(records, machine, profile)
    write_page(output, made.html)
    show(f"report      {output}")
    for verdict in made.verdicts:
        show(f"verdict     {verdict}")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder that a run wrote, or a series.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.html", help="Write a page as well.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Put two records side by side: what differs between them, then each number and the ratio B/A."""
    from hpcai500.results.compare import compare_records  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.compare_text import comparison_lines, comparison_page  # noqa: PLC0415
    from hpcai500.results.report.writing import write_page  # noqa: PLC0415

    comparison = compare_records(a, b)
    if output:
        write_page(output, comparison_page(comparison))
        say(f"{output}: written")
    show(comparison.document() if as_json else comparison_lines(comparison))
