"""`hpcai500 version` and `self-test`: which software this is, and whether it computes rightly here."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from hpcai500.cli.options import Json
from hpcai500.streams import show


def version(as_json: Json = False) -> None:
    """Print which software this is: what `system.json` of each record has as `installation`."""
    from hpcai500.system.container import find_container  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.system.mpi import installed_mpi  # noqa: PLC0415
    from hpcai500.system.versions import version_document, version_lines  # noqa: PLC0415

    found = version_document(find_container(os.environ), installed_mpi(os.environ))
    show(found if as_json else version_lines(found))


def self_test(
    procs: Annotated[int, typer.Option(min=2, metavar="N", help="Ranks that add up.")] = 2,
    as_json: Json = False,
) -> None:
    """Hold every kernel against a reference, add up on several ranks, and train: half a minute on two cores.

    It writes to temporary files only (TMPDIR), and ends with 2 where an answer is wrong, 1 where a part crashed.
    """
    from hpcai500.launch.self_test import run_self_test  # noqa: PLC0415 - keeps `--help` fast

    ended = run_self_test(procs)
    show(ended.document() if as_json else ended.lines())
    raise typer.Exit(ended.exit_code)
