"""Options that several commands have."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hpcai500.placement import OVERSUBSCRIBE


class InputKind(StrEnum):
    """Where training batches come from."""

    FILES = "files"
    MEMORY = "memory"

    @property
    def overrides(self) -> list[str]:
        """What it changes in a recipe."""
        return ["accelerator.loader=memory"] if self is InputKind.MEMORY else []


Out = Annotated[Path | None, typer.Option(help="Folder of the record.  [default: runs/<benchmark>-<time>]")]
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
Heads = Annotated[
    Path | None,
    typer.Option("--heads", metavar="FILE", help="Heads of journals, as they were given while campaigns ran."),
]
