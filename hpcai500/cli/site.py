"""Commands for a site: check, describe and measure its machines, test the software, write batch scripts for Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpcai500.cli.options import (
    Json,
    Oversubscribe,
    Procs,
    RecipeOption,
    Set,
    add_command,
    new_group,
    on_ranks,
    recipes_with,
)
from hpcai500.errors import ExitCode, HpcAi500Error, RecordError, UsageError
from hpcai500.job_options import MICRO_KINDS
from hpcai500.streams import print_error, say, show

if TYPE_CHECKING:
    from hpcai500.launch.launcher import Launcher
    from hpcai500.results.given_files import GivenFile
    from hpcai500.system.checks import Check


# ----------------------------------------------------------------------------------------------------
# `hpcai500 doctor`: find problems before node-hours are spent.


def path(text: str) -> Path:
    """A path that is not accessed; typer's own type of path accesses it, which may block on a dead mount.

    `--help` shows the name of this function as the type of the value.
    """
    return Path(text)


def doctor(
    benchmark: Annotated[str | None, typer.Argument(metavar="[ic|ewa|PLUG-IN]", help="Benchmark to check for.")] = None,
    recipe: RecipeOption = None,
    data: Annotated[Path | None, typer.Option(parser=path, help="Folder of the data set.")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=path, help="Folder of the record.  [default: runs/<benchmark>-<time>]")
    ] = None,
    set_: Set = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    machine: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="Compare speeds with a machine file, or with `hpcai500 micro -o FILE`."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure nothing, and start no ranks.")] = False,
    as_json: Json = False,
) -> None:
    """Check container, folders, launcher, devices; measure GEMM, all-reduce, reading; suggest fixes: docs/doctor.md.

    It takes a minute, on all ranks, or on all ranks of the launcher. Exit code 69 if a run could not start or would
    waste its node-hours. With --quick it takes a second; `ic` and `ewa` do the same before they start.
    """
    # Imports in here keep `--help` fast.
    from hpcai500.launch.examination import Patient, examine_command, look, why_unplaced
    from hpcai500.results.given_files import given_machine
    from hpcai500.system.checks import MEASURED, skipped
    from hpcai500.system.mounts import require_reachable

    require_reachable(filter(None, (recipe, machine)))
    patient = Patient(benchmark, recipe, data, out, set_ or (), machine)
    if quick:
        raise typer.Exit(_print(look(patient, procs), as_json=as_json))
    if reason := why_unplaced():
        raise typer.Exit(_print([*look(patient), *skipped(MEASURED, f"not measured: {reason}")], as_json=as_json))

    def body(launcher: Launcher) -> int:
        sources = given_machine(machine)[1] if machine else ()
        found = examine_command(patient, launcher)
        code = _print(found.checks, sources, as_json=as_json)
        if found.stopped:
            say(f"error: stopped by {found.stopped}: some checks were not measured")
            return ExitCode.RUN_FAILED
        return code

    on_ranks(procs, body)


def _print(checks: Sequence[Check], sources: Sequence[GivenFile] = (), *, as_json: bool) -> int:
    """Print `checks`, and the `sources` of the ceilings that speeds were compared with; returns the exit code."""
    from hpcai500.system.checks import document, lines, verdict

    found = {**document(checks), "sources": [file.document() for file in sources]}
    text = [*(f"machine {file.sentence}" for file in sources), *lines(checks)]
    show(found if as_json else text)
    return ExitCode.ENVIRONMENT if verdict(checks) == "fail" else ExitCode.PASS


# ----------------------------------------------------------------------------------------------------
# `hpcai500 system`: describe this machine, each node of a job, or the nodes of a record.


# Any recipe works, as nothing is trained: this one needs neither device nor data.
_RECIPE = "ic/smoke"
_FORMATS = ("text", "mlperf")

Places = Mapping[str, Path | None]


def system(
    record: Annotated[Path | None, typer.Argument(metavar="[RECORD]", help="Show the nodes of this record.")] = None,
    form: Annotated[str, typer.Option("--format", metavar="text|mlperf", help="mlperf: its field names.")] = "text",
    data: Annotated[Path | None, typer.Option(help="Folder of the data set, for its file system.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of records, for its file system.  [default: here]")] = None,
    procs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks on this machine.")] = None,
    oversubscribe: Oversubscribe = False,
    as_json: Json = False,
) -> None:
    """Describe processors, accelerators, links, system, software and network: the six parts of V2.0 section 5.3.3.

    Started by srun or mpirun it describes every node of the job, and lists differences: docs/system.md. Serial numbers,
    addresses and unrelated variables are left out.
    """
    if form not in _FORMATS:
        raise UsageError(f"--format: expected {' or '.join(_FORMATS)}, got {form}")
    if record is not None:
        if procs is not None or data is not None or out is not None:
            raise UsageError(f"{record}: --procs, --data and --out do not apply to a record: leave them out")
        _show(_of_record(record), form, as_json=as_json)
        return
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - this folder itself is described
    places = {
        "data": data.absolute() if data else None, "out": (out or Path()).absolute(), "temporary": temporary
    }  # fmt: skip

    def body(launcher: Launcher) -> int:
        _show(_of_job(launcher, places), form, as_json=as_json)
        return ExitCode.PASS

    on_ranks(procs, body)


def _of_record(path: Path) -> dict[str, Any]:
    from hpcai500.record import read_record

    found = read_record(path).system
    if not found.get("nodes"):
        raise RecordError(f"{path}: no description of nodes: the run ended before it described them")
    return dict(found)


def _of_job(launcher: Launcher, places: Places) -> dict[str, Any]:
    """A system.json of the nodes of `launcher`."""
    if launcher.size in (None, 1):
        return _here(places)
    from hpcai500.job_options import SystemOptions
    from hpcai500.launch.measuring import measure, setting_for

    return measure(launcher, "measure.system_command", setting_for(launcher, _RECIPE, ()), SystemOptions(dict(places)))


def _here(places: Places) -> dict[str, Any]:
    """A system.json of this node, without a job, so torch is not loaded."""
    from hpcai500.system.container import find_container
    from hpcai500.system.mpi import installed_mpi
    from hpcai500.system.node import describe_node
    from hpcai500.system.software import version_document

    installation = version_document(find_container(os.environ), installed_mpi(os.environ))
    return {"nodes": [describe_node(places)], "installation": installation}


def _show(document: Mapping[str, Any], form: str, *, as_json: bool) -> None:
    from hpcai500.methodology.nodes import node_differences
    from hpcai500.system.tables import mlperf_description, system_lines

    if form == "mlperf":
        show(mlperf_description(document), indent=2)
        return
    differences = node_differences(document["nodes"])
    full = {**document, "differences": [one.document() for one in differences]}
    show(full if as_json else system_lines(document, differences))


# ----------------------------------------------------------------------------------------------------
# `hpcai500 micro`: measure the ceilings of this machine.


def micro(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar=f"[{'|'.join(MICRO_KINDS)}]...", help="Which; all by default."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="TOML file or a shipped recipe: device, precision, batch and shapes.  [default: ic/reference if this "
            "host has an NVIDIA device, else ic/smoke]",
            autocompletion=recipes_with,
        ),
    ] = None,
    set_: Set = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the recipe's data set, for input.")] = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    seconds: Annotated[float, typer.Option(min=0.05, help="Approximate time of each measurement.")] = 2.0,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the JSON there too.")] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the links of all pairs there, as SVG and PNG.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the ceilings: matrix products, convolutions, memory copy, collectives, links, input (docs/micro.md).

    Products are measured in fp32, tf32, bf16 and fp16 over the shapes of both workloads and large squares; each result
    is verified, and a wrong one ends with exit code 2. With --procs or under a launcher, all ranks measure at once.
    """
    kinds = list(dict.fromkeys(what or MICRO_KINDS))
    if unknown := [word for word in kinds if word not in MICRO_KINDS]:
        raise UsageError(f"micro {unknown[0]}: expected {', '.join(MICRO_KINDS[:-1])} or {MICRO_KINDS[-1]}")

    def body(launcher: Launcher) -> int:
        from hpcai500.drawing import write_figures  # keeps `--help` fast
        from hpcai500.launch.measuring import measure_micro
        from hpcai500.results.micro import figure_of_merit_lines, link_figures, table_lines

        return _measured(
            lambda: measure_micro(launcher, kinds, recipe=recipe, overrides=set_ or (), data=data, seconds=seconds),
            lambda document: [*table_lines(document), *figure_of_merit_lines(document)],
            out,
            as_json=as_json,
            draw=lambda document: write_figures(figures, link_figures(document)) if figures else (),
        )

    on_ranks(procs, body)


def _measured(
    measure: Callable[[], dict[str, Any]],
    lines: Callable[[Mapping[str, Any]], list[str]],
    out: Path | None,
    *,
    as_json: bool,
    missed: Callable[[Mapping[str, Any]], list[str]] = lambda document: [],
    draw: Callable[[Mapping[str, Any]], Iterable[Path]] = lambda document: (),
) -> int:
    """Measure, write the document to `out`, and print it or its `lines`, then the verdict; returns the exit code.

    `missed` returns a line for each number that is not good enough, `draw` the files of pictures that it wrote.
    """
    from hpcai500.files import write_atomically  # keeps `--help` fast

    try:
        # Check it before measuring, which takes minutes.
        if out:
            _check_writable(out)
        document = measure()
        if out:
            try:
                write_atomically(out, (json.dumps(document) + "\n").encode())
            except OSError as error:
                raise UsageError(f"{out}: cannot be written: {error.strerror}; give another -o FILE") from error
        for path in draw(document):
            say(f"wrote {path}")
    except HpcAi500Error as error:
        verdict = "FAIL" if error.exit_code == ExitCode.WRONG_ANSWER else "INVALID"
        broken = {"verdict": verdict, "error": print_error(error), "exit_code": int(error.exit_code)}
        show(broken if as_json else f"HPCAI500 RESULT {verdict}")
        return error.exit_code
    slow = missed(document)
    for line in slow:
        say(line)
    show(document if as_json else [*lines(document), f"HPCAI500 RESULT {'FAIL' if slow else 'PASS'}"])
    return ExitCode.TOO_SLOW if slow else ExitCode.PASS


def _check_writable(out: Path) -> None:
    from hpcai500.files import is_folder  # keeps `--help` fast

    folder = out.absolute().parent
    if is_folder(out):
        raise UsageError(f"{out}: a folder; give a file: -o {out / 'micro.json'}")
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = "not writable" if is_folder(folder) else "no such folder, or no permission to access it"
        raise UsageError(f"{out}: cannot be written: {folder}: {reason}; give another -o FILE")


# ----------------------------------------------------------------------------------------------------
# `hpcai500 storage`: measure what training does to a file system.


_STORED = ("ic", "ewa", "small", "checkpoint")
_MODELS = ("resnet50", "1b", "8b", "70b")
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}


def storage(
    where: Annotated[Path, typer.Argument(metavar="DIR", help="Folder on the file system to measure.")],
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[ic|ewa|small|checkpoint]", help="Which; all by default.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join(_MODELS), help="Model whose checkpoint is saved; may be repeated.  [default: all]"
        ),
    ] = None,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Reading threads of each rank.  [default: as the loaders]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Approximate time of all measurements.")] = 60.0,
    space: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Most that all ranks together have written at once, such as 500G.  [default: twice the memory of the "
            "hosts, or 20 % of the free space]",
        ),
    ] = None,
    accelerator_speed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ic|ewa=NUMBER", help="Samples a second of one accelerator.  [default: ic: an H100's 1786]"
        ),
    ] = None,
    accelerators: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End with 5 unless so many are kept busy.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the JSON there too.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a file system as training uses it: samples, small files, checkpoints of 0.2 GB to 1 TB (docs/storage.md).

    ic reads files of 115 kB, ewa pieces of 57 MB, both in random order and cold; small makes, lists and opens files of
    16 bytes; checkpoint saves, restores and compares every byte. Everything is in one new folder in DIR, which is
    removed at the end, after an error and after Ctrl-C. 5 % of the file system stay free. What came from this host's
    memory is reported, and not counted.

    With --procs or under a launcher, all ranks do this at once, each with files of its own. Exit code 2: the storage
    returned other bytes than were written.
    """
    kinds = list(dict.fromkeys(what or _STORED))
    if unknown := [word for word in kinds if word not in _STORED]:
        raise UsageError(f"storage {unknown[0]}: expected {', '.join(_STORED[:-1])} or {_STORED[-1]}")
    models = list(dict.fromkeys(model or _MODELS))
    if unknown := [word for word in models if word not in _MODELS]:
        raise UsageError(f"--model {unknown[0]}: expected {', '.join(_MODELS[:-1])} or {_MODELS[-1]}")
    if model and "checkpoint" not in kinds:
        raise UsageError("--model is for checkpoint: add it, or leave --model out")
    most = None if space is None else _bytes_of(space)

    def body(launcher: Launcher) -> int:
        from hpcai500.launch.measuring import measure_storage  # keeps `--help` fast
        from hpcai500.results.storage import (
            figure_of_merit_lines,
            read_speeds,
            require_answer,
            table_lines,
            too_few,
            with_accelerators,
        )

        def measured() -> dict[str, Any]:
            speeds = read_speeds(accelerator_speed or ())
            require_answer(kinds, accelerators, speeds)
            found = measure_storage(
                launcher, where, kinds, models, seconds=seconds, space=most, threads=threads
            )  # fmt: skip
            return with_accelerators(found, speeds)

        def lines(document: Mapping[str, Any]) -> list[str]:
            return [*table_lines(document), *figure_of_merit_lines(document)]

        return _measured(
            measured, lines, out, as_json=as_json, missed=lambda document: list(too_few(document, accelerators))
        )

    on_ranks(procs, body)


def _bytes_of(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)B?", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise UsageError(f"--space {text}: expected a number of bytes, such as 500G or 1.5T")
    return int(float(found[1]) * _SIZES[found[2].upper()])


# ----------------------------------------------------------------------------------------------------
# `hpcai500 version` and `self-test`: print versions, and check that the software computes correctly here.


def version(as_json: Json = False) -> None:
    """Print versions and hashes of the software, as in `installation` in the `system.json` of each record."""
    from hpcai500.system.container import find_container  # keeps `--help` fast
    from hpcai500.system.mpi import installed_mpi
    from hpcai500.system.software import version_document, version_lines

    found = version_document(find_container(os.environ), installed_mpi(os.environ))
    show(found if as_json else version_lines(found))


def self_test(
    procs: Annotated[int, typer.Option(min=2, metavar="N", help="Ranks for the all-reduce.")] = 2,
    no_gpu: Annotated[bool, typer.Option("--no-gpu", help="Leave out the kernels of GPUs.")] = False,
    as_json: Json = False,
) -> None:
    """Compare every kernel with a reference, all-reduce on several ranks, and train: a minute on two idle cores.

    It writes temporary files only (TMPDIR). Exit codes: 2, an answer is wrong; 1, a part crashed.
    """
    from hpcai500.launch.self_test import run_self_test  # keeps `--help` fast

    ended = run_self_test(procs, no_gpu=no_gpu)
    show(ended.document() if as_json else ended.lines())
    raise typer.Exit(ended.exit_code)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 slurm …`: write scripts here, and submit them on the host; this does not need Slurm.


app = new_group(
    "Write batch scripts for Slurm (docs/site-guide.md).",
    "hpcai500 slurm example > mysite.toml",
    "hpcai500 slurm render ic --nodes 4 --site mysite.toml --data /data/imagenet -o ic.sh && sbatch ic.sh",
)


def render(
    benchmark: Annotated[str, typer.Argument(metavar="ic|ewa|PLUG-IN", help="The benchmark to run.")],
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Nodes of the job.")],
    site: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Site file: partition, ranks per node, launcher, image.  [default: srun, one rank per node, in the "
            "image that this command runs in]",
        ),
    ] = None,
    recipe: RecipeOption = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set, the same on every node.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the record.  [default: runs/<benchmark>-<job>, where sbatch is called]"),
    ] = None,
    set_: Set = None,
    trials: Annotated[int, typer.Option(min=1, help="Runs, one after the other, each with its own seed.")] = 1,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write there instead of to stdout.")] = None,
) -> None:
    """Write a batch script that runs a benchmark: check it, change it, then `sbatch FILE`.

    Write a site file first: `hpcai500 slurm example` prints one that explains every field (docs/site-guide.md). Recipe
    and site are checked now, so that mistakes are found before the job waits in the queue. When Slurm warns before the
    time limit, the job stops with a checkpoint, is queued again and continues.
    """
    from hpcai500.launch.slurm.script import RenderRequest, plan_job  # keeps `--help` fast
    from hpcai500.launch.slurm.script import render as rendered
    from hpcai500.plugins import require_benchmark

    require_benchmark(benchmark, "slurm render")
    command = ["hpcai500", *sys.argv[1:]]
    request = RenderRequest(benchmark, nodes, site, recipe, data, out, set_ or (), trials, command)
    planned = plan_job(request)
    script = rendered(planned.job)
    for warning in planned.warnings:
        say(f"warning: {warning}")
    if output is None:
        show(script.removesuffix("\n").split("\n"))
    else:
        _write_new(output, script)
        say(f"submit it on the host: sbatch {shlex.quote(str(output))}")


def example() -> None:
    """Print a site file that explains every field: `hpcai500 slurm example > mysite.toml`."""
    from hpcai500.launch.slurm.site import find_site  # keeps `--help` fast

    show(find_site("example").read_text(encoding="utf-8").splitlines())


def _write_new(path: Path, script: str) -> None:
    """Write `script` to a new file; an existing one may have been edited, so it is not replaced."""
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(script)
    except FileExistsError as error:
        raise UsageError(f"-o {path}: exists already; remove it, or give another name") from error
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror}; give another folder") from error


add_command(
    app,
    render,
    "Write a batch script for one benchmark.",
    "hpcai500 slurm render ic --nodes 4 --site mysite.toml --data /data/imagenet -o ic.sh && sbatch ic.sh",
)
add_command(app, example, "Print a site file that explains every field.", "hpcai500 slurm example > mysite.toml")
