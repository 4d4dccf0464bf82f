"""`hpcai500 roofline`: what binds a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from hpcai500.cli.options import Json
from hpcai500.errors import UsageError
from hpcai500.streams import say, show


def roofline(
    records: Annotated[
        list[Path] | None, typer.Argument(metavar="RECORD", help="Folders of runs.  [default: published ones]")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="FILE|NAME", help="Its ceilings: a machine file, or a shipped one (v100-64).")
    ] = None,
    micro: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its ceilings as measured: hpcai500 micro -o FILE.")
    ] = None,
    model: Annotated[
        Literal["node", "system"] | None,
        typer.Option(help="Links between accelerators, or the network between nodes.  [default: as the runs were]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Draw the model there (SVG and PNG).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what binds runs on a machine, computation or communication, and what would move it (V2.0 section 6)."""
    from hpcai500.results.figure_files import write_figures  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.given_files import given_machine  # noqa: PLC0415
    from hpcai500.results.roofline_figure import draw_roofline  # noqa: PLC0415
    from hpcai500.results.roofline_records import roofline as make  # noqa: PLC0415

    if machine is not None and micro is not None:
        raise UsageError("roofline: --machine and --micro are two sets of ceilings: give one of them")
    if machine is None and micro is None:
        raise UsageError("roofline: give the ceilings: --machine FILE|NAME, or --micro FILE of hpcai500 micro -o FILE")
    ceilings, sources = given_machine(machine or micro or "")
    drawn = replace(make(records or [], ceilings, model), sources=sources)
    figures = write_figures(out, draw_roofline(drawn)) if out else []
    for figure in figures:
        say(f"{figure}: written")
    document = {**drawn.document(), "figures": [str(figure) for figure in figures]}
    show(document if as_json else drawn.lines())
