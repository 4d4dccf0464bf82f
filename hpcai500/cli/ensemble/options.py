"""Options that several commands of an ensemble have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the ensemble.")]
Members = Annotated[
    str | None, typer.Option("--member", metavar="LIST", help="These members alone: 3, 0-7 or 1,4-6.  [default: all]")
]
AtOnce = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Members side by side.  [default: as many as there is room for]")
]
