"""`hpcai500 micro`: what this machine does at best, each number verified."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcai500.cli.options import Json, Oversubscribe, Procs, Set
from hpcai500.cli.ranks import on_ranks
from hpcai500.errors import ExitCode, HpcAi500Error, UsageError
from hpcai500.streams import show, tell

if TYPE_CHECKING:
    from hpcai500.launch.crew import Crew

_KINDS = ("gemm", "conv", "copy", "allreduce", "input")


def micro(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[gemm|conv|copy|allreduce|input]...", help="Which; all by default.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="TOML file or a shipped recipe: device, precision, batch and shapes.  [default: ic/reference where "
            "this host has an NVIDIA device, else ic/smoke]"
        ),
    ] = None,
    set_: Set = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the recipe's data set, for input.")] = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    seconds: Annotated[float, typer.Option(min=0.05, help="Of each measurement, about.")] = 2.0,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the JSON there too.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the ceilings: matrix products, convolutions, memory copy, all-reduce, input pipeline (docs/micro.md).

    Products are measured in fp32, tf32, bf16 and fp16 over the shapes of both workloads and large squares; each result
    is verified, and a wrong one ends with exit code 2. With --procs or under a launcher, all ranks measure at once.
    """
    wanted = list(dict.fromkeys(what or _KINDS))
    if unknown := [word for word in wanted if word not in _KINDS]:
        raise UsageError(f"micro {unknown[0]}: expected {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")

    def body(crew: Crew) -> int:
        return _measure_and_tell(crew, wanted, recipe, set_ or [], data, seconds, out, as_json)

    on_ranks(procs, body)


def _measure_and_tell(
    crew: Crew,
    wanted: list[str],
    recipe: str | None,
    overrides: list[str],
    data: Path | None,
    seconds: float,
    out: Path | None,
    as_json: bool,
) -> int:
    from hpcai500.files import write_atomically  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.launch.micro import MicroRequest, measure_micro  # noqa: PLC0415
    from hpcai500.results.micro import figure_of_merit_lines, table_lines  # noqa: PLC0415

    try:
        # Before the minutes that measuring takes.
        if out:
            _check_writable(out)
        document = measure_micro(crew, MicroRequest(tuple(wanted), recipe, tuple(overrides), data, seconds))
        if out:
            try:
                write_atomically(out, (json.dumps(document) + "\n").encode())
            except OSError as error:
                raise UsageError(f"{out}: cannot be written: {error.strerror}; give another -o FILE") from error
    except HpcAi500Error as error:
        return _tell_broken(error, as_json)
    if as_json:
        show(document)
    else:
        lines = [*table_lines(document), *figure_of_merit_lines(document), "HPCAI500 RESULT PASS"]
        show(lines)
    return ExitCode.PASS


def _check_writable(out: Path) -> None:
    from hpcai500.files import is_folder  # noqa: PLC0415 - keeps `--help` fast

    folder = out.absolute().parent
    if is_folder(out):
        raise UsageError(f"{out}: a folder; give a file: -o {out / 'micro.json'}")
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = "cannot be written" if is_folder(folder) else "no such folder, or none that you may look into"
        raise UsageError(f"{out}: cannot be written: {folder}: {reason}; give another -o FILE")


def _tell_broken(error: HpcAi500Error, as_json: bool) -> int:
    verdict = "FAIL" if error.exit_code == ExitCode.WRONG_ANSWER else "INVALID"
    broken: dict[str, Any] = {"verdict": verdict, "error": tell(error), "exit_code": int(error.exit_code)}
    show(broken if as_json else f"HPCAI500 RESULT {verdict}")
    return error.exit_code
