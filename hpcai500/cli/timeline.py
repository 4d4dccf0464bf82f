"""`hpcai500 timeline`: what communication cost a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpcai500.errors import UsageError
from hpcai500.streams import say, show


def timeline(
    record: Annotated[Path | None, typer.Argument(help="Folder that a run of several ranks wrote.")] = None,
    horovod: Annotated[Path | None, typer.Option(metavar="FILE", help="Horovod's own timeline file instead.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the record's trace there, for ui.perfetto.dev.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Print the stages of an all-reduce (V2.0 Table 12), stragglers and bytes of a record: docs/timeline.md."""
    from hpcai500.results.timeline import export_trace, timeline_document, timeline_lines  # noqa: PLC0415

    document = timeline_document(record, horovod)
    if trace:
        if record is None:
            raise UsageError("--trace: Horovod's file is a trace already; give a record")
        export_trace(record, trace)
        say(f"{trace}: written; open it in ui.perfetto.dev")
    show(document if as_json else timeline_lines(document))
