"""`hpcai500 export`: records in formats of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpcai500.cli.writing import write_asked_for
from hpcai500.errors import UsageError
from hpcai500.streams import show


def export(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="Folder that a run wrote.")],
    mllog: Annotated[bool, typer.Option("--mllog", help="As lines `:::MLLOG {...}`.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there.  [default: stdout]")
    ] = None,
) -> None:
    """Write the events of a record in the format of another tool: docs/export.md.

    --mllog gives the `:::MLLOG` lines that MLPerf's tools read, also of a run that failed or was gone on with. What has
    no word in MLPerf's vocabulary has the prefix hpcai500_. The result is none of MLPerf's, nor comparable with one.
    """
    if not mllog:
        raise UsageError("export: in which format? add --mllog")
    from hpcai500.campaign.reading import is_campaign  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.record import read_record  # noqa: PLC0415
    from hpcai500.results.mllog.log import mllog_lines  # noqa: PLC0415

    if is_campaign(record):
        raise UsageError(f"{record}: a campaign; export one of its runs: hpcai500 export {record / 'trial-01'} --mllog")
    lines = mllog_lines(read_record(record))
    if output is None:
        show(lines)
    else:
        write_asked_for(output, "".join(f"{line}\n" for line in lines).encode(), "-o")
