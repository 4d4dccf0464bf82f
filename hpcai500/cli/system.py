"""`hpcai500 system`: what this machine, or each node of a job, is; or what a record says it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcai500.cli.options import Json, Oversubscribe
from hpcai500.errors import ExitCode, UsageError
from hpcai500.streams import show

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew

# Any recipe does, as none is trained: this one asks for no device and makes its data itself.
_RECIPE = "ic/smoke"
_FORMATS = ("text", "mlperf")

Places = Mapping[str, Path | None]


def system(
    record: Annotated[Path | None, typer.Argument(metavar="[RECORD]", help="Show what this record says.")] = None,
    form: Annotated[str, typer.Option("--format", metavar="text|mlperf", help="mlperf: its field names.")] = "text",
    data: Annotated[Path | None, typer.Option(help="Folder of the data set, for its file system.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of records, for its file system.  [default: here]")] = None,
    procs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks on this machine.")] = None,
    oversubscribe: Oversubscribe = False,
    as_json: Json = False,
) -> None:
    """Describe processors, accelerators, links, system, software and network: the six parts of V2.0 section 5.3.3.

    Started by srun or mpirun it describes every node of the job, and says how they differ: docs/system.md. Serial
    numbers, addresses and other people's variables are left out.
    """
    if form not in _FORMATS:
        raise UsageError(f"--format: expected {' or '.join(_FORMATS)}, got {form}")
    if record is not None:
        if procs is not None or data is not None or out is not None:
            raise UsageError(f"{record} is described as it was: leave out --procs, --data and --out")
        _show(_of_record(record), form, as_json=as_json)
        return
    from hpcai500.cli.ranks import on_ranks  # noqa: PLC0415 - keeps `--help` fast

    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the folder itself is what is described
    places = {
        "data": data.absolute() if data else None, "out": (out or Path()).absolute(), "temporary": temporary
    }  # fmt: skip

    def body(crew: Crew) -> int:
        _show(_of_job(crew, places), form, as_json=as_json)
        return ExitCode.PASS

    on_ranks(procs, body)


def _of_record(path: Path) -> dict[str, Any]:
    from hpcai500.errors import RecordError  # noqa: PLC0415
    from hpcai500.record import read_record  # noqa: PLC0415

    found = read_record(path).system
    if not found.get("nodes"):
        raise RecordError(f"{path}: it says nothing of its nodes: the run ended before it had looked at them")
    return dict(found)


def _of_job(crew: Crew, places: Places) -> dict[str, Any]:
    """A system.json of the nodes of `crew`."""
    if crew.size in (None, 1):
        return _here(places)
    from hpcai500.launch.measuring import measure, setting_for  # noqa: PLC0415

    arguments = [token for name, path in places.items() if path for token in (f"--{name}", path)]
    return measure(crew, "measure.system_command", setting_for(crew, _RECIPE, ()), arguments)


def _here(places: Places) -> dict[str, Any]:
    """One node needs no job: nothing of torch is loaded."""
    from hpcai500.system.container import find_container  # noqa: PLC0415
    from hpcai500.system.describe.node import describe_node  # noqa: PLC0415
    from hpcai500.system.mpi import installed_mpi  # noqa: PLC0415
    from hpcai500.system.versions import version_document  # noqa: PLC0415

    installation = version_document(find_container(os.environ), installed_mpi(os.environ))
    return {"nodes": [describe_node(places)], "installation": installation}


def _show(document: Mapping[str, Any], form: str, *, as_json: bool) -> None:
    from hpcai500.methodology.node_differences import node_differences  # noqa: PLC0415
    from hpcai500.system.describe.mlperf import mlperf_description  # noqa: PLC0415
    from hpcai500.system.describe.report import system_lines  # noqa: PLC0415

    if form == "mlperf":
        show(mlperf_description(document), indent=2)
        return
    differences = node_differences(document["nodes"])
    told = {**document, "differences": [one.document() for one in differences]}
    show(told if as_json else system_lines(document, differences))
