"""`hpcai500 ensemble plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpcai500.cli.ensemble.options import Folder
from hpcai500.cli.options import Json, Set
from hpcai500.streams import show


def plan(
    folder: Folder,
    recipe: Annotated[str, typer.Option(metavar="R", help="TOML file, or a shipped recipe: ic/ensemble, ic/smoke.")],
    members: Annotated[
        int | None, typer.Option(min=1, metavar="M", help="Base models.  [default: scale / degree, or the recipe's]")
    ] = None,
    degree: Annotated[
        int | None,
        typer.Option(min=1, metavar="P", help="Accelerators of each.  [default: the recipe's, or those of a node]"),
    ] = None,
    scale: Annotated[
        int | None, typer.Option(min=1, metavar="S", help="Accelerators of all members together.  [default: M x P]")
    ] = None,
    node_accelerators: Annotated[
        int | None,
        typer.Option(min=1, metavar="A", help="Accelerators (on CPUs, ranks) of a node.  [default: the recipe's]"),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Names of the nodes, n[1-8], for DIR/plan.toml; Slurm chooses by itself."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data set, the same on every node.  [default: made, if synthetic]")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Copy what members read to this folder of each node first; it may hold variables that a node sets: "
            "'$TMPDIR'.  [default: read where it lies]",
        ),
    ] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Fix an ensemble in DIR: how many members, on how many accelerators each, with which seeds. Nothing is trained.

    Sys_scale = M x P_degree (V3.0 Eq. 5): of --scale, --members and --degree, what is left out follows from the others;
    what cannot be is refused with the nearest that can. DIR/plan.toml has the mapping of members to nodes.

    hpcai500 ensemble plan DIR --recipe ic/ensemble --scale 64 --data /data/imagenet
    """
    from hpcai500.ensemble.planning import PlanRequest, plan_ensemble  # noqa: PLC0415 - keeps `--help` fast

    request = PlanRequest(folder, recipe, members, degree, scale, node_accelerators, hosts, data, stage, set_ or ())
    planned = plan_ensemble(request)
    show(planned.document() if as_json else planned.lines())
