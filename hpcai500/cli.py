"""The command line: one small function a command. It reads and writes files and starts jobs; it never imports torch."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from hpcai500 import __version__
from hpcai500.errors import ExitCode, HpcAi500Error, RunError, UsageError
from hpcai500.launch.in_job import become, module_command
from hpcai500.launch.slurm_cli import app as slurm
from hpcai500.placement import find_placement
from hpcai500.streams import open_missing_streams

app = typer.Typer(
    help="HPC AI500: measure, score and verify HPC AI systems. Start with `hpcai500 ic`: a small run on this machine.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(slurm, name="slurm")
# Passed through untouched: the in-job half parses these arguments itself.
_PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hpcai500 {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


# Options that every benchmark has.
_Out = Annotated[Path | None, typer.Option(help="Folder of the record.  [default: runs/<benchmark>-<time>]")]
_Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change one field of the recipe.")
]
_Trials = Annotated[int, typer.Option(min=1, help="Runs, each with its own seed.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with a stopped run (--out, or the latest).")]
_Procs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Ranks on this machine, one an accelerator or a share of the cores.  [default: as the recipe says; "
        "smoke and reference: 1]",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]


@app.command(short_help="Image Classification: from JPEG files to a score.")
def ic(
    recipe: Annotated[str | None, typer.Option(help="TOML file, or ic/smoke, ic/reference.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with train/<class>/*.JPEG and val/<class>/*.JPEG.")] = None,
    out: _Out = None,
    set_: _Set = None,
    trials: _Trials = 1,
    resume: _Resume = False,
    procs: _Procs = None,
    as_json: _Json = False,
) -> None:
    """Image Classification: train ResNet-50 on JPEG files, to its target epochs, to a score.

    Without --recipe and --data it runs the smoke recipe on images that it makes itself: a few minutes on two cores,
    not rankable. With --data it runs the reference recipe.

    --procs N trains on N ranks of this machine. On several machines, start the command itself by a launcher: `srun
    hpcai500 ic …`, mpirun, torchrun or horovodrun; rank 0 prints the result (docs/launching.md).
    """
    _run("ic", recipe, data, out, set_, trials, resume, procs, as_json)


@app.command(short_help="Extreme Weather Analytics: from HDF5 years to a score.")
def ewa(
    recipe: Annotated[str | None, typer.Option(help="TOML file, or ewa/smoke, ewa/reference.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with climo_YYYY.h5, a file for each year.")] = None,
    out: _Out = None,
    set_: _Set = None,
    trials: _Trials = 1,
    resume: _Resume = False,
    procs: _Procs = None,
    as_json: _Json = False,
) -> None:
    """Extreme Weather Analytics: train Faster R-CNN on 16-channel climate years, to its target epochs, to a score.

    Without --recipe and --data it runs the smoke recipe on weather that it makes itself: a few minutes on two cores,
    not rankable. With --data it runs the reference recipe. The record holds a picture of what was found.

    --procs N trains on N ranks of this machine. On several machines, start the command itself by a launcher: `srun
    hpcai500 ewa …`, mpirun, torchrun or horovodrun; rank 0 prints the result (docs/launching.md).
    """
    _run("ewa", recipe, data, out, set_, trials, resume, procs, as_json)


def _run(
    benchmark: str,
    recipe: str | None,
    data: Path | None,
    out: Path | None,
    settings: list[str] | None,
    trials: int,
    resume: bool,
    procs: int | None,
    as_json: bool,
) -> None:
    from hpcai500.launch.benchmark import Request, run_benchmark  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.launch.crew import crew_of  # noqa: PLC0415
    from hpcai500.launch.follower import follow  # noqa: PLC0415

    try:
        placement = find_placement(os.environ)
    except HpcAi500Error as error:
        raise typer.Exit(_report(_failing(error), as_json)) from error
    if placement.rank > 0:
        raise typer.Exit(follow(placement))
    crew = crew_of(placement, procs)
    request = Request(benchmark, recipe, data, out, settings or (), trials, resume)
    code = _report(((run.record, run.exit_code) for run in run_benchmark(request, crew)), as_json)
    # A launcher ends all copies when one ends with a failure: what is printed is out before.
    sys.stdout.flush()
    crew.end(code)
    raise typer.Exit(code)


def _failing(error: HpcAi500Error) -> Iterator[tuple[Path, int]]:
    """Runs that ended before the first one."""
    yield from ()
    raise error


@app.command()
def score(
    records: Annotated[list[Path], typer.Argument(help="Folders that runs wrote.")],
    edition: Annotated[str | None, typer.Option(help="Score under this edition of the rules.")] = None,
    convention: Annotated[str, typer.Option(help="How operations are counted: analytic, or paper.")] = "analytic",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Compute the score of records again, from their events."""
    from hpcai500.results.score import expand  # noqa: PLC0415 - keeps `--help` fast

    def finished() -> Iterator[tuple[Path, int]]:
        for record in expand(records):
            yield record, ExitCode.PASS

    raise typer.Exit(_report(finished(), as_json, edition, convention))


@app.command(short_help="What communication cost: stages, stragglers, bytes.")
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
        print(f"hpcai500: {trace}: written; open it in ui.perfetto.dev", file=sys.stderr)  # noqa: T201
    print(json.dumps(document) if as_json else "\n".join(timeline_lines(document)))  # noqa: T201


@app.command(short_help="Weak scaling: more and more processes, and the efficiency drawn.")
def scale(
    what: Annotated[list[str], typer.Argument(metavar="ic|ewa|RECORD...", help="A benchmark, or records (--records).")],
    procs: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Numbers of processes.  [default: 1,2,4,... up to accelerators or cores]"),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of records and pictures.")] = None,
    set_: _Set = None,
    from_records: Annotated[bool, typer.Option("--records", help="Draw records that are there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a benchmark with 1, 2, 4, ... processes on this machine and draw FLOPS and efficiency (V2.0 Fig. 12).

    The same command with the same --out goes on where it was. With --records it draws runs that were made elsewhere.
    """
    from hpcai500.launch.scale import ScaleRequest, run_scaling  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.scale_report import report_broken_scaling, report_scaling  # noqa: PLC0415

    done: list[Path] = []
    try:
        if from_records:
            done, folder = [Path(one) for one in what], out
        else:
            request = ScaleRequest(_one(what), procs, recipe, data, out, set_ or ())
            folder = request.folder
            for run in run_scaling(request, folder):
                if run.exit_code != ExitCode.PASS:
                    raise RunError(f"{run.record}: {_job_error(run.record) or 'the run failed (see above)'}")
                done.append(run.record)
        report = report_scaling(done, folder)
    except HpcAi500Error as error:
        report = report_broken_scaling(done, _tell(error), error.exit_code)
    except KeyboardInterrupt:
        report = report_broken_scaling(done, _tell("stopped by Ctrl-C"), ExitCode.RUN_FAILED)
    print(json.dumps(report.document()) if as_json else "\n".join(report.lines()))  # noqa: T201
    raise typer.Exit(report.error_code)


def _one(what: list[str]) -> str:
    if len(what) != 1:
        raise UsageError(f"scale: expected one benchmark, got {' '.join(what)}; records are drawn with --records")
    return what[0]


@app.command(short_help="What this machine and container lack for a run.")
def doctor(
    benchmark: Annotated[str | None, typer.Argument(metavar="[ic|ewa]", help="Look at what its command needs.")] = None,
    recipe: Annotated[str | None, typer.Option(help="TOML file, or a shipped recipe.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    out: _Out = None,
    set_: _Set = None,
    as_json: _Json = False,
) -> None:
    """Look at container, folders, launcher and devices, and say what to type where something is wrong: docs/doctor.md.

    Exit code 69 where a run could not start. `ic` and `ewa` look at the same before they start.
    """
    from hpcai500.launch.examination import Patient, examine_command  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.system.checks import document, lines, verdict  # noqa: PLC0415

    checks = examine_command(Patient(benchmark, recipe, data, out, set_ or ()))
    print(json.dumps(document(checks)) if as_json else "\n".join(lines(checks)))  # noqa: T201
    raise typer.Exit(ExitCode.ENVIRONMENT if verdict(checks) == "error" else ExitCode.PASS)


@app.command(short_help="Image, package, rules and libraries, by hash and version.")
def version(as_json: _Json = False) -> None:
    """Print which software this is: what `system.json` of each record has as `installation`."""
    from hpcai500.system.container import find_container  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.system.mpi import installed_mpi  # noqa: PLC0415
    from hpcai500.system.versions import version_document, version_lines  # noqa: PLC0415

    found = version_document(find_container(os.environ), installed_mpi(os.environ))
    print(json.dumps(found) if as_json else "\n".join(version_lines(found)))  # noqa: T201


@app.command(context_settings=_PASS_THROUGH, short_help="Make, check or repack a data set.")
def data(context: typer.Context) -> None:
    """Make, check or repack a data set: `hpcai500 data --help`."""
    become(module_command("data", *context.args))


@app.command(context_settings=_PASS_THROUGH, short_help="Count the operations of a model.")
def flops(context: typer.Context) -> None:
    """Count the operations of a benchmark's model: `hpcai500 flops --help`."""
    become(module_command("measure.flops_command", *context.args))


@app.command("self-test", short_help="Check what this installation computes here: kernels, ranks, a tiny run.")
def self_test(
    procs: Annotated[int, typer.Option(min=2, metavar="N", help="Ranks that add up.")] = 2,
    as_json: _Json = False,
) -> None:
    """Hold every kernel against a reference, add up on several ranks, and train: half a minute on two cores.

    It writes to temporary files only (TMPDIR), and ends with 2 where an answer is wrong, 1 where a part crashed.
    """
    from hpcai500.launch.self_test import run_self_test  # noqa: PLC0415 - keeps `--help` fast

    ended = run_self_test(procs)
    print(json.dumps(ended.document()) if as_json else "\n".join(ended.lines()))  # noqa: T201
    raise typer.Exit(ended.exit_code)


def _report(
    runs: Iterable[tuple[Path, int]], as_json: bool, edition: str | None = None, convention: str = "analytic"
) -> int:
    """Score `runs` = (record, exit code of its job) as they come, and print the outcome; returns the exit code.

    Whatever fails, stdout ends with a verdict, or is one JSON document.
    """
    from hpcai500.results.outcome import CommandOutcome, RunOutcome  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.score import score_record  # noqa: PLC0415

    outcomes: list[RunOutcome] = []
    ended = CommandOutcome(outcomes)
    try:
        for record, code in runs:
            if code != ExitCode.PASS:
                outcomes.append(RunOutcome(record, error=_job_error(record), exit_code=code))
                continue
            try:
                outcomes.append(RunOutcome(record, score_record(record, edition, convention)))
            except HpcAi500Error as error:
                outcomes.append(RunOutcome(record, error=_tell(error), exit_code=error.exit_code))
    except HpcAi500Error as error:
        ended = CommandOutcome(outcomes, _tell(error), error.exit_code)
    except KeyboardInterrupt:
        ended = CommandOutcome(outcomes, _tell("stopped by Ctrl-C"), ExitCode.RUN_FAILED)
    print(json.dumps(ended.document()) if as_json else "\n".join(ended.lines()))  # noqa: T201
    return ended.exit_code


def _job_error(record: Path) -> str | None:
    """What the job wrote about its end; it has told the user already."""
    path = record / "ERROR"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _tell(error: HpcAi500Error | str) -> str:
    if os.environ.get("HPCAI500_TRACEBACK"):
        traceback.print_exc()
    print(f"hpcai500: error: {error}", file=sys.stderr)  # noqa: T201
    return str(error)


def main() -> int:
    """The `hpcai500` command; returns its exit code."""
    open_missing_streams()
    # typer's own base of usage errors is private in some versions and click's in others; its ancestor is public.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = app(standalone_mode=False) or ExitCode.PASS
        sys.stdout.flush()
        return code
    except HpcAi500Error as error:
        _tell(error)
        return error.exit_code
    except usage_error as error:
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context else ""
        _tell(f"{_reason(error)}{hint}")
        return ExitCode.USAGE
    except OSError as error:
        _tell_of_system(error)
        return ExitCode.RUN_FAILED
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _tell("stopped by Ctrl-C")
        return ExitCode.RUN_FAILED


def _tell_of_system(error: OSError) -> None:
    if not _is_of_stdout(error):
        _tell(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror or error))
        return
    # Nothing can be printed any more, and Python must not try again when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):  # `hpcai500 score … | head` has what it wants
        _tell(f"the result cannot be written: {error.strerror}")


def _is_of_stdout(error: OSError) -> bool:
    """Whether it was the result that could not be written: then it still waits, and fails again."""
    if error.filename is not None:
        return False
    try:
        sys.stdout.flush()
    except OSError:
        return True
    # Unbuffered (PYTHONUNBUFFERED), nothing waits; but all that is printed is printed here.
    return traceback.extract_tb(error.__traceback__)[-1].filename == __file__


def _reason(error: Exception) -> str:
    """What typer would print: its usage errors format themselves."""
    formatted = getattr(error, "format_message", None)
    return str(formatted() if formatted else error)
